"""The loop: `fit` makes many steps, shows them, keeps their records, saves and resumes.

Steps run on the device, some at a time, in a loop of a *variable* number of steps that is compiled
once. How many are made at a time depends on the clock; what they compute does not. A run that is
stopped and resumed therefore ends with the same bits as an uninterrupted one. Nothing is called
back from inside the loop.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._base.types import Params
from ..until import AbstractEvent
from .arguments import as_key, check_arguments
from .batches import AbstractSource, as_source, first_state
from .checkpoint import Checkpoints, Snapshot, Store
from .chunk import CAPACITY, Task, as_arrays, run_chunk
from .devices import Devices, placed
from .ending import Ending
from .epochs import Epochs
from .failure import reason
from .folder import InUse
from .history import History, columns_of
from .identity import identity
from .looks import Looks
from .optimiser import Optimiser, attempt_of, check_optimiser, check_state
from .outcome import Fit, FitError, Report
from .processes import digest
from .progress import Progress
from .telemetry import Telemetry
from .terms import read_by
from .watch import Watch

PACE = 0.2
"""For about how many seconds the device runs between two looks at the host."""


def fit(
    opt: Optimiser,
    params: Params,
    batches: Any = None,
    steps: int = 100,
    *,
    key: PRNGKeyArray | int = 0,
    state: Any = None,
    validate: Any = None,
    evaluate: Callable[[Params], Any] | None = None,
    every: int | Epochs | None = None,
    until: AbstractEvent | Sequence[AbstractEvent] | None = None,
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
        draws a batch, e.g. `minibatches(batch, size)`, or of a key and the parameters; a `Sampler`,
        which has a state; a list or another iterable of batches; or `None` for a model without
        data. A batch of `Terms` is a dictionary, or a tuple, of one batch per term.
    - `steps`: how many steps to make in all; a resumed run makes the rest. A `ValueError` is
        raised if the checkpoint has more steps than that: fewer cannot be returned.
    - `key`: a PRNG key or a seed, for functions that draw batches.
    - `state`: the state of the optimiser to start from, e.g. `state=fit.state` of an earlier run
        with another rate; defaults to `opt.init(params)`.
    - `validate`: held-out `(inputs, targets)`, or a function of a PRNG key that draws them. Their
        loss is `history["validation"]`. A `FitWarning` tells once when it departs: when it rises
        while the training loss falls.
    - `evaluate`: `evaluate(params)` returns a number, the column "evaluation" of the history, or a
        dictionary of numbers, one column each. It runs on the host, once before the first step too.
    - `every`: how many steps lie between two calls of `evaluate` and two held-out losses, which
        are also computed after the last step; NaN in the rows between. `Epochs(1)` counts passes
        over the samples. Defaults to `steps // 50`.
    - `until`: one of `pullback.until` or a list of them: events that end the run. Defaults to
        `until.Stuck(50)` if every step has the same batch, so that a run ends when no step is
        taken any more; otherwise, and with `until=()`, all steps are made.
    - `progress`: whether to show a bar, in a notebook or if standard error is a terminal.
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

    A `Fit`: `params`, `state`, `sampler`, `history`, `steps`, `seconds`, `ended`, and `plot()`.
    """
    check_optimiser(opt)
    check_arguments(params, steps, callback, telemetry)
    key = as_key(key)
    batches = read_by(opt, batches)
    validate = None if validate is None else read_by(opt, validate)
    looks = Looks(opt, validate, evaluate, every, steps, key, batches)
    saving = checkpoint
    if saving is not None and not isinstance(saving, Checkpoints):
        saving = Checkpoints(saving)
    devices = Devices(opt, batches)
    processes = devices.processes
    with contextlib.ExitStack() as stack:
        enter = lambda: None if saving is None else stack.enter_context(processes.store(saving))
        store = processes.together(enter)
        start = lambda: _start(opt, params, batches, key, state, store, resume)
        begin = processes.together(start)
        processes.check(steps=steps, key=digest(key), checkpoint=begin.step)
        if begin.step > steps:
            raise ValueError(
                f"fit(steps={steps}): the checkpoint in {saving and saving.folder} has "
                f"{begin.step} steps, which cannot be undone. Call fit(steps={begin.step}), or "
                "name another folder."
            )
        source = as_source(batches, begin.step)
        run = _Run(
            opt,
            begin,
            steps,
            store=store,
            callback=callback,
            telemetry=None if telemetry is None else processes.only_first(Telemetry, telemetry),
            throw=throw,
            looks=looks,
            devices=devices,
            ending=Ending(until, source.same, begin.history),
            watch=Watch(source.same, begin.history),
            continued=state is not None,
        )
        return run.go(source, progress)


