r"""The loop: `fit` makes many steps, shows them, keeps their records, saves and resumes.

Steps run on the device, some at a time, in a loop of a *variable* number of steps that is compiled
once: how many are made at a time depends on the clock, what they compute does not. So a run that is
stopped and resumed ends with the same bits as one that is not. Nothing is called back from inside
the loop.
"""

import dataclasses
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._base.results import RESULTS
from .._base.types import Params
from .._descent.descent import DescentState, NaturalGradientDescent, Record
from .._natural.outcome import is_traced
from .batches import AbstractSource, as_source
from .checkpoint import Checkpoints, FitWarning, Snapshot, load, save
from .history import History, columns_of, keep_lines, write_lines
from .progress import Progress

CAPACITY = 256
"""How many steps are made at a time, at most."""
PACE = 0.2
"""For how many seconds the device is left alone, about."""
STALLED = 20
"""After so many steps in a row that were not taken the user is told."""


class Report(NamedTuple):
    """What a callback is given."""

    step: int
    """How many steps have been made."""
    params: Params
    state: DescentState
    rows: History
    """The records since the last call."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """The outcome of `fit`."""

    params: Params
    state: DescentState
    history: History
    """One row a step, those before a resumption included."""
    steps: int
    """How many steps have been made in all."""
    seconds: float
    """How long this call took."""
    ended: str
    """Why it ended, in words."""

    def plot(self) -> Any:
        """A matplotlib figure of the history: loss, lengths of the steps, damping and rate, rank."""
        return self.history.plot()


class FitError(RuntimeError):
    """A step failed and `throw=True`. `fit` has what there was: parameters that are finite, and the
    history with the failed step.
    """

    fit: Fit


def fit(
    opt: NaturalGradientDescent,
    params: Params,
    batches: Any = None,
    steps: int = 100,
    *,
    key: Any = 0,
    progress: bool = True,
    callback: Callable[[Report], Any] | None = None,
    telemetry: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | Checkpoints | None = None,
    resume: bool = True,
    throw: bool = True,
) -> Fit:
    """Train.

    **Arguments:**

    - `opt`: the optimiser.
    - `params`: where to start.
    - `batches`: a tuple `(inputs, targets)`, the same in every step; a function of a PRNG key that
        draws a batch (`minibatches(batch, size)` is one); an list or another iterable of batches;
        or `None` for a model without data.
    - `steps`: how many steps to make in all; a resumed run makes the rest.
    - `key`: a PRNG key or a seed, for functions that draw batches.
    - `progress`: whether to show a bar, if standard error is a terminal.
    - `callback`: called with a `Report` between steps, several times a second; the run ends if it
        returns something true.
    - `telemetry`: a file to which the record of every step is written, a line of JSON each.
    - `checkpoint`: a folder, or `Checkpoints(folder, every_steps, every_seconds, keep)`. The run is
        saved there, at its end too.
    - `resume`: whether to go on from what is in that folder.
    - `throw`: whether a step that failed (a NaN in its batch) raises a `FitError`; otherwise it is
        skipped. It is recorded in any case, and the parameters are never touched by it. Ctrl-C is
        no error: what there is is returned.

    **Returns:**

    A `Fit`: `params`, `state`, `history`, `steps`, `seconds`, `ended`, and `plot()`.
    """
    if not isinstance(opt, NaturalGradientDescent):
        raise ValueError(f"fit takes a pullback.NaturalGradientDescent, got {type(opt).__name__}.")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise ValueError(f"fit(steps={steps!r}): steps must be an integer, at least 0.")
    if is_traced(params):
        raise ValueError(
            "fit is a loop on the host and cannot be called inside jit; scan over opt.step there."
        )
    saving = (
        checkpoint
        if isinstance(checkpoint, Checkpoints) or checkpoint is None
        else Checkpoints(checkpoint)
    )
    run = _Run(opt, params, steps, key, saving, resume, callback, telemetry, throw)
    return run.go(batches, progress)


class _Run:
    """One call of `fit`: the only mutable object here."""

    def __init__(self, opt, params, steps, key, saving, resume, callback, telemetry, throw):
        self.opt, self.steps, self.saving, self.callback, self.throw = (
            opt,
            steps,
            saving,
            callback,
            throw,
        )
        self.telemetry = None if telemetry is None else Path(telemetry)
        key = jax.random.key(key) if isinstance(key, int) else key
        # Strongly typed, so that a resumed run compiles the same program.
        params = jax.tree.map(lambda x: jnp.asarray(x, x.dtype) if eqx.is_array(x) else x, params)
        start = Snapshot(params, opt.init(params), key, 0, History({}))
        self.description = eqx.tree_pformat(opt, short_arrays=True)
        if saving is not None and not resume and saving.files():
            raise ValueError(
                f"resume=False, but there are checkpoints in {saving.folder}: give another folder, or remove them, or resume."
            )
        self.now = start if saving is None else load(saving, start, self.description) or start
        self.parts, self.begun = [self.now.history], time.monotonic()
        self.saved_step, self.saved_time = self.now.step, self.begun
        self.told: set[str] = set()
        self.idle = 0

    def go(self, batches: Any, progress: bool) -> Fit:
        source = as_source(batches, self.now.step)
        if self.telemetry is not None:
            keep_lines(self.telemetry, self.now.step)
        ended = ""
        with Progress(progress, self.steps, self.now.step) as bar:
            try:
                ended = self.loop(source, bar)
            except KeyboardInterrupt:
                ended = "interrupted"
        if self.saving is not None and self.now.step > self.saved_step:
            self.save()
        return self.result(ended)

    def loop(self, source: AbstractSource, bar: Progress) -> str:
        pace, shapes = 1, None
        while self.now.step < self.steps:
            data, count = source.take(min(pace, self.until_saving(), self.steps - self.now.step))
            if count == 0:
                self.tell(
                    "ended", f"the batches ended after {self.now.step} of {self.steps} steps."
                )
                return f"the batches ended after {self.now.step} steps"
            found = jax.tree.map(lambda x: (x.shape, str(x.dtype)) if eqx.is_array(x) else x, data)
            if shapes is not None and found != shapes:
                self.tell(
                    "shapes",
                    f"the batches change their shape at step {self.now.step}: each new shape is compiled anew.",
                )
            shapes = found
            began = time.monotonic()
            rows, failed = self.advance(source, data, count)
            each = (time.monotonic() - began) / max(len(rows), 1)
            pace = int(np.clip(PACE / max(each, 1e-9), 1, min(CAPACITY, 4 * pace)))
            bar.show(self.now.step, rows.columns, each)
            self.look(rows)
            if self.saving is not None and self.saving.due(
                self.now.step, self.saved_step, self.saved_time
            ):
                self.save()
            if failed and self.throw:
                self.fail(rows)
            if self.callback is not None and self.callback(
                Report(self.now.step, self.now.params, self.now.state, rows)
            ):
                return f"the callback ended it after {self.now.step} steps"
        return f"all {self.steps} steps were made"

    def advance(self, source: AbstractSource, data: Any, count: int) -> tuple[History, bool]:
        now = self.now
        arrays, static = eqx.partition(now.params, eqx.is_array)
        moved, state, records, made, failed = _chunk(
            self.opt,
            static,
            source.draw,
            arrays,
            now.state,
            now.key,
            data,
            jnp.asarray(now.step),
            jnp.asarray(count),
            self.throw,
        )
        made = int(made)
        rows = History(columns_of(records, made))
        self.parts.append(rows)
        self.now = Snapshot(
            eqx.combine(moved, static), state, now.key, now.step + made, History({})
        )
        if self.telemetry is not None:
            write_lines(self.telemetry, rows, 0)
        return rows, bool(failed)

    def until_saving(self) -> int:
        """How many steps may be made before the next save by steps."""
        if self.saving is None or self.saving.every_steps is None:
            return CAPACITY
        return self.saving.every_steps - self.now.step % self.saving.every_steps

    def save(self) -> None:
        self.saved_step, self.saved_time = self.now.step, time.monotonic()
        try:
            save(
                self.saving,
                dataclasses.replace(self.now, history=History.join(self.parts)),
                self.description,
            )
        except OSError as error:
            self.tell(
                "disk",
                f"the checkpoint of step {self.now.step} could not be written ({error}); the run goes on without.",
            )

    def look(self, rows: History) -> None:
        """Tell the user once of a run that gets nowhere."""
        for taken in rows["accepted"]:
            self.idle = 0 if taken else self.idle + 1
            if self.idle == STALLED:
                self.tell(
                    "idle",
                    f"the last {STALLED} steps were not taken, at step {self.now.step}: converged, or a step rule that is too bold.",
                )
        first = next(part["loss"][0] for part in self.parts if len(part))
        last = rows["loss_after"][-1]
        if last > 1e3 * max(abs(first), 1.0):
            self.tell(
                "rising",
                f"the loss has risen from {first:.3g} to {last:.3g}: use step=pullback.step.LineSearch() or LevenbergMarquardt().",
            )

    def tell(self, about: str, words: str) -> None:
        if about not in self.told:
            self.told.add(about)
            warnings.warn(words, FitWarning, stacklevel=6)

    def fail(self, rows: History) -> None:
        code, step = int(rows["result"][-1]), int(rows["step"][-1])
        if self.saving is not None and self.now.step > self.saved_step:
            self.save()
        error = FitError(
            f"step {step}: {message(code)} The parameters are those before it; fit(..., throw=False) skips such steps."
        )
        error.fit = self.result(f"step {step} failed")
        raise error

    def result(self, ended: str) -> Fit:
        history, seconds = History.join(self.parts), time.monotonic() - self.begun
        return Fit(self.now.params, self.now.state, history, self.now.step, seconds, ended)


def message(code: int) -> str:
    """The words behind a code in the column `result`."""
    item = jax.tree.map(lambda _: jnp.asarray(code, jnp.int32), RESULTS.successful)
    return RESULTS[item] or "successful."


@eqx.filter_jit
def _chunk(opt, static, draw, params, state, key, data, start, count, stop_on_failure):
    """Up to `CAPACITY` steps; how many is data."""

    def one(params, state, place):
        batch = draw(data, jax.random.fold_in(key, start + place), place)
        new, state, record = opt.step(eqx.combine(params, static), state, batch)
        return eqx.filter(new, eqx.is_array), state, record

    like: Record = eqx.filter_eval_shape(one, params, state, jnp.asarray(0))[2]
    empty = jax.tree.map(lambda x: jnp.zeros((CAPACITY, *x.shape), x.dtype), like)

    def again(carry):
        place, _, _, _, failed = carry
        return (place < count) & ~(failed & stop_on_failure)

    def body(carry):
        place, params, state, records, _ = carry
        params, state, record = one(params, state, place)
        records = jax.tree.map(lambda column, x: column.at[place].set(x), records, record)
        return place + 1, params, state, records, record.failed

    place, params, state, records, failed = jax.lax.while_loop(
        again, body, (jnp.zeros_like(count), params, state, empty, jnp.asarray(False))
    )
    return params, state, records, place, failed
