"""Runs one approach on one workload in a process of its own: `python -m bench.worker ADAPTER
WORKLOAD APPROACH`.

Lines in: `first PATH` (compile, run, save the vector), `compile` (only that), `run K` (K times, the
mean), `quit`. Lines out: JSON. What the libraries print goes to the error stream. The cores and the
thread pools are set by the environment of the parent.
"""

import contextlib
import importlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Approach:
    """How an adapter solves a workload."""

    run: Callable[[], Any]
    """One natural gradient, finished when it returns."""
    vector: Callable[[Any], np.ndarray] | None = None
    """What `run` returned as a flat vector in the order of `problems.flat`; `None` if there is
    nothing to compare.
    """
    prepare: Callable[[], Any] | None = None
    """Compiles, if that can be separated from running."""
    seconds: Callable[[Any], tuple[float, float]] | None = None
    """The (CPU, wall) seconds of what `run` returned, if the adapter times itself."""
    note: Callable[[], dict] | None = None
    """What else is to be recorded, asked after the first run."""


def clock() -> tuple[float, float]:
    """CPU time of the process and wall time."""
    return time.process_time(), time.perf_counter()


def timed(function: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """A result, and the (CPU, wall) seconds it took."""
    cpu, wall = clock()
    result = function()
    end = clock()
    return result, (end[0] - cpu, end[1] - wall)


def _memory(field: str) -> float:
    """VmRSS or VmHWM in MB; NaN where /proc is not there."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return int(found[1]) / 1024
    return (
        float("nan")
        if field == "VmRSS"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )


def _reset() -> float:
    """Let the high-water mark start from here; what is resident now, in MB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _first(approach: Approach, path: str) -> dict:
    before = _reset()
    compile_seconds = (float("nan"),) * 2
    compiling = 0.0
    if approach.prepare:
        compile_seconds = timed(approach.prepare)[1]
        compiling = _memory("VmHWM")
    compiled = _reset()
    result, seconds = timed(approach.run)
    running = _memory("VmHWM")
    answer = {
        "compile": compile_seconds,
        "seconds": seconds,
        "peak": max(compiling, running) - before,
        "peak_run": running - compiled,
    }
    if approach.vector:
        np.save(path, np.asarray(approach.vector(result), np.float64))
    return answer | {"note": approach.note() if approach.note else {}}


def _run(approach: Approach, repeats: int, warm: int) -> dict:
    for _ in range(warm):
        approach.run()
    if approach.seconds:
        results = [approach.seconds(approach.run()) for _ in range(repeats)]
        return {"seconds": [sum(parts) / repeats for parts in zip(*results, strict=True)]}

    def run():
        for _ in range(repeats):
            approach.run()

    seconds = timed(run)[1]
    return {"seconds": [part / repeats for part in seconds]}


def _versions(names) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main(adapter: str, workload: str, name: str) -> None:
    """Serve one approach until the line `quit`, or the end of the input."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(make):
        try:
            reply = make()
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(reply) + "\n")
        return reply

    state: dict[str, Approach] = {}

    def begin():
        module = importlib.import_module(f"bench.peers.{adapter}")
        state["approach"] = module.build(workload, name)
        return {"versions": _versions(module.PACKAGES)}

    if "error" in answer(begin):
        return
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        if command == "first":
            answer(lambda rest=rest: _first(state["approach"], rest))
        elif command == "compile":
            answer(lambda: {"compile": timed(state["approach"].prepare)[1]})
        elif command == "run":
            answer(lambda rest=rest: _run(state["approach"], *map(int, rest.split())))
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:4])
