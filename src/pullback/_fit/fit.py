"""The loop: `fit` makes many steps, shows them, keeps their records, saves and resumes.

Steps run on the device, some at a time, in a loop of a *variable* number of steps that is compiled
once. How many are made at a time depends on the clock; what they compute does not. A run that is
stopped and resumed therefore ends with the same bits as an uninterrupted one. Nothing is called
back from inside the loop.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray

from .._base.types import Params
from .._compat.processes import checksum
from ..until import AbstractEvent
from .arguments import as_key, check_arguments
from .batches import as_source, first_state
from .checkpoint import Checkpoints, Snapshot, Store
from .chunk import as_arrays
from .devices import Devices, peeked, placed
from .ending import Ending
from .epochs import Epochs
from .history import History
from .identity import identity
from .looks import Looks
from .optimiser import Optimiser, check_optimiser, check_state
from .outcome import Fit, Report
from .processes import digest
from .run import Run
from .telemetry import Telemetry
from .terms import read_by
from .watch import Watch


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
        data. A batch of `Terms` is a dictionary, or a tuple, of one batch per term. Batches may be
        on several devices and processes, `shard(batch, mesh)`.
    - `steps`: how many steps to make in all; a resumed run makes the rest. A `ValueError` is
        raised if the checkpoint has more steps than that: fewer cannot be returned.
    - `key`: a PRNG key or a seed, for functions that draw batches.
    - `state`: the state of the optimiser to start from, e.g. `state=fit.state` of an earlier run
        with another rate; defaults to `opt.init(params)`.
    - `validate`: held-out `(inputs, targets)`, or a function that draws them, of a PRNG key or of a
        key and the parameters. Their loss is `history["validation"]`, computed by the model of the
        problem (batch norm and dropout in training mode). A `FitWarning` tells once when it
        departs: when it rises while the training loss falls.
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
    key = as_key(key)
    stream, example = peeked(batches)
    sampler = as_arrays(first_state(batches, key, as_arrays(params, numbers=False)))
    devices = Devices(opt, params, (example, sampler))
    processes = devices.processes
    ready = processes.together(
        lambda: _ready(opt, params, batches, stream, steps, key, validate, evaluate, every,
                       callback, telemetry, checkpoint)
    )  # fmt: skip
    saving = ready.saving
    with contextlib.ExitStack() as stack:
        enter = lambda: None if saving is None else stack.enter_context(processes.store(saving))
        store = processes.together(enter)
        processes.see(store)
        begin = processes.together(
            lambda: _start(opt, params, ready.batches, key, state, sampler, store, resume),
            lambda begin: _described(opt, steps, key, begin),
        )
        if begin.step > steps:
            raise ValueError(
                f"fit(steps={steps}): the checkpoint in {saving and saving.folder} has "
                f"{begin.step} steps, which cannot be undone. Call fit(steps={begin.step}), or "
                "name another folder."
            )
        source = processes.together(lambda: as_source(ready.stream, begin.step))
        run = Run(
            opt,
            begin,
            steps,
            store=store,
            callback=callback,
            telemetry=None if telemetry is None else processes.only_first(Telemetry, telemetry),
            throw=throw,
            looks=ready.looks,
            devices=devices,
            ending=Ending(until, source.same, begin.history),
            watch=Watch(source.same, begin.history),
            continued=state is not None,
        )
        return run.go(source, progress)


class _Ready(NamedTuple):
    """The arguments of `fit`, checked."""

    batches: Any
    stream: Any
    """The batches as they are taken; of an iterator, one that begins with what was looked at."""
    looks: Looks
    saving: Checkpoints | None


def _ready(
    opt, params, batches, stream, steps, key, validate, evaluate, every, callback, telemetry,
    checkpoint,
) -> _Ready:  # fmt: skip
    """Return the arguments of `fit`; raise if one cannot be used."""
    check_optimiser(opt)
    check_arguments(params, steps, callback, telemetry)
    given = read_by(opt, batches)
    stream = given if stream is batches else read_by(opt, stream)
    validate = None if validate is None else read_by(opt, validate, "validate")
    looks = Looks(opt, validate, evaluate, every, steps, key, given)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoints):
        checkpoint = Checkpoints(checkpoint)
    return _Ready(given, stream, looks, checkpoint)


def _described(opt: Optimiser, steps: int, key: PRNGKeyArray, begin: Snapshot) -> str:
    """Return what all processes must have in common, in words."""
    same = checksum((opt, begin.params, begin.state))
    return (
        f"steps={steps}, key={digest(key)}, {begin.step} steps made, checksum {same} of optimiser, "
        "parameters and state"
    )


def _start(
    opt: Optimiser,
    params: Params,
    batches: Any,
    key: PRNGKeyArray,
    state: Any,
    sampler: Any,
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
    fresh = Snapshot(params, begin, key, 0, History({}), sampler)
    if store is None:
        return fresh
    saved = store.load(fresh, identity(opt, batches, key, params, state))
    return fresh if saved is None else placed(saved, fresh)
