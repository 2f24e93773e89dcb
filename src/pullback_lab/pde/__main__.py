"""`pullback pde A B --seeds 5`: solves equations, prints tables, draws pictures.

A table and a picture have the errors against steps and wall-clock time, beside the published ones.
With `--baselines` the usual training, Adam + L-BFGS and self-scaled Broyden, has as many CPU
seconds as each run took. With `--out FOLDER` the tables, the pictures and all measurements are
written there, and the same command resumes a run that was interrupted or killed. `--out FILE.md`
names the file of the tables, and everything else lies beside it. `python -m pullback_lab.pde` is
the same command.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

from . import baselines
from .cases import NAMES, case
from .picture import draw
from .published import curves
from .run import Measured, one
from .table import at_equal_seconds, table


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="pullback pde",
        description="Solve partial differential equations with networks.",
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help=f"which equations: {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        help="how many runs of each (default 1); medians are tabulated",
    )
    parser.add_argument("--steps", type=int, help="steps of each run (default by equation)")
    parser.add_argument(
        "--minutes",
        type=float,
        help="at most so long for each run; defaults to no limit, so that every run makes its "
        "steps: on one core about 2 minutes for A and B, half an hour for C and E, hours for D, F, "
        "F' and G",
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="how many runs at a time (default 1)"
    )
    parser.add_argument("--no-momentum", action="store_true", help="leave Spring out (D, F, F', G)")
    parser.add_argument(
        "--as-published",
        action="store_true",
        help="the published points, initialisation and numbers of SPRING",
    )
    parser.add_argument(
        "--memory",
        type=float,
        help="average the metric over steps with this weight of the past (at most 4096 parameters)",
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="Adam + L-BFGS and self-scaled Broyden too, for as many CPU seconds as each run",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="a folder for tables, pictures and measurements, where runs resume; or FILE.md",
    )
    chosen = parser.parse_args(argv)
    if unknown := [name for name in chosen.names if name not in NAMES]:
        parser.error(f"unknown: {', '.join(unknown)}. There are: {', '.join(NAMES)}.")
    counts = (chosen.seeds, chosen.processes, 1 if chosen.steps is None else chosen.steps)
    if min(counts) < 1 or not (chosen.minutes is None or chosen.minutes > 0):
        parser.error("--seeds, --steps, --minutes and --processes must be positive.")
    if not (chosen.memory is None or 0 <= chosen.memory < 1):
        parser.error("--memory must be at least 0 and below 1.")
    return chosen


def places(out: Path | None) -> tuple[Path | None, Path | None, str]:
    """The file of the tables, the folder of the runs, and the beginning of the other names."""
    if out is None:
        return None, None, ""
    if out.suffix == ".md":
        return out, out.with_name(out.stem + "-runs"), out.stem + "-"
    return out / "tables.md", out / "runs", ""


def folder_of(name: str, chosen: argparse.Namespace, seed: int, method: str = "") -> Path | None:
    """The folder of a run, of ours or of a baseline."""
    runs = places(chosen.out)[1]
    kind = [name.replace("'", "-prime")] + ["published"] * chosen.as_published
    if method:
        kind.append(method)
    else:
        kind += ["no-momentum"] * chosen.no_momentum
        kind += [] if chosen.memory is None else [f"memory-{chosen.memory:g}"]
    return None if runs is None else runs / "-".join(kind) / f"seed-{seed}"


def beside(
    name: str, chosen: argparse.Namespace, runs: list[list[Measured]]
) -> dict[str, list[list[Measured]]]:
    """The runs of the baselines, one after the other, as many CPU seconds as ours of the seed."""
    found = {}
    for method, words in baselines.METHODS.items() if chosen.baselines else ():
        found[words] = []
        for seed, run in enumerate(runs):
            folder = folder_of(name, chosen, seed, method)
            seconds, published = run[-1].cpu, chosen.as_published
            found[words].append(baselines.one(method, name, seed, seconds, published, folder))
            said(f"{name}, {words}, seed {seed}", found[words][-1][-1])
    return found


def said(what: str, end: Measured) -> None:
    """Print how a run ended."""
    words = (
        f"{what}: RMS {end.error:.2e}, relative {end.relative:.2e}, {end.step} steps, "
        f"{end.seconds:.0f} s ({end.cpu:.0f} s of CPU)"
    )
    print(words, file=sys.stderr, flush=True)


def each(name: str, chosen: argparse.Namespace) -> Iterator[list[Measured]]:
    """The runs of an equation, seed by seed."""
    steps = chosen.steps or case(name).steps
    seconds = math.inf if chosen.minutes is None else 60 * chosen.minutes
    words = (steps, seconds, not chosen.no_momentum)

    def rest(seed: int, progress: bool) -> tuple:
        folder = folder_of(name, chosen, seed)
        return name, seed, *words, progress, chosen.as_published, folder, chosen.memory

    if chosen.processes == 1:
        yield from (one(*rest(seed, True)) for seed in range(chosen.seeds))
        return
    # Spawned, because JAX does not survive a fork. `one` is in another module, since a spawned
    # process cannot import `__main__`. Several progress bars would overwrite each other.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        min(chosen.processes, chosen.seeds), context
    ) as pool:
        futures = [pool.submit(one, *rest(seed, False)) for seed in range(chosen.seeds)]
        yield from (future.result() for future in futures)


def main(argv: list[str] | None = None) -> int:
    """Run the command."""
    chosen = arguments(argv)
    file, _, beginning = places(chosen.out)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    tables = []
    kept = {}
    for name in chosen.names:
        runs = []
        for seed, run in enumerate(each(name, chosen)):
            runs.append(run)
            said(f"{name} seed {seed}", run[-1])
        others = beside(name, chosen, runs)
        tables.append(table(name, runs, chosen.as_published))
        if others:
            tables[-1] += "\n\n" + at_equal_seconds(runs, others)
        kept[name] = [[m._asdict() for m in run] for run in runs]
        print(tables[-1] + "\n", flush=True)
        if file is not None:
            file.write_text("\n\n".join(tables) + "\n", encoding="utf-8")
            file.with_suffix(".json").write_text(json.dumps(kept), encoding="utf-8")
            title = f"{name}: {case(name).equation.title}"
            picture = beginning + name.replace("'", "-prime") + ".png"
            draw(title, runs, curves(name), others).savefig(file.with_name(picture), dpi=120)
    return 0


if __name__ == "__main__":
    sys.exit(main())
