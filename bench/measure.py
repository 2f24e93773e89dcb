"""Workers side by side: agreement first, then rounds in which each runs once, one after the other.

One thread: the process is pinned to one core, every thread pool has one thread, and its CPU time
counts, so that other programs on the machine disturb little. Two threads: two cores, pools of two,
wall time. Approaches that take seconds get fewer rounds.
"""

import contextlib
import hashlib
import json
import math
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .environments import ROOT, NotAvailable, python
from .problems import find

SCRATCH = ROOT / "build" / "bench"
SHORT = 0.05
"""Runs shorter than this many seconds are repeated within one round."""
WARM = 2.0
"""Runs shorter than this many seconds are made once untimed at the beginning of their turn: what is
measured is a training loop, and not how much of the caches the other approaches have taken since
the last turn.
"""
PATIENCE = float(os.environ.get("BENCH_PATIENCE", "600"))
"""A worker that does not answer for this many seconds is stopped."""


class Entry(NamedTuple):
    """One row of a table: where it runs and what."""

    label: str
    environment: str
    adapter: str
    approach: str
    unit: int = 1
    """How many operations one run makes."""
    huge: bool = True
    """Whether the C library asks for huge pages."""


class Failed(Exception):
    """A worker cannot continue, for the reason given."""


def environment(threads: int, huge: bool = True) -> dict[str, str]:
    """Environment variables of a worker: thread pools, no cache of compiled programs, huge pages.

    Linux zeroes freshly allocated memory page by page, here in about 0.7 ms per MB. NumPy asks for
    huge pages itself, so the floor does not pay for this; glibc asks if it is configured to.
    """
    pools = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("JAX_", "XLA_", "GLIBC_TUNABLES", "MALLOC_"))
    }
    return (
        kept
        | {f"{pool}_NUM_THREADS": str(threads) for pool in pools}
        | {
            "BENCH_CORES": str(threads),
            "NPROC": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        | ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if huge else {})
    )


