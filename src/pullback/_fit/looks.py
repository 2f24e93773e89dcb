"""Looks at the parameters between steps: the held-out loss, and numbers of the user's own.

A look is taken after every `every` steps and after the last one. Its numbers are columns of the
history, NaN in the rows of the other steps. When a look is taken depends on the number of the step
only, and a look changes nothing that a step computes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.random import fold_in
from jaxtyping import PRNGKeyArray

from .._base.checks import error, function, integer
from .._base.functions import canonical
from .._base.types import Params, Scalar
from .._compat.xla import jit
from .._problem.batch import Batch, Batches, as_batch
from .batches import arguments_of, on_device, traced
from .epochs import Epochs
from .figure import HELD_OUT
from .history import History

LOOKS = 50
"""About how many looks a run takes if nothing else is said."""
UNNAMED = "evaluation"
"""The column of a number that `evaluate` returns without a name."""
APART = np.uint32(2**32 - 2)
"""What the key is folded with for held-out batches; steps use smaller numbers."""


class Looks:
    """What to compute between steps, and when."""

    def __init__(
        self,
        opt: Any,
        validate: Any,
        evaluate: Callable[[Params], Any] | None,
        every: int | Epochs | None,
        steps: int,
        key: PRNGKeyArray,
        batches: Any = None,
    ):
        """Check what is wanted; nothing is computed yet."""
        if evaluate is not None:
            example = "fit(evaluate=lambda params: accuracy(params))"
            function("fit", "evaluate", evaluate, example)
        if every is not None:
            if isinstance(every, Epochs):
                every = every.steps(batches)
            integer("fit", "every", every, least=1)
            if validate is None and evaluate is None:
                raise ValueError(
                    f"fit(every={every}): there is nothing to compute every {every} steps; pass "
                    "validate= or evaluate= too. Checkpoints have an interval of their own, "
                    "Checkpoints(folder, every_steps=10)."
                )
        if validate is not None and not callable(getattr(opt, "loss", None)):
            raise ValueError(
                f"fit(validate=...): {type(opt).__name__} has no method loss(params, batch). Add "
                "one, or pass fit(evaluate=lambda params: {'validation loss': ...})."
            )
        self.opt = opt
        self.draw = _held_out(validate)
        self.evaluate = evaluate
        self.every = max(1, steps // LOOKS) if every is None else every
        self.steps = steps
        self.key = fold_in(key, APART)
        self.names: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether there is anything to compute."""
        return self.draw is not None or self.evaluate is not None

    def prepare(self, params: Params) -> None:
        """Compute once before the first step, for the names, and so that errors show early."""
        if self.wanted:
            self.names = tuple(self.numbers(params, 0))

    def due(self, step: int, last: bool) -> bool:
        """Whether to look after so many steps; `last` tells that an event ends the run."""
        return self.wanted and (last or step % self.every == 0 or step == self.steps)

    def until_next(self, step: int, otherwise: int) -> int:
        """Return the number of steps up to the next look; another number if there is none."""
        return self.every - step % self.every if self.wanted else otherwise

    def widened(self, owner: str, rows: History) -> History:
        """Return rows with a column of NaN for every number."""
        for name in self.names:
            if name in rows:
                raise ValueError(
                    f"fit(evaluate=...): {name!r} is a field of the record of {owner} already; "
                    "return the number under another name."
                )
        return History(rows.columns | {name: np.full(len(rows), np.nan) for name in self.names})

    def look(self, params: Params, step: int, rows: History) -> None:
        """Compute the numbers after a step and write them into the last of its rows."""
        numbers = self.numbers(params, step)
        if tuple(numbers) != self.names:
            raise ValueError(
                f"fit(evaluate=...): evaluate returned {', '.join(numbers) or 'nothing'} after "
                f"step {step} and {', '.join(self.names) or 'nothing'} before; return the same "
                "names in every call."
            )
        for name, number in numbers.items():
            rows[name][-1] = number

    def share(self, rows: History, agreed: Callable[[list[float]], list[float]]) -> None:
        """Write into the last row what all processes agree on."""
        numbers = [float(rows[name][-1]) for name in self.names]
        for name, number in zip(self.names, agreed(numbers), strict=True):
            rows[name][-1] = number

    def numbers(self, params: Params, step: int) -> dict[str, float]:
        """Return the numbers by name."""
        found: dict[str, float] = {}
        if self.draw is not None:
            found[HELD_OUT] = float(_loss(self.opt, params, self.draw, fold_in(self.key, step)))
        if self.evaluate is not None:
            returned = self.evaluate(params)
            given = returned if isinstance(returned, Mapping) else {UNNAMED: returned}
            for name in given:
                if not isinstance(name, str) or not name or name in ("step", HELD_OUT):
                    wanted = f"words other than 'step' and {HELD_OUT!r}"
                    raise ValueError(
                        f"fit(evaluate=...): the names must be {wanted}, got {name!r}."
                    )
                found[name] = _number(name, given[name])
        return found


@jit
def _loss(opt: Any, params: Params, draw: Any, key: PRNGKeyArray) -> Scalar:
    """Return the loss on a held-out batch."""
    if isinstance(draw, Batch | Batches):
        return opt.loss(params, draw)
    two = arguments_of(draw, "validate") == 2
    given = (key, params) if two else (key,)
    return opt.loss(params, as_batch(traced("validate", draw, *given)))


def _held_out(validate: Any) -> Any:
    """Return the held-out batch or the function that draws it, `None` if there is none."""
    if validate is None:
        return None
    if callable(validate) and not isinstance(validate, type):
        arguments_of(validate, "validate")  # raises for a function of other arguments
        return canonical(validate)
    if isinstance(validate, tuple | Batches):
        return on_device(validate)
    wanted = "(inputs, targets) or a function of a PRNG key (and of the parameters)"
    raise error("fit", "validate", validate, wanted, "fit(validate=(x_test, y_test))")


def _number(name: str, value: Any) -> float:
    """Return one real number; raises a `ValueError` for anything else."""
    array = np.asarray(value)
    # "V" are the short floats of JAX.
    if array.shape != () or array.dtype.kind not in "fiubV":
        got = type(value).__name__ if array.dtype.kind in "OUS" else f"{array.dtype}{array.shape}"
        raise ValueError(
            f"fit(evaluate=...): {name!r} must be one real number, e.g. float(jnp.mean(x)), got "
            f"{got}."
        )
    return float(value)
