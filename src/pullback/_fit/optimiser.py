"""What `fit` requires of an optimiser: a state before the first step, and a step.

```python
class GradientDescent(eqx.Module):
    rate: float

    def init(self, params):
        return None

    def step(self, params, state, batch):
        loss, gradient = jax.value_and_grad(mean_loss)(params, batch)
        return params - self.rate * gradient, state, {"loss": loss}
```
"""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx

from .._base.types import Params


@runtime_checkable
class Optimiser(Protocol):
    """An optimiser that `fit` can run: `NaturalGradientDescent`, or any object with both methods.

    `step` is traced, so it must be a pure function of arrays. An `equinox.Module` passes its arrays
    as arguments of the compiled loop and shows its settings in checkpoints; the attributes of
    another object are constants.
    """

    def init(self, params: Params) -> Any:
        """Return the state before the first step, a pytree.

        **Arguments:**

        - `params`: the parameters.
        """
        ...

    def step(self, params: Params, state: Any, batch: Any) -> tuple[Params, Any, Any]:
        """Return the new parameters, the new state and the record of one step.

        The record holds named scalars: a dictionary, a named tuple or an `equinox.Module`. `loss`
        is required. The fields `loss_after`, `accepted`, `rank`, `damping` and `result` (a
        `RESULTS` code) are shown and plotted if there are any. A step has failed if the record's
        `failed` is true; without `failed`, if the loss is not finite.

        **Arguments:**

        - `params`: the parameters.
        - `state`: the state.
        - `batch`: `(inputs, targets)`, a named tuple; both are `None` for a model without data.
        """
        ...


def check_optimiser(opt: Any) -> None:
    """Raise a `ValueError` unless `opt` has the methods of an `Optimiser`."""
    if isinstance(opt, type) or not isinstance(opt, Optimiser):
        name = opt.__name__ if isinstance(opt, type) else type(opt).__name__
        raise ValueError(
            f"fit(opt, ...): opt must have the methods init(params) and step(params, state, batch), "
            f"got {name}. Call fit(pullback.NaturalGradientDescent(problem), params, batches)."
        )


def named(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name."""
    if isinstance(record, dict):
        return record
    if hasattr(record, "_asdict"):
        return record._asdict()
    names = getattr(record, "__dataclass_fields__", ())
    return {name: getattr(record, name) for name in names}


def check_record(opt: Any, record: Any) -> None:
    """Raise a `ValueError` unless a record has a loss and its fields are scalars."""
    fields = named(record)
    owner = type(opt).__name__
    if "loss" not in fields:
        raise ValueError(
            f"{owner}.step(params, state, batch) must return (params, state, record) with a record "
            f"that has a `loss`, e.g. {{'loss': loss}}, got {type(record).__name__}"
            + (f" with {', '.join(map(str, fields))}." if fields else ".")
        )
    for name, value in fields.items():
        shape = getattr(eqx.filter(value, _has_shape), "shape", ())
        if shape != ():
            raise ValueError(
                f"{owner}.step: the field {name!r} of the record has the shape {shape}; record "
                f"scalars, e.g. jnp.mean({name})."
            )


def _has_shape(x: Any) -> bool:
    return hasattr(x, "shape")
