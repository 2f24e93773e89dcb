"""The loop: `fit` makes many steps, shows them, keeps their records, saves and resumes.

Steps run on the device, some at a time, in a loop of a *variable* number of steps that is compiled
once. How many are made at a time depends on the clock; what they compute does not. A run that is
stopped and resumed therefore ends with the same bits as an uninterrupted one. Nothing is called
back from inside the loop.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._base.checks import error, function, integer
from .._base.types import Params
from .._problem.validate import is_traced
from .batches import AbstractSource, as_source
from .checkpoint import Checkpoints, Snapshot, Store
from .chunk import CAPACITY, Task, as_arrays, run_chunk
from .folder import InUse
from .history import History, columns_of
from .identity import identity
from .optimiser import Optimiser, attempt_of, check_optimiser
from .outcome import Fit, FitError, Report, message
from .progress import Progress
from .telemetry import Telemetry
from .warn import warn

PACE = 0.2
"""For about how many seconds the device runs between two looks at the host."""
STALLED = 20
"""`fit` warns after so many steps in a row that were not taken."""
RISEN = 1e3
"""`fit` warns when the loss is so many times the first one."""


def fit(
    opt: Optimiser,
    params: Params,
    batches: Any = None,
    steps: int = 100,
    *,
    key: PRNGKeyArray | int = 0,
    progress: bool = True,
    callback: Callable[[Report], Any] | None = None,
    telemetry: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoints | None = None,
    resume: bool = True,
    throw: bool = True,
) -> Fit:
    """Train: make steps of an optimiser, and return the outcome.

    ```python
    fit = pb.fit(opt, params, (x, y), steps=100)
    fit.params, fit.history["loss"], fit.plot()
    ```

    Ctrl-C ends the run early; what there is is returned.

    **Arguments:**

    - `opt`: the optimiser: a `NaturalGradientDescent`, or any `Optimiser`.
    - `params`: where to start.
    - `batches`: a tuple `(inputs, targets)`, the same in every step; a function of a PRNG key that
        draws a batch, e.g. `minibatches(batch, size)`; a list or another iterable of batches; or
        `None` for a model without data.
    - `steps`: how many steps to make in all; a resumed run makes the rest. A `ValueError` is
        raised if the checkpoint has more steps than that: fewer cannot be returned.
    - `key`: a PRNG key or a seed, for functions that draw batches.
    - `progress`: whether to show a bar, if standard error is a terminal.
    - `callback`: called with a `Report` between steps, several times a second; the run ends if it
        returns something true.
    - `telemetry`: a file to which the record of every step is appended as one line of JSON. A
        fresh run raises if the file has any content; a resumed run continues its own file. Lines
        that cannot be written (a full disk) are kept and written later, with one warning.
    - `checkpoint`: a folder, or `Checkpoints(folder, every_steps, every_seconds, keep)`. The run is
        saved there, at its end too. One run at a time may use a folder.
    - `resume`: whether to resume from what is in that folder. A run whose optimiser, model,
        batches or key have changed raises a `ValueError` that names what has changed.
    - `throw`: whether a step that failed (a NaN in its batch) raises a `FitError`; otherwise the
        step is skipped. It is recorded in any case, and does not change the parameters.

    **Returns:**

    A `Fit`: `params`, `state`, `history`, `steps`, `seconds`, `ended`, and `plot()`.
    """
    check_optimiser(opt)
    integer("fit", "steps", steps, least=0)
    if is_traced(params):
        raise ValueError(
            "fit is a loop on the host and cannot be called inside jit; scan over opt.step there."
        )
    if callback is not None:
        function("fit", "callback", callback, "fit(callback=lambda report: report.step >= 10)")
    if telemetry is not None and not isinstance(telemetry, str | os.PathLike):
        raise error("fit", "telemetry", telemetry, "a path", 'fit(telemetry="run.jsonl")')
    saving = checkpoint
    if saving is not None and not isinstance(saving, Checkpoints):
        saving = Checkpoints(saving)
    with contextlib.nullcontext() if saving is None else Store(saving) as store:
        run = _Run(
            opt,
            _start(opt, params, batches, key, store, resume),
            steps,
            store=store,
            callback=callback,
            telemetry=None if telemetry is None else Telemetry(Path(telemetry)),
            throw=throw,
        )
        return run.go(batches, progress)


def _start(
    opt: Optimiser,
    params: Params,
    batches: Any,
    key: PRNGKeyArray | int,
    store: Store | None,
    resume: bool,
) -> Snapshot:
    """Return where the run begins: at its start, or at the newest checkpoint."""
    if store is not None and not resume and store.checkpoints.files():
        raise ValueError(
            f"fit(resume=False), but there are checkpoints in {store.folder.path}: name another "
            "folder, or delete them, or resume."
        )
    key = jax.random.key(int(key)) if isinstance(key, int | np.integer) else key
    # Numbers among the parameters are constants of the model, numbers in the state are not.
    params = as_arrays(params, numbers=False)
    fresh = Snapshot(params, as_arrays(opt.init(params)), key, 0, History({}))
    if store is None:
        return fresh
    return store.load(fresh, identity(opt, batches, key, params)) or fresh


class _Run:
    """One call of `fit`: the only mutable object here."""

    def __init__(
        self,
        opt: Optimiser,
        start: Snapshot,
        steps: int,
        *,
        store: Store | None,
        callback: Callable[[Report], Any] | None,
        telemetry: Telemetry | None,
        throw: bool,
    ):
        self.opt = opt
        self.owner = type(opt).__name__
        self.steps = steps
        self.store = store
        self.saving = None if store is None else store.checkpoints
        self.callback = callback
        self.telemetry = telemetry
        self.throw = throw
        self.now = start
        self.parts = [start.history]
        self.begun = time.monotonic()
        self.saved_step = start.step
        self.tried_step = start.step
        self.tried_time = self.begun
        self.shapes: Any = None
        self.warned: set[str] = set()
        self.idle = 0

    def go(self, batches: Any, progress: bool) -> Fit:
        """Run, save, and return the outcome."""
        if self.now.step > self.steps:
            raise ValueError(
                f"fit(steps={self.steps}): the checkpoint in {self.saving and self.saving.folder} "
                f"has {self.now.step} steps, which cannot be undone. Call "
                f"fit(steps={self.now.step}), or name another folder."
            )
        source = as_source(batches, self.now.step)
        if self.telemetry is not None:
            self.telemetry.prepare(self.now.history, self.now.step)
        try:
            with Progress(progress, self.steps, self.now.step) as bar:
                ended = self.loop(source, bar)
        except KeyboardInterrupt:
            ended = "interrupted"
        finally:
            # Whatever ends the run, an error in a callback too: the steps made are good.
            if len(self.parts[-1]) and self.parts[-1]["step"][-1] >= self.now.step:
                self.parts.pop()  # interrupted before they counted
            self.save()
            self.write(last=True)
        return self.result(ended)

    def loop(self, source: AbstractSource, bar: Progress) -> str:
        """Make steps until something ends the run; return what it was."""
        pace = 1
        while self.now.step < self.steps:
            data, count = source.take(min(pace, self.until_saving(), self.steps - self.now.step))
            if count == 0:
                ended = f"the batches ended after {self.now.step}"
                self.warn_once("ended", f"{ended} of {self.steps} steps.")
                return f"{ended} steps"
            self.compare_shapes(data)
            began = time.monotonic()
            rows, failed = self.advance(source, data, count)
            each = (time.monotonic() - began) / max(len(rows), 1)
            pace = int(np.clip(PACE / max(each, 1e-9), 1, min(CAPACITY, 4 * pace)))
            bar.show(self.now.step, rows, each)
            self.watch(rows)
            if self.saving and self.saving.due(self.now.step, self.tried_step, self.tried_time):
                self.save()
            if failed and self.throw:
                self.fail(rows)
            if self.callback is not None and self.callback(self.report(rows)):
                return f"the callback ended it after {self.now.step} steps"
        return f"all {self.steps} steps were made"

    def advance(self, source: AbstractSource, data: Any, count: int) -> tuple[History, bool]:
        """Make steps; return their records, and whether the last one failed."""
        now, parts, failed, unanswered = self.now, [], False, False
        arrays, static = eqx.partition((now.params, now.state), eqx.is_array)
        attempt, made = attempt_of(self.opt), 0
        while made < count and not (failed and self.throw):
            # After an attempt without an answer comes one step that has one, then attempts again,
            # so that what a step computes does not depend on where the run was resumed.
            step = self.opt.step if attempt is None or unanswered else attempt
            task = Task(
                step=step,
                attempts=step is attempt,
                owner=self.owner,
                draw=source.draw,
                data=data,
                key=now.key,
                start=jnp.asarray(now.step),
                first=jnp.asarray(made),
                count=jnp.asarray(made + 1 if unanswered else count),
                static=static,
                stop_on_failure=self.throw,
            )
            chunk = run_chunk(task, *arrays)
            arrays, rows = (chunk.params, chunk.state), range(made, int(chunk.made))
            failed, unanswered, made = bool(chunk.failed), bool(chunk.unanswered), rows.stop
            if rows:
                parts.append(History(columns_of(self.owner, chunk.records, rows, now.step)))
        self.parts.append(History.join(parts))
        params, state = eqx.combine(arrays, static)
        self.now = Snapshot(params, state, now.key, now.step + made, History({}))
        self.write()
        return self.parts[-1], failed

    def until_saving(self) -> int:
        """Return how many steps may be made before the next save by steps."""
        if self.saving is None or self.saving.every_steps is None:
            return CAPACITY
        return self.saving.every_steps - self.now.step % self.saving.every_steps

    def save(self) -> None:
        """Save the run if there is something new and somewhere to save it."""
        if self.store is None or self.now.step == self.saved_step:
            return
        self.tried_step = self.now.step
        self.tried_time = time.monotonic()
        try:
            self.store.save(self.now, self.parts)
            self.saved_step = self.now.step
        except (OSError, InUse) as failure:
            words = f"the checkpoint of step {self.now.step} could not be written ({failure})"
            self.warn_once("checkpoint", f"{words}; the run continues without.")

    def write(self, last: bool = False) -> None:
        """Append the new rows to the telemetry."""
        failure = None if self.telemetry is None else self.telemetry.write(self.parts, last)
        if self.telemetry is not None and failure is not None:
            words = f"{self.telemetry.shown} could not be written ({failure})"
            self.warn_once(
                "telemetry",
                f"{words}; the run continues, and the lines are written when they can be.",
            )

    def compare_shapes(self, data: Any) -> None:
        """Warn once of batches that change their shape."""
        describe = lambda x: (x.shape, str(x.dtype)) if eqx.is_array(x) else x
        shapes = jax.tree.map(describe, data)
        if self.shapes is not None and shapes != self.shapes:
            words = f"the batches change their shape at step {self.now.step}"
            self.warn_once("shapes", f"{words}: each new shape is compiled anew.")
        self.shapes = shapes

    def watch(self, rows: History) -> None:
        """Warn once of a run that gets nowhere."""
        for accepted in rows["accepted"] if "accepted" in rows else ():
            self.idle = 0 if accepted else self.idle + 1
            if self.idle == STALLED:
                self.warn_once(
                    "idle",
                    f"the last {STALLED} steps were not taken, at step {self.now.step}: the run "
                    "has converged, or the step rule is too bold.",
                )
        first = next(part["loss"][0] for part in self.parts if len(part))
        last = rows.losses[-1]
        if last > RISEN * max(abs(first), 1.0):
            self.warn_once(
                "rising",
                f"the loss has risen from {first:.3g} to {last:.3g}: take shorter steps, e.g. "
                "NaturalGradientDescent(..., step=pullback.step.LineSearch()).",
            )

    def warn_once(self, about: str, words: str) -> None:
        """Warn, unless it was done before."""
        if about not in self.warned:
            self.warned.add(about)
            warn(words)

    def report(self, rows: History) -> Report:
        """Return what a callback receives."""
        return Report(self.now.step, self.now.params, self.now.state, rows)

    def fail(self, rows: History) -> NoReturn:
        """Save the run and raise the error of its last step."""
        self.save()
        step = int(rows["step"][-1])
        failure = FitError(
            f"step {step}: {_reason(rows)} The parameters are those before it; "
            "fit(..., throw=False) skips such steps."
        )
        failure.fit = self.result(f"step {step} failed")
        raise failure

    def result(self, ended: str) -> Fit:
        """Return the outcome."""
        return Fit(
            params=self.now.params,
            state=self.now.state,
            history=History.join(self.parts),
            steps=self.now.step,
            seconds=time.monotonic() - self.begun,
            ended=ended,
        )


def _reason(rows: History) -> str:
    """Return why the last of some steps failed."""
    if "result" in rows:
        return message(int(rows["result"][-1]))
    if not np.isfinite(rows["loss"][-1]):
        return f"the loss is {rows['loss'][-1]}."
    if "failed" in rows:
        return "the record of the optimiser reports a failure."
    return "the parameters after it are not finite."
