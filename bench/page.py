"""Writes `docs/benchmarks.md` from the results: goals, a table per workload, the method."""

import datetime
import math
from typing import Any

from . import scaling
from .entries import FLOOR, OURS
from .goals import GOALS, Results
from .measure import SHORT, WARM
from .problems import TABLES, WORKLOADS, flat, make

GRADIENT = "gradient"
"""Tables with a gradient are read against the one that stands above."""

HEAD = """# Benchmarks

Written by `make bench` ({when}, {rounds} rounds{peers}); nothing on this page is typed by hand.
Read times as ratios within one run.

"""

METHOD = """
## How it is measured

- **One thread**: each approach is a process of its own, pinned to one core, with every thread pool
  of size one; its CPU time counts. **Two threads**: two cores, pools of two, wall time; approaches
  that take more than {slow:g} s are left out there.
- Approaches take turns: in each round, each runs once. The table gives medians of n rounds after a
  first run; what takes seconds gets fewer rounds. Runs shorter than {warm:g} s are made once
  untimed at the beginning of each turn (a training loop finds its caches warm), those shorter than
  {short:g} s are repeated within a round.
- Agreement comes first: error is ‖v − v*‖/‖v*‖ with v* computed in float64 by arithmetic that
  shares no code with pullback (`bench/reference.py`), and whose residual in (G + λ) v = g is below
  1e-8. What is off by 1e-3 or more is not timed.
- Peak MB is the high-water mark of resident memory in a fresh process above what it held before
  the first call, compilation included; beside it that of the first run alone, above what was held
  once compiled.
- `pullback` returns the vector alone: what only its certificate and its statistics need is not
  computed. On W2p, P5 and P10 the whole call stands beside it.
- Every process asks for huge pages (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`): otherwise Linux
  zeroes freshly allocated memory in pages of 4 KB, which can take longer than a product, and only
  NumPy, with it the floor, asks for huge pages itself. W1 and W4 also have ours without them.
- Problems: random weights, random inputs, random labels; damping λ = 1e-3 (softmax) and 1e-6 (W2,
  W2p). The time of a direct solve does not depend on them; the iterations of conjugate gradients
  do, and differ on a trained network.
- **The floor** is measured in the same rounds: the BLAS and LAPACK calls (SciPy) that the
  structured algorithm cannot avoid, in their very shapes and the workload's dtype, and nothing
  else: forward and backward products, the lower half of the kernel's products (each layer by the
  cheaper of its two ways; for more rows than parameters, outputs contracted before samples), one
  Cholesky factorisation, two triangular solves, one pull-back. Elementwise work and memory traffic
  between the calls are free. It is a floor of this algorithm, not a proof
  (`bench/peers/floor.py`).
- Peers run as their documentation shows, untuned, in the versions below; neural-tangents needs an
  old JAX, so its ratios mix library and version. Where a library gives a kernel, a Jacobian or a
  product only, the softmax factor and the Cholesky solve around it are ours (`bench/peers/`).
  netket differentiates scalars: every input appears once with each class there.

Rerun: `make bench` (everything; builds the peers' environments in `bench/.venvs` when first
needed), `python -m bench W1 W2` (some), `python -m bench --no-peers`, `pullback bench --quick`
(ours and the floor, under two minutes, writes nothing). Raw numbers: `bench/results.json`.
"""


def _table(header: list[str], lines: list[list[str]], align: str) -> str:
    rule = "|".join({"l": ":--", "r": "--:"}[a] for a in align)
    return (
        "\n".join(
            [
                "| " + " | ".join(header) + " |",
                f"|{rule}|",
                *("| " + " | ".join(line) + " |" for line in lines),
            ]
        )
        + "\n"
    )


