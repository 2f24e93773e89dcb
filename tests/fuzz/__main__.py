"""The command: `python -m tests.fuzz --seed 1 --count 2000`."""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from . import run
from .problem import Problem, dump, load


def main() -> int:
    """Run, reproduce or minimise."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--only", type=int, help="run the problem with this number only")
    parser.add_argument("--load", type=Path, help="run the problem in a JSON file only")
    parser.add_argument("--minimise", action="store_true", help="shrink it, print it as a test")
    parser.add_argument("--save", type=Path, help="write the (shrunk) problem as JSON")
    parser.add_argument("--folder", type=Path, default=run.FOLDER)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--indices", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        run.work(given.seed, [int(i) for i in given.indices.split(",")], given.work)
        return 0
    if given.only is not None or given.load is not None:
        run.configure()
        from .generate import problem

        if given.load is None:
            return single(problem(given.seed, given.only), given.minimise, given.save)
        return single(load(given.load.read_text()), given.minimise, given.save)
    records = run.sweep(given.seed, given.count, given.folder)
    print(run.summary(given.seed, records))
    return 1 if run.unexpected(records) else 0


def single(problem: Problem, shrink: bool, save: Path | None) -> int:
    """Show the verdict on one problem; shrink it if asked to."""
    from .judge import BAD, judge
    from .minimise import as_test, minimise

    verdict = judge(problem)
    print(problem.structure, problem.values, problem.scenario, verdict, sep="\n")
    if shrink:
        # As wrong as it was, up to a digit.
        least = min(verdict.error, 1.0) / 10

        def kind(given: Problem) -> str:
            found = judge(given)
            return f"{found.outcome}, {found.error >= least}"

        small = minimise(problem, kind)
        print("\nsmaller:", small.structure, small.values, judge(small), sep="\n")
        print(f"\n{as_test(small)}")
        problem = small
    if save is not None:
        save.write_text(dump(problem) + "\n")
    return 1 if verdict.outcome in BAD else 0


if __name__ == "__main__":
    sys.exit(main())
