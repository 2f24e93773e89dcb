"""One call of `fit`: its loop over chunks of steps, and what happens between two of them."""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._compat.processes import described
from .._natural.effort import FULL, Efforts
from .batches import AbstractSource
from .checkpoint import Snapshot, Store
from .chunk import CAPACITY, Chunk, Task, run_chunk
from .devices import Devices
from .ending import Ending
from .failure import reason
from .folder import InUse
from .history import History, columns_of
from .looks import Looks
from .optimiser import Optimiser, beside_step
from .outcome import Fit, FitError, Report
from .processes import ProcessLost, lost
from .progress import Progress
from .telemetry import Telemetry
from .watch import Watch

PACE = 0.2
"""For about how many seconds the device runs between two looks at the host."""


class Run:
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
        self.processes = devices.processes
        self.alone = False
        """Whether other processes may not be at the same place any more."""
        self.ending = ending
        self.watch = watch
        self.continued = continued
        self.known = (None, FULL)
        """Shapes, and the efforts for them."""
        self.now = start
        self.parts = [start.history]
        self.begun = time.monotonic()
        self.saved_step = start.step
        self.tried_step = start.step
        self.tried_time = self.begun

    def go(self, source: AbstractSource, progress: bool) -> Fit:
        """Run, save, and return the outcome."""
        self.processes.together(self.prepare)
        try:
            shown = progress and self.processes.first
            with Progress(shown, self.steps, self.now.step) as bar:
                ended = self.loop(source, bar)
        except KeyboardInterrupt:
            ended, self.alone = "interrupted", True
        except ProcessLost:
            self.alone = True
            raise
        finally:
            # Whatever ends the run, an error in a callback too: the steps made are good.
            if len(self.parts[-1]) and self.parts[-1]["step"][-1] >= self.now.step:
                self.parts.pop()  # interrupted before they counted
            self.save()
            self.write(last=True)
        return self.result(ended)

    def prepare(self) -> None:
        """Make the telemetry ready."""
        if self.telemetry is None:
            return
        path, store = self.telemetry.path, self.store
        begun = store is not None and store.began(path)
        self.telemetry.prepare(self.now.history, self.now.step, begun)
        if store is not None and self.now.step == 0 and not begun:
            # If it cannot be written, neither can checkpoints: the first of them warns.
            with contextlib.suppress(OSError):
                store.begin(path)

    def loop(self, source: AbstractSource, bar: Progress) -> str:
        """Make steps until something ends the run; return what it was."""
        pace, agreed, together = 1, self.processes.agreed, self.processes.together
        if self.now.step < self.steps and self.ending.now is None:
            together(lambda: self.looks.prepare(self.now.params))
        while self.now.step < self.steps and self.ending.now is None:
            limit = min(agreed(pace), self.until_pause(), self.steps - self.now.step)
            data, count = self.taken(source, limit)
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
                look = lambda rows=rows: self.looks.look(self.now.params, self.now.step, rows)
                together(look)
                self.looks.share(rows, self.processes.agreed_floats)
            self.ending.note(rows)
            self.write()
            bar.show(self.now.step, rows, each)
            self.watch.rows(rows)
            if self.due():
                self.save()
            if failed and self.throw:
                self.fail(rows, source)
            if self.callback is not None and agreed(together(self.called(rows))):
                return f"the callback ended it after {self.now.step} steps"
        if self.now.step < self.steps:
            return f"{self.ending.now}, after {self.now.step} steps"
        return f"all {self.steps} steps were made"

    def taken(self, source: AbstractSource, limit: int) -> tuple[Any, int]:
        """Return data for some steps, of which all processes have the same number and shapes."""
        if source.constant and len(self.parts) > 1:
            return source.take(limit)
        words = lambda found: f"{found[1]} batches, {described(found[0])}"
        return self.processes.together(lambda: source.take(limit), words)

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
        # Numbers of the optimiser as data: another rate compiles nothing.
        opt: Optimiser = getattr(self.opt, "as_data", lambda: self.opt)()
        arrays, data = self.devices.enter((arrays, data))
        key, opt = self.devices.untyped((now.key, opt))
        opt = self.devices.informed(opt)
        attempt, made = beside_step(opt, "attempt"), 0
        efforts = self.efforts(source, data, key, arrays, static)
        while made < count and not (failed and self.throw):
            at = now.step + made
            until = made + efforts.left(at, count - made)
            # After an attempt without an answer comes one step that has one, then attempts again,
            # so that what a step computes does not depend on where the run was resumed.
            step = opt.step if attempt is None or unanswered else attempt
            # A mesh that the caller has set would be part of the type of these numbers.
            with self.devices.around():
                task = Task(
                    step=step,
                    attempts=step is attempt,
                    owner=self.owner,
                    draw=source.draw,
                    data=data,
                    key=key,
                    start=jnp.asarray(now.step),
                    first=jnp.asarray(made),
                    count=jnp.asarray(made + 1 if unanswered else until),
                    static=static,
                    stop_on_failure=self.throw,
                )
            chunk = self.run(task, arrays, efforts.at(at))
            arrays = (chunk.params, chunk.state, chunk.sampler)
            rows = range(made, int(chunk.made))
            failed, unanswered, made = bool(chunk.failed), bool(chunk.unanswered), rows.stop
            if rows:
                columns = columns_of(self.owner, chunk.records, rows, now.step, self.continued)
                parts.append(History(columns))
        params, state, sampler = eqx.combine(self.devices.leave(arrays), static)
        there = Snapshot(params, state, now.key, now.step + made, History({}), sampler)
        return there, self.looks.widened(self.owner, History.join(parts)), failed

    def efforts(
        self, source: AbstractSource, data: Any, key: Any, arrays: tuple[Any, ...], static: Any
    ) -> Efforts:
        """Return how hard XLA works on the steps, as the optimiser declares for such batches."""
        declared = beside_step(self.opt, "efforts")
        shapes = described((arrays, data))
        if declared is None or shapes == self.known[0]:
            return self.known[1]
        found = []

        def look(arrays, data):
            params, _, sampler = eqx.combine(arrays, static)
            batch, _ = source.draw(data, key, params, sampler, zero)
            found.append(Efforts(*declared(params, batch)))

        zero = jnp.asarray(0)
        with self.devices.around():
            # Traced for its shapes only.
            eqx.filter_eval_shape(look, arrays, data)
        self.known = (shapes, found[0])
        return found[0]

    def run(self, task: Task, arrays: tuple[Any, ...], effort: int | None) -> Chunk:
        """Make the steps of a task."""
        try:
            with self.devices.around():
                chunk = run_chunk(effort, task, *arrays)
            return jax.block_until_ready(chunk) if self.processes.several else chunk
        except jax.errors.JaxRuntimeError as error:
            if not self.processes.several:
                raise
            raise lost(error) from error

    def until_pause(self) -> int:
        """Return how many steps may be made before the next save by steps, or the next look."""
        return min(self.until_saving(), self.looks.until_next(self.now.step, CAPACITY))

    def until_saving(self) -> int:
        """Return how many steps may be made before the next save by steps."""
        if self.saving is None or self.saving.every_steps is None:
            return CAPACITY
        return self.saving.every_steps - self.now.step % self.saving.every_steps

    def due(self) -> bool:
        """Return whether it is time to save."""
        if self.saving is None:
            return False
        due = self.saving.due(self.now.step, self.tried_step, self.tried_time)
        # What no process has as a whole is gathered by all of them, at the same time.
        return bool(self.processes.agreed(due)) if self.processes.partial(self.now) else due

    def save(self) -> None:
        """Save the run if there is something new and somewhere to save it."""
        if self.store is None or self.now.step == self.saved_step:
            return
        now = self.now
        if self.processes.partial(now):
            if self.alone:
                return
            now = self.processes.whole(now)
        self.tried_step = self.now.step
        self.tried_time = time.monotonic()
        try:
            self.store.save(now, self.parts)
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

    def called(self, rows: History) -> Callable[[], bool]:
        """Return the call of the callback, which tells whether the run ends."""
        assert self.callback is not None
        report = Report(self.now.step, self.now.params, self.now.state, rows)
        return partial(lambda callback: bool(callback(report)), self.callback)

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
