"""Solves an equation from a seed and measures the error against steps and wall-clock time.

With a folder, a run resumes after any interruption: `fit` saves parameters and state there, and
each measurement is appended to `measured.jsonl` and flushed. At the end `run.json` says how many
steps were asked for and made, whether the run was stopped before, the version and the date.
"""

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pullback import (
    Checkpoints,
    NaturalGradientDescent,
    Report,
    Spring,
    Tikhonov,
    __version__,
    fit,
)
from pullback.pde import Equation
from pullback.step import AbstractStep, Fixed, Geodesic, GridSearch, LevenbergMarquardt

from .cases import Case, as_case, case

SPRINGS = {
    "D": (Fixed(0.0635), 6.8e-10, Spring(0.827, max_step=1e-3**0.5, corrected=True)),
    "F": (GridSearch(), 1.7e-7, Spring(0.905, corrected=True)),
    "F'": (Fixed(0.0603), 5.0e-5, Spring(0.968, max_step=1e-3**0.5, corrected=True)),
    "G": (Fixed(0.0924), 3.0e-2, Spring(0.984, max_step=1e-3**0.5, corrected=True)),
}
"""The published rule, damping and momentum (arXiv 2505.12149, best runs)."""
OWN = {"F'": (Fixed(0.1), 1e-3, Spring(0.9))}
"""The same, chosen by us."""
SAVE_SECONDS = 30.0
"""How often a run is saved."""


class Measured(NamedTuple):
    """The error at a moment of a run."""

    step: int
    seconds: float
    """The time of training with compilation, without the measurements."""
    cpu: float
    """The same time on the clock of the processor, which other programs do not change."""
    loss: float
    error: float
    """The root mean square error."""
    relative: float
    """The error relative to the root mean square of the solution."""


def optimiser(
    equation: Equation,
    momentum: bool = True,
    published: bool = False,
    field=None,
    memory: float | None = None,
) -> NaturalGradientDescent:
    """The optimiser of an equation.

    Levenberg-Marquardt with second-order correction; with fewer points than parameters, damped
    natural gradients with `Spring`, with the published numbers if `published` or if we have none.
    Where points are renewed and the equation has a `whole`, the rate falls. `memory` is the weight
    of the past in an average of the metric.
    """
    problem = equation.problem() if field is None else equation.problem(field)
    batch = jax.eval_shape(equation.points, jax.random.key(0))
    points = sum(jax.tree.leaves(part)[0].shape[0] for part in batch.values())
    if equation.widths is not None and points < equation.size:
        # A line search would fit the few points of the step, and the loss on the next ones would
        # grow.
        numbers = SPRINGS if published else SPRINGS | OWN
        rule, damping, spring = numbers.get(equation.name, OWN["F'"])
        return NaturalGradientDescent(
            problem, inverse=Tikhonov(damping), step=rule, momentum=spring if momentum else None,
            metric_memory=memory,
        )  # fmt: skip
    rule: AbstractStep = LevenbergMarquardt()
    if equation.renewed and equation.whole:
        # The gain on the points of the step lets the damping shrink to zero, so it has a minimum.
        rule = LevenbergMarquardt(
            rate=lambda count: jnp.minimum(1.0, equation.whole / (count + 1)), minimum=1e-9
        )
    return NaturalGradientDescent(problem, step=Geodesic(rule), metric_memory=memory)


