r"""The Optax face: an optimiser as `optax.GradientTransformationExtraArgs`, whose `update` also
takes `batch=`.

The gradient that arrives may have been changed on its way (clipped, decayed), and is followed: it
is split into its part along the problem's own gradient, whose lift is used, and the rest, a
parameter covector. Updates come out as differences, \(\theta_{new} - \theta\), zero if the step was
rejected or failed.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from .._base.results import RESULTS
from .._base.tree import is_coordinate, structure
from .descent import DescentState, NaturalGradientDescent, Record


class OptaxState(NamedTuple):
    """The state of `as_optax`: `optax.tree.get(state, "record")` finds the record of the last step
    in a chain.
    """

    descent: DescentState
    record: Record


def as_optax(
    opt: NaturalGradientDescent, linesearch: optax.GradientTransformationExtraArgs | None = None
) -> optax.GradientTransformationExtraArgs:
    """An optimiser for a loop written with Optax.

    `update(gradient, state, params, batch=(x, y))`, and `metric_batch=` if it is wanted; other
    extra arguments are ignored. The update is already a descent step: no learning rate follows.
    `optax.masked`, `partition` and `multi_transform` hide parameters from which the Jacobian is
    made, and are refused. `optax.MultiSteps` averages gradients over several batches, but the
    metric is that of the last one.

    **Arguments:**

    - `opt`: the optimiser.
    - `linesearch`: an Optax line search to follow, such as
        `optax.scale_by_backtracking_linesearch(20)`; these refuse extra arguments that are not
        theirs, such as `batch=`, which are taken away here.

    **Returns:**

    An `optax.GradientTransformationExtraArgs`.
    """
    if not isinstance(opt, NaturalGradientDescent):
        raise ValueError(
            f"as_optax takes a pullback.NaturalGradientDescent, got {type(opt).__name__}."
        )

    def init(params: Any) -> Any:
        _refuse_masks(params)
        return OptaxState(opt.init(params), _blank(params))

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        batch: Any = None,
        metric_batch: Any = None,
        **extra: Any,
    ) -> Any:
        del extra
        if params is None:
            raise ValueError(
                "a natural gradient is taken at a point: update(gradient, state, params, batch=(x, y))."
            )
        _refuse_masks(updates)
        new, descent, record = opt.step(
            params, state.descent, batch, metric_batch=metric_batch, gradient=_floating(updates)
        )
        difference = lambda n, o: (
            n - o if is_coordinate(o) else jnp.zeros_like(o) if eqx.is_array(o) else o
        )
        return jax.tree.map(difference, new, params), OptaxState(descent, record)

    face = optax.GradientTransformationExtraArgs(init, update)
    return face if linesearch is None else _followed_by(face, linesearch)


def _followed_by(first, second) -> optax.GradientTransformationExtraArgs:
    """A chain in which the second part sees none of our arguments."""

    def init(params):
        return first.init(params), second.init(params)

    def update(updates, state, params=None, **extra):
        updates, one = first.update(updates, state[0], params, **extra)
        rest = {
            name: value for name, value in extra.items() if name not in ("batch", "metric_batch")
        }
        updates, two = second.update(updates, state[1], params, **rest)
        return updates, (one, two)

    return optax.GradientTransformationExtraArgs(init, update)


def _floating(tree):
    return jax.tree.map(lambda x: x if is_coordinate(x) else None, tree)


def _refuse_masks(tree) -> None:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, optax.MaskedNode))
    if any(isinstance(x, optax.MaskedNode) for x in leaves):
        raise ValueError(
            "optax.masked, partition and multi_transform hide parameters, and without them the model cannot be differentiated. Fix them in the "
            "model instead: Composite(lambda moving, x: model({**moving, **fixed}, x), ...), and give as_optax(opt) the moving ones only."
        )


def _blank(params) -> Record:
    """A record of no step, with the structure and dtypes of all others."""
    dtype = structure(params).dtype
    nan, none = jnp.full((), jnp.nan, dtype), jnp.full((), -1, jnp.int32)
    counts = {"step", "trials", "rank", "solver"}
    fields: dict[str, Any] = {
        name: none if name in counts else nan for name in Record.__dataclass_fields__
    }
    return Record(**fields | {"accepted": jnp.asarray(False), "result": _successful()})


def _successful() -> RESULTS:
    # As it comes out of a step: an array, not the Python number of the enumeration.
    return jax.tree.map(jnp.asarray, RESULTS.successful)