class Worker:
    """A process that serves one approach."""

    def __init__(self, entry: Entry, workload: str, threads: int):
        self.entry = entry
        self.log = SCRATCH / f"{workload}-{entry.adapter}-{entry.approach}.log"
        command = [
            python(entry.environment),
            "-m",
            "bench.worker",
            entry.adapter,
            workload,
            entry.approach,
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment(threads, entry.huge),
                text=True,
            )
        self.versions = self._answer()["versions"]

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, wait for the answer."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.stop()
            raise Failed(f"no answer within {PATIENCE:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.stop()
            raise Failed(
                "out of memory"
                if code == -9
                else f"ended with code {code}, see {self.log.relative_to(ROOT)}"
            )
        answer = json.loads(line)
        if "error" in answer:
            self.stop()
            raise Failed(answer["error"])
        return answer

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def reference_path(name: str) -> Path:
    """The file of the reference of a workload; its name changes with the code that makes it."""
    code = b"".join(
        (ROOT / "bench" / f"{module}.py").read_bytes()
        for module in ("problems", "models", "reference")
    )
    return SCRATCH / f"{name}-{hashlib.sha256(code).hexdigest()[:8]}.npy"


def reference(name: str) -> np.ndarray | None:
    """The float64 reference of a workload, computed if it is missing; `None` where there is none.

    Raises `Failed` if it cannot be computed.
    """
    if find(name).kind == "product" or name == "W1-4096":
        return None
    path = reference_path(name)
    if not path.exists():
        command = [sys.executable, "-m", "bench.reference", name, str(path)]
        if subprocess.run(
            command, cwd=ROOT, env=environment(1), check=False, stdout=sys.stderr
        ).returncode:
            raise Failed("there is no float64 reference to agree with")
    return np.load(path)


class Row:
    """The record of one entry."""

    def __init__(self, entry: Entry):
        self.entry = entry
        self.worker: Worker | None = None
        self.times: list[float] = []
        self.record: dict[str, Any] = {"approach": entry.label, "status": "ok"}

    def begin(self, workload: str, threads: int, wanted: np.ndarray | None, residual: bool) -> None:
        """Start, run once, compare."""
        path = SCRATCH / f"{workload}-{self.entry.adapter}-{self.entry.approach}-out.npy"
        try:
            self.worker = Worker(self.entry, workload, threads)
            first = self.worker.ask(f"first {path}")
        except (Failed, NotAvailable) as reason:
            text = str(reason)
            skipped = isinstance(reason, NotAvailable) or text.startswith("NotImplementedError: ")
            self.record["status"] = (
                f"{'skipped' if skipped else 'failed'}: "
                f"{text.removeprefix('NotImplementedError: ')}"
            )
            self.worker = None
            return
        self.record |= {"versions": self.worker.versions} | {
            key: first[key] for key in ("peak", "peak_run", "compile", "note")
        }
        self.cost = first["seconds"][0 if threads == 1 else 1]
        self.record["first"] = self.cost / self.entry.unit
        if wanted is not None and path.exists():
            found = np.load(path)
            error = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
            self.record["error"] = error
            if not error < find(workload).tolerance:
                self.record["status"] = f"disagrees with the reference by {error:.0e}: not timed"
                self.stop()
        elif residual and path.exists():
            self.record["residual"] = call("bench.reference", workload, str(path), "residual").get(
                "residual", math.nan
            )
        path.unlink(missing_ok=True)

    def run(self, threads: int) -> None:
        """One timed round."""
        assert self.worker is not None
        repeats = max(1, min(100, math.ceil(SHORT / max(self.cost, 1e-4))))
        try:
            self.times.append(
                self.worker.ask(f"run {repeats} {int(self.cost < WARM)}")["seconds"][
                    0 if threads == 1 else 1
                ]
                / self.entry.unit
            )
        except Failed as reason:
            self.record["status"] = f"failed: {reason}"
            self.worker = None

    def stop(self) -> None:
        """End the worker."""
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def close(self) -> dict[str, Any]:
        """The record, with the median."""
        self.stop()
        if self.times and self.record["status"] == "ok":
            self.record |= {
                "seconds": statistics.median(self.times),
                "times": self.times,
                "n": len(self.times),
            }
        return self.record


def compile_seconds(name: str, entry: Entry, threads: int, times: int) -> float | None:
    """The median time to trace and compile in fresh processes: CPU on one thread, wall on two."""
    found = []
    for _ in range(times):
        with contextlib.suppress(Failed):
            worker = Worker(entry, name, threads)
            found.append(worker.ask("compile")["compile"][threads - 1])
            worker.stop()
    return statistics.median(found) if found else None


def rounds_of(cost: float, rounds: int) -> int:
    """How often something that took `cost` seconds is run: for about 20 s, but at least twice."""
    return max(min(rounds, 2), min(rounds, int(20 / max(cost, 1e-9))))


def measure(
    name: str,
    entries: Sequence[Entry],
    threads: int,
    rounds: int,
    say: Callable[[str], None] = lambda text: None,
    compare: bool = True,
    residual: bool = False,
) -> list[dict[str, Any]]:
    """Records of all entries on one workload."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    try:
        wanted = reference(name) if compare else None
    except Failed as reason:
        return [{"approach": entry.label, "status": f"failed: {reason}"} for entry in entries]
    rows = [Row(entry) for entry in entries]
    try:
        for row in rows:
            start = time.perf_counter()
            row.begin(name, threads, wanted, residual)
            say(
                f"{name}, {threads} thread{'s' * (threads > 1)}: {row.entry.label}: "
                f"{row.record['status']}, {time.perf_counter() - start:.0f} s"
            )
        for index in range(rounds):
            for row in rows:
                if row.worker is not None and index < rounds_of(row.cost, rounds):
                    row.run(threads)
    finally:
        records = [row.close() for row in rows]
    return records


def call(
    module: str, *args: str, threads: int = 1, patience: float = 2 * PATIENCE
) -> dict[str, Any]:
    """The JSON that a module prints in a fresh process; `{"error": reason}` if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *args],
            cwd=ROOT,
            env=environment(threads),
            capture_output=True,
            text=True,
            check=False,
            timeout=patience,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {patience:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])