class Notes:
    """The measurements of a run, in memory and, if there is a folder, on the disk."""

    def __init__(self, folder: Path | None):
        self.path = None if folder is None else folder / "measured.jsonl"
        self.found: list[Measured] = []
        if self.path is not None and self.path.exists():
            self.found = [Measured(**row) for row in _complete_lines(self.path)]

    def resume(self, step: int) -> np.ndarray:
        """Forget what was measured after a step; return the clocks there."""
        clocks = np.array([[m.seconds, m.cpu] for m in self.found] or [[0.0, 0.0]])
        steps = [m.step for m in self.found] or [0]
        at = np.array([np.interp(step, steps, clock) for clock in clocks.T])
        if step > steps[-1] > 0:
            # Saved after the last measurement: at the pace so far.
            at = clocks[-1] * step / steps[-1]
        self.found = [m for m in self.found if m.step <= step]
        if self.path is not None:
            text = "".join(json.dumps(m._asdict()) + "\n" for m in self.found)
            self._write(text, "w")
        return at

    def add(self, measured: Measured) -> None:
        """Keep a measurement."""
        self.found.append(measured)
        self._write(json.dumps(measured._asdict()) + "\n", "a")

    def end(self, steps: int, complete: bool, **more: float) -> None:
        """Write down how the run ended, unless that is known: then version and date stay."""
        if self.path is None:
            return
        note = {"complete": complete, "steps": steps, "made": self.found[-1].step} | more
        path = self.path.with_name("run.json")
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not note.items() <= known.items():
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            note |= {"version": __version__, "date": today}
            path.write_text(json.dumps(note) + "\n", encoding="utf-8")

    def _write(self, text: str, mode: str) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file up to the first that was not written whole."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def solve(
    equation: Equation | Case,
    opt: NaturalGradientDescent,
    seed: int,
    steps: int,
    seconds: float,
    every: int,
    progress: bool = True,
    folder: Path | None = None,
) -> list[Measured]:
    """Train from a seed; returns the measurements, at every multiple of `every` and at the end."""
    chosen = equation if isinstance(equation, Case) else as_case(equation)
    start, points, draws, test = jax.random.split(jax.random.key(seed), 4)
    params = chosen.start(start)
    compare = chosen.test(test)
    measure = jax.jit(chosen.errors)
    notes = Notes(folder)
    saved = None if folder is None else Checkpoints(folder, every_seconds=SAVE_SECONDS)
    begun = 0 if saved is None or not saved.files() else _newest(saved)
    loss = float("nan")

    def now() -> np.ndarray:
        return np.array([time.monotonic(), time.process_time()])

    began = now() - notes.resume(begun)
    outside = np.zeros(2)

    def note(params: PyTree, step: int) -> None:
        nonlocal outside
        stopped = now()
        error, relative = (float(x) for x in measure(params, *compare))
        notes.add(Measured(step, *(stopped - began - outside), loss, error, relative))
        outside = outside + now() - stopped

    def watch(report: Report) -> bool:
        nonlocal loss
        loss = float(report.rows["loss_after"][-1])
        if report.step % every == 0 and report.step > notes.found[-1].step:
            note(report.params, report.step)
        return late()

    def late() -> bool:
        return bool((now() - began - outside)[0] >= seconds)

    if not notes.found:
        note(params, 0)
    if late() or begun >= steps:
        notes.end(steps, begun >= steps)
        return notes.found
    batches = chosen.equation.batches(points, chosen.field)
    # `fit` makes several steps at once, but stops where it evaluates: there `watch` measures.
    done = fit(
        opt, params, batches, steps, key=draws, evaluate=lambda params: {}, every=every,
        callback=watch, progress=progress, checkpoint=saved,
    )  # fmt: skip
    if notes.found[-1].step != done.steps:
        note(done.params, done.steps)
    notes.end(steps, done.steps >= steps or not (late() or done.ended == "interrupted"))
    return notes.found


def interval(steps: int) -> int:
    """How many steps lie between two measurements: a divisor of all `MARKS`, 10 in long runs."""
    return max(every for every in (1, 2, 5, 10) if every == 1 or 10 * every <= steps)


def _newest(saved: Checkpoints) -> int:
    """The step of the newest checkpoint."""
    return max(int(Path(path).stem.split("-")[1]) for path in saved.files())


def one(
    name: str,
    seed: int,
    steps: int,
    seconds: float,
    momentum: bool,
    progress: bool,
    published: bool = False,
    folder: Path | None = None,
    memory: float | None = None,
) -> list[Measured]:
    """One run, in the process that calls it."""
    jax.config.update("jax_enable_x64", True)
    chosen = case(name, published)
    opt = optimiser(chosen.equation, momentum, published, chosen.field, memory)
    return solve(chosen, opt, seed, steps, seconds, interval(steps), progress, folder)
