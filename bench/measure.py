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
"""A worker that is silent for longer is given up."""


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
    """A worker that cannot go on, with the reason."""


def environment(threads: int, huge: bool = True) -> dict[str, str]:
    """Environment variables of a worker: thread pools, no cache of compiled programs, huge pages.

    Memory that is taken anew for every call is cleared by the kernel page by page, here at about
    0.7 ms a MB. NumPy asks for huge pages itself, so that the floor does not pay; glibc asks if it
    is told to, and everyone is told.

    **Arguments:**

    - `threads`: the size of every pool.
    - `huge`: whether to ask for huge pages.
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
    """Where the reference of a workload is kept: under another name when the code that makes it has
    changed.

    **Arguments:**

    - `name`: the workload.
    """
    code = b"".join(
        (ROOT / "bench" / f"{module}.py").read_bytes()
        for module in ("problems", "models", "reference")
    )
    return SCRATCH / f"{name}-{hashlib.sha256(code).hexdigest()[:8]}.npy"


def reference(name: str) -> np.ndarray | None:
    """The float64 reference of a workload, made if need be; `None` where there is none. Raises
    `Failed` if it cannot be made.

    **Arguments:**

    - `name`: the workload.
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
    """What became of one entry."""

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
    """The median time to trace and compile, in fresh processes: CPU time on one thread, wall time
    on two.

    **Arguments:**

    - `name`: the workload.
    - `entry`: what is compiled.
    - `threads`: 1 or 2.
    - `times`: how many processes.
    """
    found = []
    for _ in range(times):
        with contextlib.suppress(Failed):
            worker = Worker(entry, name, threads)
            found.append(worker.ask("compile")["compile"][threads - 1])
            worker.stop()
    return statistics.median(found) if found else None


def rounds_of(cost: float, rounds: int) -> int:
    """How often something that took `cost` seconds is run: within about 20 s, but twice at least.

    **Arguments:**

    - `cost`: seconds.
    - `rounds`: the most.
    """
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
    """Records of all entries on one workload.

    **Arguments:**

    - `name`: the workload.
    - `entries`: what runs.
    - `threads`: 1 or 2.
    - `rounds`: how many timed rounds.
    - `say`: told what is going on.
    - `compare`: whether there is a reference to agree with.
    - `residual`: whether the residual is computed where there is no reference.
    """
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
    """What a module of the benchmark prints as JSON, run in a fresh process; the reason under
    `error` if it fails.

    **Arguments:**

    - `module`: run with `-m`.
    - `*args`: its arguments.
    - `threads`: as above.
    - `patience`: the seconds it may take.
    """
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
