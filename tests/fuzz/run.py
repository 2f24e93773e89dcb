"""Runs fuzzed problems in a process of their own, and keeps the results as JSON lines.

A run that is interrupted resumes: problems whose result is in the file are not run again. The name
of the file contains a fingerprint of the sources, so that changed sources start afresh. A process
that ends (a segmentation fault) is a `crash` of the problem that it had begun.
"""

import collections
import hashlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from .generate import EACH, problem

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "fuzz"
MAPS = Path("/proc/self/maps")


def configure() -> None:
    """Set JAX up as the tests do: float64, strict promotion."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


def forget_programs() -> None:
    """Clear JAX's caches before the limit of Linux on memory mappings (see tests/conftest.py)."""
    import jax

    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()


def fingerprint() -> str:
    """Return a short hash of what the results depend on."""
    digest = hashlib.sha256()
    for folder in ("src/pullback", "tests/fuzz"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def line_of(record: dict[str, Any]) -> str:
    """Return one failure as a line that reproduces it."""
    names = ("dtype", "metric", "loss", "solver", "inverse", "gauge", "measure", "scenario")
    known = f" [known: {record['known']}]" if record.get("known") else ""
    sizes = f"error {record['error']:.1e}, allowed {record['allowed']:.1e}"
    return (
        f"{record['outcome']}{known}: python -m tests.fuzz --seed {record['seed']} "
        f"--only {record['index']}  ({', '.join(str(record[n]) for n in names)}; {sizes}; "
        f"{record['detail'][:200]})"
    )


def one(seed: int, index: int) -> dict[str, Any]:
    """Return the record of one problem."""
    from . import judge
    from .known import known

    given = problem(seed, index)
    try:
        verdict = judge.judge(given)
    except Exception:
        verdict = judge.Verdict("unjudged", traceback.format_exc()[-500:])
    record = judge.as_record(given, verdict)
    record["known"] = known(given, verdict) if verdict.outcome in judge.BAD else ""
    return record


def work(seed: int, indices: list[int], path: Path) -> None:
    """Run problems in this process; append a line before and one after each."""
    configure()
    with path.open("a", buffering=1) as file:
        for index in indices:
            file.write(json.dumps({"started": index}) + "\n")
            file.write(json.dumps(one(seed, index)) + "\n")
            if index % EACH == EACH - 1:
                forget_programs()


def read(path: Path) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """Return the records by index, and what was begun and not finished."""
    records, begun = {}, set()
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue  # The line that was being written when the run was killed.
            if "started" in entry:
                begun.add(entry["started"])
            else:
                records[entry["index"]] = entry
    return records, begun - set(records)


def sweep(seed: int, count: int, folder: Path = FOLDER) -> dict[int, dict[str, Any]]:
    """Run what is missing of `count` problems, and return all records."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed}-{fingerprint()}.jsonl"
    print(f"fuzz: seed {seed}, {count} problems, results in {path}", flush=True)
    shown: set[int] = set()
    crashed: collections.Counter[int] = collections.Counter()
    while True:
        records, begun = read(path)
        _show(records, shown)
        missing = [i for i in range(count) if i not in records]
        if not missing:
            return {i: records[i] for i in range(count)}
        chunk = missing[: 20 * EACH]
        words = [sys.executable, "-m", "tests.fuzz", "--seed", str(seed), "--work", str(path)]
        words += ["--indices", ",".join(map(str, chunk))]
        code = subprocess.run(words, cwd=ROOT, env=os.environ, check=False).returncode
        _, begun = read(path)
        for index in begun:
            crashed[index] += 1
            # Killed from outside, it is tried once more.
            if crashed[index] == 2 or (code < 0 and code not in (-2, -9, -15)):
                _record_crash(seed, index, code, path)
        if code > 0:
            raise SystemExit(f"fuzz: the harness failed, code {code}")


def _record_crash(seed: int, index: int, code: int, path: Path) -> None:
    from . import judge
    from .known import known

    given = problem(seed, index)
    verdict = judge.Verdict("crash", f"the process ended with code {code}")
    record = judge.as_record(given, verdict) | {"known": known(given, verdict)}
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def _show(records: dict[int, dict[str, Any]], shown: set[int]) -> None:
    from .judge import BAD

    for index in sorted(set(records) - shown):
        if records[index]["outcome"] in BAD:
            print(line_of(records[index]), flush=True)
    shown.update(records)
    print(f"fuzz: {len(records)} done", flush=True)


def summary(seed: int, records: dict[int, dict[str, Any]]) -> str:
    """Return the count by outcome, in one line."""
    from .judge import OUTCOMES

    counts = collections.Counter(record["outcome"] for record in records.values())
    known = sum(bool(record.get("known")) for record in records.values())
    listed = ", ".join(f"{name} {counts[name]}" for name in OUTCOMES)
    return f"fuzz: {len(records)} problems, seed {seed}: {listed}; of these known {known}"


def unexpected(records: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the failures that are not listed as known."""
    from .judge import BAD

    return [r for r in records.values() if r["outcome"] in BAD and not r.get("known")]
