"""`python -m bench [W1 ...] [--quick | --no-peers] [--rounds N]`: measure, print, write
`bench/results.json` and `docs/benchmarks.md`. `VMC` are V1, V2 and V3: wave functions.

Pages are whole: a run of some workloads keeps what the last run found of the others, and the page
is written once all of them are there. `--quick` measures ours and the floor only, prints, and
writes nothing.
"""

import argparse
import datetime
import json
import math
import os
import platform
import re
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import page
from .entries import COMPILED, ENTRIES, FLOOR, OURS, PRODUCTS
from .environments import ROOT
from .measure import call, compile_seconds, measure, reference_path
from .problems import GROUPS, TABLES

RESULTS = ROOT / "bench" / "results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
SLOW = 5.0
"""Approaches slower than this many seconds on one thread are not run on two."""
QUICK = ("W1", "W2", "W2p", "R1", "W4", "W3", "R2")
QUICK_SECONDS = 80.0


def machine() -> dict[str, str]:
    """What it ran on."""
    cpu = platform.processor() or platform.machine()
    memory = "?"
    for path, pattern in (
        ("/proc/cpuinfo", r"model name\s*: (.*)"),
        ("/proc/meminfo", r"MemTotal:\s*(\d+) kB"),
    ):
        if Path(path).exists() and (found := re.search(pattern, Path(path).read_text())):
            if path.endswith("cpuinfo"):
                cpu = found[1]
            else:
                memory = f"{int(found[1]) / 2**20:.0f}"
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "memory": memory,
        "python": platform.python_version(),
    }


def quick(console: Console, names: list[str], rounds: int) -> int:
    """Ours over the floor, on the workloads named, or on as many as fit the time."""
    start = time.perf_counter()
    table = Table(
        "workload",
        "ours",
        "floor",
        "ours / floor",
        "error",
        "peak MB",
        "compile",
        title="one thread, CPU time",
    )
    for name in names or QUICK:
        if not names and time.perf_counter() - start > QUICK_SECONDS:
            table.add_row(name, "no time left")
            continue
        known = reference_path(name).exists()
        ours, floor = measure(
            name, [OURS, FLOOR], threads=1, rounds=rounds, compare=known, residual=not known
        )
        if "seconds" not in ours or "seconds" not in floor:
            table.add_row(name, ours["status"], floor["status"])
            continue
        table.add_row(
            name,
            page.seconds(ours["seconds"]),
            page.seconds(floor["seconds"]),
            f"{ours['seconds'] / floor['seconds']:.2f}",
            f"{ours['error']:.0e}" if "error" in ours else f"residual {ours['residual']:.0e}",
            f"{ours['peak']:.0f}",
            page.seconds(ours["compile"][0]),
        )
    console.print(table)
    console.print(f"{time.perf_counter() - start:.0f} s. Peers, two threads, goals: make bench.")
    return 0


def _two_threads(name: str, results: dict, rounds: int, say) -> list[dict]:
    """The same on two threads, without what is slow or does not run."""
    fast = {
        r["approach"]
        for r in results["threads1"][name]
        if r.get("seconds", math.inf) <= SLOW or r["approach"] == OURS.label
    }
    return measure(name, [entry for entry in ENTRIES[name] if entry.label in fast], 2, rounds, say)


def full(names: list[str], peers: bool, rounds: int, say) -> dict:
    """All measurements of some workloads; results and page are written after each of them."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if set(names) == set(TABLES):
        results = {key: results[key] for key in ("scaling",) if key in results}
    results |= {
        "when": datetime.datetime.now(datetime.UTC).isoformat(),
        "rounds": rounds,
        "peers": peers,
        "slow": SLOW,
        "machine": machine(),
        "load": os.getloadavg()[0],
    }
    for key in ("threads1", "threads2", "compile", "runs"):
        results.setdefault(key, {})

    def keep():
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        if set(TABLES) <= set(results["threads1"]):
            PAGE.write_text(page.page(results), encoding="utf-8")

    for name in names:
        entries = [entry for entry in ENTRIES[name] if peers or entry.environment == "ours"]
        results["threads1"][name] = measure(name, entries, 1, rounds, say)
        results["runs"][name] = results["when"]
        keep()
        if name == "W4":
            results["threads1"]["W4 products"] = measure(
                name, PRODUCTS, 1, rounds, say, compare=False
            )
        if name not in ("W5", *GROUPS["VMC"]) and (os.cpu_count() or 1) > 1:
            results["threads2"][name] = _two_threads(name, results, rounds, say)
        if name in COMPILED:
            say(f"{name}: compile")
            found = {
                str(threads): compile_seconds(name, OURS, threads, min(rounds, 3))
                for threads in (1, 2)
            }
            results["compile"][name] = {
                threads: seconds for threads, seconds in found.items() if seconds is not None
            }
        if name == "W1":
            say("W1: Krylov with and without preconditioner")
            results["krylov"] = call("bench.krylov", threads=2)
            keep()
            results["large"] = measure("W1-4096", [OURS], 1, 0, say, residual=True)[0]
        keep()
    return results


def main() -> int:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help=f"some of {', '.join((*TABLES, *GROUPS))}; defaults to all",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="ours and the floor only, in under two minutes if none is named; writes nothing",
    )
    parser.add_argument("--no-peers", action="store_true", help="ours and the floor only, in full")
    parser.add_argument("--rounds", type=int, help="timed rounds (7; quick: 3)")
    arguments = parser.parse_args()
    named = [x for name in arguments.workloads for x in GROUPS.get(name, (name,))]
    if unknown := [name for name in named if name not in TABLES]:
        parser.error(f"unknown: {', '.join(unknown)}. There are: {', '.join((*TABLES, *GROUPS))}.")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be at least 1.")
    console = Console() if sys.stdout.isatty() else Console(width=140)
    if arguments.quick:
        return quick(console, named, arguments.rounds or 3)
    log = Console(stderr=True)
    start = time.perf_counter()
    results = full(
        named or list(TABLES),
        not arguments.no_peers,
        arguments.rounds or 7,
        lambda text: log.print(
            f"[dim]{time.perf_counter() - start:6.0f} s[/] {text}", highlight=False
        ),
    )
    text = "".join(f"{name}\n\n{page.workload(results, name)}\n" for name in named)
    console.print(text + page.goals(results), highlight=False, markup=False, soft_wrap=True)
    missing = [name for name in TABLES if name not in results["threads1"]]
    rest = f"; the page waits for {', '.join(missing)}" if missing else ", docs/benchmarks.md"
    console.print(
        f"{(time.perf_counter() - start) / 60:.0f} min. Written: bench/results.json{rest}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