def seconds(value: float | None) -> str:
    """Three digits, in s or ms."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3g} s" if value >= 0.1 else f"{1e3 * value:.3g} ms"


def _number(record: dict[str, Any], key: str, form: str) -> str:
    value = record.get(key)
    return "-" if value is None or math.isnan(value) else format(value, form)


def goals(results: Results) -> str:
    """The table of goals."""
    lines = [goal.line(results) for goal in GOALS]
    columns = ["subject", "text", "measured", "goal", "verdict"]
    met = sum(line["verdict"] == "met" for line in lines)
    missed = sum("missed" in line["verdict"] for line in lines)
    text = (
        f"{met} met, {missed} missed, {len(lines) - met - missed} not measured. One thread "
        "unless said otherwise.\n\n"
    )
    return text + _table(
        ["", "", "measured", "goal", ""], [[line[c] for c in columns] for line in lines], "llrrl"
    )


def _find(records: list[dict[str, Any]], label: str) -> dict[str, Any]:
    return next((r for r in records if r["approach"] == label), {})


def workload(results: Results, name: str) -> str:
    """The table of one workload."""
    one = results.get("threads1", {}).get(name, [])
    two = results.get("threads2", {}).get(name, [])
    ours = _find(one, OURS.label).get("seconds")
    floor = _find(one, FLOOR.label).get("seconds")
    base = ours
    ours2 = _find(two, OURS.label).get("seconds")
    lines = []
    notes = []
    for record in one:
        time = record.get("seconds")
        other = _find(two, record["approach"])
        if GRADIENT in record["approach"]:
            base = time
        is_floor = record["approach"] == FLOOR.label
        if time is None:
            notes.append(f"- {record['approach']}: {record['status']}")
            continue
        lines.append(
            [
                record["approach"],
                seconds(time),
                f"{time / base:.2f}" if base else "-",
                f"{time / floor:.2f}" if floor else "-",
                seconds(other.get("seconds")),
                f"{other['seconds'] / ours2:.2f}" if ours2 and "seconds" in other else "-",
                "-" if is_floor else _number(record, "peak", ".0f"),
                "-" if is_floor else _number(record, "peak_run", ".0f"),
                _number(record, "error", ".0e"),
                str(record["n"]),
            ]
        )
    first = "/ gradient" if any(GRADIENT in record["approach"] for record in one) else "/ ours"
    header = [
        "approach",
        "1 thread, CPU",
        first,
        "/ floor",
        "2 threads, wall",
        "/ ours",
        "peak MB",
        "of a run",
        "error",
        "n",
    ]
    return _table(header, lines, "lrrrrrrrrr") + ("\n" + "\n".join(notes) + "\n" if notes else "")


def _title(name: str) -> str:
    w = WORKLOADS[name]
    if w.kind == "product":
        return f"## {name}: {w.title}\n\n"
    rows, size = (f"{n:,}".replace(",", " ") for n in (w.rows, flat(make(w)[0]).size))
    return (
        f"## {name}: {w.title}\n\nm = {rows} rows, P = {size} parameters, damping "
        f"{w.damping:g}.\n\n"
    )


def _when(text: str) -> str:
    return datetime.datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M UTC")


def _earlier(results: Results, name: str) -> str:
    """Says so if a table is not of the last run."""
    run = results.get("runs", {}).get(name, results["when"])
    return "" if run == results["when"] else f"From an earlier run, {_when(run)}.\n\n"


def _versions(results: Results) -> str:
    found: dict[str, str] = {}
    for records in results.get("threads1", {}).values():
        for record in records:
            versions = record.get("versions", {})
            name = next(iter(versions), None)
            if name:
                found[name] = ", ".join(f"{k} {v}" for k, v in versions.items())
    return "\n".join(f"- {line}" for line in found.values())


def page(results: Results) -> str:
    """The whole page."""
    out = HEAD.format(
        when=_when(results["when"]),
        rounds=results["rounds"],
        peers="" if results["peers"] else ", without peers",
    )
    out += "## Goals\n\n" + goals(results) + "\n"
    for name in TABLES:
        if name in results.get("threads1", {}):
            out += _title(name) + _earlier(results, name) + workload(results, name) + "\n"
            if name == "W4" and "W4 products" in results["threads1"]:
                out += (
                    "Single operations on W4, in a loop of ten after one linearisation:\n\n"
                    + workload(results, "W4 products")
                    + "\n"
                )
    if "krylov" in results and "error" not in results["krylov"]:
        out += "## Krylov\n\n" + _krylov(results["krylov"]) + "\n"
    if "large" in results:
        out += "## W1 with N = 4096\n\n" + _large(results["large"]) + "\n"
    if "scaling" in results:
        out += scaling.section(results["scaling"]) + "\n"
    machine = results["machine"]
    out += (
        f"## Machine and versions\n\n{machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory']} GB, Python {machine['python']}. The load average was "
        f"{results['load']:.1f} when the run began; two threads want a quiet machine.\n\n"
    )
    return (
        out
        + _versions(results)
        + "\n"
        + METHOD.format(slow=results["slow"], warm=WARM, short=SHORT)
    )


def _krylov(found: dict[str, Any]) -> str:
    counts = {"none": found["plain"], **found["preconditioned"]}
    lines = [
        [name, *(str(count or "not reached") for count in row)] for name, row in counts.items()
    ]
    text = (
        f"W1 after {found['steps']} steps, damping {found['damping']:g}: products with A and Aᵀ "
        "to a true residual, those that a preconditioner is built from included.\n\n"
    )
    return text + _table(
        ["preconditioner", *(f"{residual:g}" for residual in found["residuals"])],
        lines,
        "l" + "r" * len(found["residuals"]),
    )


def _large(record: dict[str, Any]) -> str:
    if "peak" not in record:
        return f"Not run: {record.get('status')}\n"
    return (
        f"One natural gradient took {seconds(record['first'])} of CPU time and "
        f"{record['peak']:.0f} MB above the model; the relative residual of (G + λ) v = g, in "
        f"float64, is {record.get('residual', math.nan):.0e}.\n"
    )
