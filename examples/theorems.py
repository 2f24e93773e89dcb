"""Lemma 1, Theorems 1 and 2 and the other claims of the sources: what was checked, and by how much
it is off. Exit code 1 if a verdict is not the one on record. Name claims to run only those: `python
examples/theorems.py theorem-1 example-2`. (`pullback reproduce` does the same with a report.)
"""

import sys
import time

import jax

from pullback_lab import papers

jax.config.update("jax_enable_x64", True)


def main(names: list[str]) -> int:
    known = papers.REGISTRY
    if unknown := [name for name in names if name not in known]:
        print(f"unknown: {', '.join(unknown)}. There are: {', '.join(known)}.", file=sys.stderr)
        return 2
    chosen = [known[name] for name in names] or list(known.values())
    agreeing = 0
    for claim in chosen:
        print(
            f"\n{claim.name}  ({papers.SOURCES[claim.source]}, {claim.place})\n  {claim.statement}"
        )
        start = time.perf_counter()
        rows = claim.measure().rows
        for row in rows:
            says = (
                f"{'holds' if row.holds else 'FAILS'}  {row.measured:9.3g} {row.relation} "
                f"{row.bound:<7.3g}"
            )
            print(f"  {says}  {row.label} ({row.role.value})", flush=True)
        verdict = papers.judge(rows)
        print(
            f"  {verdict.value if verdict else 'no verdict'}, {time.perf_counter() - start:.1f} s"
        )
        agreeing += verdict is claim.verdict
    print(f"\n{agreeing} of {len(chosen)} verdicts are those on record.")
    return 0 if agreeing == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