def _start(
    opt: Optimiser,
    params: Params,
    batches: Any,
    key: PRNGKeyArray,
    state: Any,
    store: Store | None,
    resume: bool,
) -> Snapshot:
    """Return where the run begins: at its start, or at the newest checkpoint."""
    if store is not None and not resume and store.checkpoints.files():
        raise ValueError(
            f"fit(resume=False), but there are checkpoints in {store.folder.path}: name another "
            "folder, or delete them, or resume."
        )
    # Numbers among the parameters are constants of the model, numbers in the state are not.
    params = as_arrays(params, numbers=False)
    begin = as_arrays(opt.init(params))
    if state is not None:
        check_state(type(opt).__name__, begin, as_arrays(state))
        begin = as_arrays(state)
    sampler = as_arrays(first_state(batches, key, params))
    fresh = Snapshot(params, begin, key, 0, History({}), sampler)
    if store is None:
        return fresh
    saved = store.load(fresh, identity(opt, batches, key, params, state))
    return fresh if saved is None else placed(saved, fresh)


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
        looks: Looks,
        devices: Devices,
        ending: Ending,
        watch: Watch,
        continued: bool,
    ):
        self.opt = opt
        self.owner = type(opt).__name__
        self.steps = steps
        self.store = store
        self.saving = None if store is None else store.checkpoints
        self.callback = callback
        self.telemetry = telemetry
        self.throw = throw
        self.looks = looks
        self.devices = devices
        self.ending = ending
        self.watch = watch
        self.continued = continued
        self.now = start
        self.parts = [start.history]
        self.begun = time.monotonic()
        self.saved_step = start.step
        self.tried_step = start.step
        self.tried_time = self.begun

    def go(self, source: AbstractSource, progress: bool) -> Fit:
        """Run, save, and return the outcome."""
        if self.telemetry is not None:
            self.telemetry.prepare(self.now.history, self.now.step)
        try:
            shown = progress and self.devices.processes.first
            with Progress(shown, self.steps, self.now.step) as bar:
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
        pace, agreed = 1, self.devices.processes.agreed
        if self.now.step < self.steps and self.ending.now is None:
            self.looks.prepare(self.now.params)
        while self.now.step < self.steps and self.ending.now is None:
            limit = min(agreed(pace), self.until_pause(), self.steps - self.now.step)
            data, count = source.take(limit)
            if count == 0:
                ended = f"the batches ended after {self.now.step}"
                self.watch.once("ended", f"{ended} of {self.steps} steps.")
                return f"{ended} steps"
            self.watch.batch(data, self.now.step)
            began = time.monotonic()
            rows, failed = self.advance(source, data, count)
            each = (time.monotonic() - began) / max(len(rows), 1)
            pace = int(np.clip(PACE / max(each, 1e-9), 1, min(CAPACITY, 4 * pace)))
            if self.looks.due(self.now.step, last=self.ending.first(rows) is not None):
                self.looks.look(self.now.params, self.now.step, rows)
            self.ending.note(rows)
            self.write()
            bar.show(self.now.step, rows, each)
            self.watch.rows(rows)
            if self.saving and self.saving.due(self.now.step, self.tried_step, self.tried_time):
                self.save()
            if failed and self.throw:
                self.fail(rows, source)
            if self.callback is not None and agreed(bool(self.callback(self.report(rows)))):
                return f"the callback ended it after {self.now.step} steps"
        if self.now.step < self.steps:
            return f"{self.ending.now}, after {self.now.step} steps"
        return f"all {self.steps} steps were made"

    def advance(self, source: AbstractSource, data: Any, count: int) -> tuple[History, bool]:
        """Make steps up to an event; return their records, and whether the last one failed."""
        now, rows, failed = self.made(source, data, count)
        place = self.ending.first(rows)
        if place is not None and place + 1 < len(rows):
            # An event within the chunk: its end must not depend on how many steps were made at
            # once, so they are made again, up to the event.
            now, rows, failed = self.made(source, data, place + 1)
        self.parts.append(rows)
        self.now = now
        return rows, failed

    def made(self, source: AbstractSource, data: Any, count: int) -> tuple[Snapshot, History, bool]:
        """Return where some steps lead, their records, and whether the last one failed."""
        now, parts, failed, unanswered = self.now, [], False, False
        arrays, static = eqx.partition((now.params, now.state, now.sampler), eqx.is_array)
        arrays, data = self.devices.enter((arrays, data))
        # Numbers of the optimiser as data: another rate compiles nothing.
        opt: Optimiser = getattr(self.opt, "as_data", lambda: self.opt)()
        opt = self.devices.informed(opt)
        attempt, made = attempt_of(opt), 0
        while made < count and not (failed and self.throw):
            # After an attempt without an answer comes one step that has one, then attempts again,
            # so that what a step computes does not depend on where the run was resumed.
            step = opt.step if attempt is None or unanswered else attempt
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
            with self.devices.around():
                chunk = run_chunk(task, *arrays)
            arrays = (chunk.params, chunk.state, chunk.sampler)
            rows = range(made, int(chunk.made))
            failed, unanswered, made = bool(chunk.failed), bool(chunk.unanswered), rows.stop
            if rows:
                columns = columns_of(self.owner, chunk.records, rows, now.step, self.continued)
                parts.append(History(columns))
        params, state, sampler = eqx.combine(self.devices.leave(arrays), static)
        there = Snapshot(params, state, now.key, now.step + made, History({}), sampler)
        return there, self.looks.widened(self.owner, History.join(parts)), failed

    def until_pause(self) -> int:
        """Return how many steps may be made before the next save by steps, or the next look."""
        return min(self.until_saving(), self.looks.until_next(self.now.step, CAPACITY))

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
            self.watch.once("checkpoint", f"{words}; the run continues without.")

    def write(self, last: bool = False) -> None:
        """Append the new rows to the telemetry."""
        failure = None if self.telemetry is None else self.telemetry.write(self.parts, last)
        if self.telemetry is not None and failure is not None:
            words = f"{self.telemetry.shown} could not be written ({failure})"
            self.watch.once(
                "telemetry",
                f"{words}; the run continues, and the lines are written when they can be.",
            )

    def report(self, rows: History) -> Report:
        """Return what a callback receives."""
        return Report(self.now.step, self.now.params, self.now.state, rows)

    def fail(self, rows: History, source: AbstractSource) -> NoReturn:
        """Save the run and raise the error of its last step."""
        self.save()
        step = int(rows["step"][-1])
        failure = FitError(
            f"step {step}: {reason(rows, self.opt, source, self.now)} The parameters are those "
            "before it; "
            "fit(..., throw=False) skips such steps."
        )
        failure.fit = self.result(f"step {step} failed")
        raise failure

    def result(self, ended: str) -> Fit:
        """Return the outcome."""
        return Fit(
            params=self.now.params,
            state=self.now.state,
            sampler=self.now.sampler,
            history=History.join(self.parts),
            steps=self.now.step,
            seconds=time.monotonic() - self.begun,
            ended=ended,
        )
