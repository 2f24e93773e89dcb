"""Lemma 1, Theorems 1 and 2 and the other worked examples: what was checked, and by how much it is off. Exit code 1 if anything fails.

Name examples to run only those: `python examples/theorems.py theorem-1 figure-eight`.
"""

import sys
import time

import jax

from pullback.papers import EXAMPLES

jax.config.update("jax_enable_x64", True)


def main(names: list[str]) -> int:
    known = {example.name: example for example in EXAMPLES}
    if unknown := [name for name in names if name not in known]:
        print(f"unknown: {', '.join(unknown)}. There are: {', '.join(known)}.", file=sys.stderr)
        return 2
    failed = total = 0
    for example in [known[name] for name in names] or EXAMPLES:
        print(f"\n{example.name}  ({example.source})\n  {example.statement}")
        start = time.perf_counter()
        for label, measured, bound, holds in example.run():
            sign = "=" if measured == bound else "≤" if (measured < bound) == holds else "≥"
            print(f"  {'holds' if holds else 'FAILS'}  {measured:9.3g} {sign} {bound:<7.3g}  {label}", flush=True)
            total, failed = total + 1, failed + (not holds)
        print(f"  {time.perf_counter() - start:.1f} s")
    print(f"\n{total - failed} of {total} measured numbers keep to their bounds.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
