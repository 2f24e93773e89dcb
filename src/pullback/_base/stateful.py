"""A point with state: parameters that are differentiated, and a state that is carried."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .show import total
from .types import Covector, Params


class Stateful(eqx.Module):
    """Parameters and the state of a model, e.g. the running statistics of batch normalisation.

    ```python
    problem = pb.Composite(model, loss, stateful=True)  # model(params, state, x) -> z, state
    params, descent, record = opt.step(pb.Stateful(params, state), descent, (x, y))
    ```

    It is passed wherever parameters are. The floating arrays of `params` are differentiated; no
    leaf of `state` is, floating or not. A step of the optimiser that is accepted takes the new
    state of the model over; nothing else changes the state.
    """

    params: Params
    state: PyTree

    def __repr__(self) -> str:
        sizes = (f"{name} {total(getattr(self, name))}" for name in ("params", "state"))
        return f"Stateful({', '.join(sizes)})"

    def __init__(self, params: Params, state: PyTree):
        """Put parameters and state together.

        **Arguments:**

        - `params`: the parameters, any pytree.
        - `state`: the state, any pytree; numbers and NumPy arrays in it become JAX arrays.
        """
        self.params = params
        self.state = jax.tree.map(_as_array, state)


def _as_array(x: Any) -> Any:
    """Return a number or an array as a JAX array of its own dtype."""
    if isinstance(x, bool | int | float | complex | np.ndarray | np.generic):
        return jnp.asarray(np.asarray(x))
    # A weakly typed array is of another type, and in need of another program, after a step.
    return jnp.asarray(x, x.dtype) if eqx.is_array(x) else x


def covector_at(point: Params, covector: Covector | None) -> Covector | None:
    """Return a covector on the parameters as one on the point, whatever it has for the state."""
    if covector is None or not isinstance(point, Stateful):
        return covector
    given = covector.params if isinstance(covector, Stateful) else covector
    return Stateful(given, point.state)


def renewed(point: Params, state: PyTree) -> Params:
    """Return the point with a new state, if it has one."""
    return Stateful(point.params, state) if isinstance(point, Stateful) else point


def is_spoilt(point: Params, state: PyTree) -> Array:
    """Return whether a new state has a NaN, or an infinity where that of the point is finite."""
    if not isinstance(point, Stateful):
        return jnp.asarray(False)
    return any_spoilt(point.state, state)


def any_spoilt(was: PyTree, now: PyTree) -> Array:
    """Return whether leaves have a NaN, or an infinity where they were finite before."""
    # A running minimum may start at infinity, and stay there.
    spoilt = jnp.asarray(False)
    for old, new in zip(jax.tree.leaves(was), jax.tree.leaves(now), strict=True):
        if eqx.is_inexact_array(new):
            spoilt = spoilt | jnp.any(jnp.isnan(new) | (jnp.isinf(new) & jnp.isfinite(old)))
    return spoilt
