r"""The optimiser as an `optax.GradientTransformationExtraArgs` whose `update` takes `batch=`.

The gradient that arrives may have been changed on its way (clipped, decayed), and is followed: it
is split into its part along the problem's own gradient, whose lift is used, and the rest, a
parameter covector. Updates are differences \(\theta_{new} - \theta\), zero if the step was rejected
or failed.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from .._base.results import RESULTS
from .._base.stateful import Stateful
from .._base.tree import is_coordinate, structure
from .._base.types import Params
from .descent import NaturalGradientDescent
from .record import DescentState, Record

OURS = ("batch", "metric_batch")
"""The extra arguments of `update` that Optax's own transformations do not accept."""


class OptaxState(NamedTuple):
    """The state of the transformation that `as_optax` returns.

    `optax.tree.get(state, "record")` returns the record of the last step from anywhere in a chain.
    """

    descent: DescentState
    record: Record


def as_optax(
    opt: NaturalGradientDescent, linesearch: optax.GradientTransformationExtraArgs | None = None
) -> optax.GradientTransformationExtraArgs:
    """Return an optimiser for a loop written with Optax.

    ```python
    tx = pb.as_optax(opt)
    updates, state = tx.update(gradient, state, params, batch=(x, y))
    ```

    `update` also takes `metric_batch=` and ignores other extra arguments. The update is already a
    descent step: no learning rate follows. The gradient of complex parameters is what `jax.grad`
    returns, not its conjugate. `optax.masked`, `partition` and `multi_transform` hide
    parameters that the Jacobian needs, and raise. `optax.MultiSteps` averages gradients over
    several batches, but the metric is that of the last one. The update of a `Stateful` moves its
    state too, to the rounding of an addition.

    **Arguments:**

    - `opt`: the optimiser.
    - `linesearch`: an Optax line search to follow, e.g.
        `optax.scale_by_backtracking_linesearch(20)`. Line searches raise for extra arguments that
        are not theirs; `batch=` and `metric_batch=` are not passed to this one.

    **Returns:**

    An `optax.GradientTransformationExtraArgs`.
    """
    if not isinstance(opt, NaturalGradientDescent):
        raise ValueError(
            f"as_optax takes a pullback.NaturalGradientDescent, got {type(opt).__name__}."
        )

    def init(params: Params) -> Any:
        _refuse_masks(params)
        return OptaxState(opt.init(params), _blank(opt, params))

    def update(
        updates: Any,
        state: Any,
        params: Params | None = None,
        *,
        batch: Any = None,
        metric_batch: Any = None,
        **extra: Any,
    ) -> tuple[Any, Any]:
        del extra
        if params is None:
            raise ValueError(
                "a natural gradient is taken at a point: update(gradient, state, params, "
                "batch=(x, y))."
            )
        _refuse_masks(updates)
        gradient = jax.tree.map(lambda x: x if is_coordinate(x) else None, updates)
        new, descent, record = opt.step(
            params, state.descent, batch, metric_batch=metric_batch, gradient=gradient
        )
        if isinstance(params, Stateful):
            moved = jax.tree.map(_moved_state, new.state, params.state)
            updates = Stateful(jax.tree.map(_difference, new.params, params.params), moved)
        else:
            updates = jax.tree.map(_difference, new, params)
        return updates, OptaxState(descent, record)

    face = optax.GradientTransformationExtraArgs(init, update)
    return face if linesearch is None else _followed_by(face, linesearch)


def _followed_by(
    first: optax.GradientTransformationExtraArgs, second: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """Return a chain whose second part receives none of our arguments."""

    def init(params: Params) -> tuple[Any, Any]:
        return first.init(params), second.init(params)

    def update(
        updates: Any, state: Any, params: Params | None = None, **extra: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        updates, one = first.update(updates, state[0], params, **extra)
        rest = {name: value for name, value in extra.items() if name not in OURS}
        updates, two = second.update(updates, state[1], params, **rest)
        return updates, (one, two)

    return optax.GradientTransformationExtraArgs(init, update)


def _difference(new: Any, old: Any) -> Any:
    """Return the update of a leaf, zero if the leaf is not differentiated."""
    if is_coordinate(old):
        return new - old
    return jnp.zeros_like(old) if eqx.is_array(old) else old


def _moved_state(new: Any, old: Any) -> Any:
    """Return the update of a leaf of a state."""
    if not eqx.is_array(old):
        return old
    if not jnp.issubdtype(old.dtype, jnp.number):
        raise ValueError(
            f"as_optax: an update is added, and a leaf of the state of dtype {old.dtype} cannot be "
            "moved by adding. Use opt.step or fit, which return the new state, or keep numbers in "
            "the state."
        )
    return new - old


def _refuse_masks(tree: Any) -> None:
    """Raise a `ValueError` if a wrapper of Optax has hidden leaves."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, optax.MaskedNode))
    if any(isinstance(x, optax.MaskedNode) for x in leaves):
        raise ValueError(
            "optax.masked, partition and multi_transform hide parameters, and without them the "
            "model cannot be differentiated. Fix them in the model instead: "
            "Composite(lambda free, x: model({**free, **fixed}, x), ...), and give as_optax(opt) "
            "the free ones only."
        )


def _blank(opt: NaturalGradientDescent, params: Params) -> Record:
    """Return a record of no step, with the structure and dtypes of all others."""
    nan = jnp.full((), jnp.nan, structure(params).dtype)
    none = jnp.full((), -1, jnp.int32)
    fields: dict[str, Any] = dict.fromkeys(Record.__dataclass_fields__, nan)
    fields |= dict.fromkeys(("step", "trials", "rank", "solver", "leaf"), none)
    # As it comes out of a step: an array, not the Python number of the enumeration.
    fields["result"] = jax.tree.map(jnp.asarray, RESULTS.successful)
    fields["accepted"] = jnp.asarray(False)
    each = jax.tree.map(lambda _: nan, opt.problem.reported_weights)
    fields |= {"losses": each, "weights": each}
    return Record(**fields)
