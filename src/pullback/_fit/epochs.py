"""Epochs: a number of steps in units of one pass over the samples.

A source of batches has an epoch if it is known how many steps one pass takes: one for the same
batch in every step, N / n for minibatches of n out of N samples, and what the attribute
`steps_per_epoch` says for anything else.
"""

from typing import Any

import equinox as eqx

from .._base.checks import positive
from .._problem.batch import Batches


class Epochs(eqx.Module):
    """An interval of `fit` in epochs, one epoch being one pass over the samples.

    ```python
    draw = pb.minibatches((x, y), 64)
    fit = pb.fit(opt, params, draw, 1000, validate=(x_test, y_test), every=pb.Epochs(1))
    ```

    Known are the epochs of `(inputs, targets)`, one step each, and of `minibatches`. Batches of
    your own may have an attribute `steps_per_epoch`, a number.
    """

    number: float = eqx.field(static=True)

    def __init__(self, number: float = 1):
        """Choose an interval.

        **Arguments:**

        - `number`: how many epochs, e.g. 1, or 0.5 for twice in each.
        """
        positive("Epochs", "number", number)
        self.number = number

    def __repr__(self) -> str:
        return f"Epochs({self.number:g})"

    def steps(self, batches: Any) -> int:
        """Return the interval in steps, at least one; a `ValueError` if an epoch has no length.

        **Arguments:**

        - `batches`: the batches of `fit`.
        """
        constant = batches is None or isinstance(batches, tuple | Batches)
        length = 1 if constant else getattr(batches, "steps_per_epoch", None)
        if length is None:
            raise ValueError(
                f"fit(every={self!r}): it is not known how many steps an epoch of these batches "
                f"({type(batches).__name__}) takes. Give the number of steps, fit(every=100); or "
                "use minibatches(batch, size); or give your batches an attribute, "
                "batches.steps_per_epoch = 100."
            )
        positive(type(batches).__name__, "steps_per_epoch", length)
        return max(1, round(self.number * float(length)))
