"""`python -m pullback_lab.pde A B --seeds 5 --minutes 10`: solves equations, prints tables.

A table has the errors against steps and wall-clock time, beside the published one. `--out FILE`
also writes the tables as Markdown, and all measurements as JSON beside them.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .problems import EQUATIONS, PUBLISHED
from .run import Measured, one

STEPS = {"A": 1600, "B": 1600, "C": 1200, "E": 800, "F'": 1600}
MARKS = (10, 30, 100, 200, 400, 800, 1600, 3200, 6400)
"""Steps at which errors are tabulated."""


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pullback_lab.pde",
        description="Solve partial differential equations with networks.",
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help=f"which equations: {', '.join(EQUATIONS)}"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        help="how many runs of each (default 1); medians are tabulated",
    )
    parser.add_argument("--steps", type=int, help="steps of each run (default by equation)")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="at most so long for each run (default 10)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="how many runs at a time (default 1)"
    )
    parser.add_argument("--no-momentum", action="store_true", help="leave Spring out (F')")
    parser.add_argument(
        "--out",
        type=Path,
        help="write the tables to this Markdown file, the measurements beside it",
    )
    chosen = parser.parse_args(argv)
    if unknown := [name for name in chosen.names if name not in EQUATIONS]:
        parser.error(f"unknown: {', '.join(unknown)}. There are: {', '.join(EQUATIONS)}.")
    counts = (chosen.seeds, chosen.processes, 1 if chosen.steps is None else chosen.steps)
    if min(counts) < 1 or not chosen.minutes > 0:
        parser.error("--seeds, --steps, --minutes and --processes must be positive.")
    return chosen


def at(run: list[Measured], step: int) -> Measured:
    """The last measurement up to a step."""
    return [m for m in run if m.step <= step][-1]


def table(name: str, runs: list[list[Measured]]) -> str:
    """Medians over the runs as a Markdown table."""
    equation = EQUATIONS[name]
    published = PUBLISHED[name]
    fresh = "new every step" if equation.renewed else "fixed"
    lines = [
        f"### {name}: {equation.title}",
        "",
        f"Network {'-'.join(map(str, equation.widths))} ({equation.size} parameters), "
        f"{equation.inside} points inside and {equation.border} on the boundary, {fresh}; "
        f"float64; median of {len(runs)} seed{'s' if len(runs) > 1 else ''}.",
        "",
        "| steps | seconds | CPU seconds | RMS error | worst seed | relative L2 |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    # Marks near which all runs were measured and beyond which they went, then the end of each run.
    shortest = min(run[-1].step for run in runs)
    marks = [
        mark
        for mark in MARKS
        if mark < shortest and min(at(run, mark).step for run in runs) > mark / 2
    ]
    rows = [[at(run, mark) for run in runs] for mark in marks] + [[run[-1] for run in runs]]
    for row in rows:
        middle = [float(np.median([m[i] for m in row])) for i in (0, 1, 2, 4, 5)]
        worst = max(m.error for m in row)
        lines.append(
            "| {:.0f} | {:.0f} | {:.0f} | {:.1e} | {:.1e} | {:.1e} |".format(
                *middle[:4], worst, middle[4]
            )
        )
    lines += [
        "",
        f"Published: {published.error:.1e} ({published.method}; tuned, on a GPU, up to 3000 s).",
    ]
    return "\n".join(lines)


def each(name: str, chosen: argparse.Namespace) -> Iterator[list[Measured]]:
    """The runs of an equation, seed by seed."""
    words = (chosen.steps or STEPS[name], 60 * chosen.minutes, not chosen.no_momentum)
    if chosen.processes == 1:
        yield from (one(name, seed, *words, True) for seed in range(chosen.seeds))
        return
    # Spawned, because JAX does not survive a fork. `one` is in another module, since a spawned
    # process cannot import `__main__`. Several progress bars would overwrite each other.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        min(chosen.processes, chosen.seeds), context
    ) as pool:
        futures = [pool.submit(one, name, seed, *words, False) for seed in range(chosen.seeds)]
        yield from (future.result() for future in futures)


def main(argv: list[str] | None = None) -> int:
    """Run the command."""
    chosen = arguments(argv)
    tables = []
    kept = {}
    for name in chosen.names:
        runs = []
        for seed, run in enumerate(each(name, chosen)):
            runs.append(run)
            end = run[-1]
            words = (
                f"{name} seed {seed}: RMS {end.error:.2e}, relative {end.relative:.2e}, "
                f"{end.step} steps, {end.seconds:.0f} s ({end.cpu:.0f} s of CPU)"
            )
            print(words, file=sys.stderr, flush=True)
        tables.append(table(name, runs))
        kept[name] = [[m._asdict() for m in run] for run in runs]
        print(tables[-1] + "\n", flush=True)
        if chosen.out is not None:
            chosen.out.write_text("\n\n".join(tables) + "\n", encoding="utf-8")
            chosen.out.with_suffix(".json").write_text(json.dumps(kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
