"""The compiled loop: up to `CAPACITY` steps on the device, without a call back to the host.

How many steps are made is data, so that one program serves every number of them.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from .._base.tree import all_finite
from .._base.types import Count
from .._compat.xla import jit
from .optimiser import check_step, named

CAPACITY = 256
"""The largest number of steps in one call of the loop."""


class Task(eqx.Module):
    """What the steps of a chunk have in common."""

    step: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
    """The method of the optimiser."""
    owner: str = eqx.field(static=True)
    """The name of the optimiser, for messages."""
    draw: Callable[[Any, PRNGKeyArray, Array], Any]
    """Returns the batch of one step."""
    data: Any
    """The first argument of `draw`."""
    key: PRNGKeyArray
    start: Count
    """The number of the first step."""
    count: Count
    """The number of steps."""
    static: Any
    """The leaves of parameters and state that are not arrays."""
    stop_on_failure: bool


class Chunk(eqx.Module):
    """What some steps made."""

    params: Any
    """The arrays of the parameters."""
    state: Any
    """The arrays of the state."""
    records: Any
    """Records stacked to `CAPACITY` rows, of which the first `made` are filled."""
    made: Count
    failed: Bool[Array, ""]
    """Whether the last step failed."""


@jit
def run_chunk(task: Task, params: Any, state: Any) -> Chunk:
    """Make steps until there are `count`, or one has failed."""

    def one(params, state, place):
        batch = task.draw(task.data, jax.random.fold_in(task.key, task.start + place), place)
        whole = eqx.combine((params, state), task.static)
        made = task.step(*whole, batch)
        check_step(task.owner, whole, made)
        new = eqx.filter(made[:2], eqx.is_array)
        new, failed = _judged((params, state), new, made[2])
        return *new, eqx.filter(as_arrays(made[2]), eqx.is_array), failed

    like = eqx.filter_eval_shape(one, params, state, jnp.asarray(0))[2]
    empty = jax.tree.map(lambda x: jnp.zeros((CAPACITY, *x.shape), x.dtype), like)

    def again(chunk):
        return (chunk.made < task.count) & ~(chunk.failed & task.stop_on_failure)

    def body(chunk):
        params, state, record, failed = one(chunk.params, chunk.state, chunk.made)
        write = lambda column, x: column.at[chunk.made].set(x)
        records = jax.tree.map(write, chunk.records, record)
        return Chunk(params, state, records, chunk.made + 1, failed)

    start = Chunk(params, state, empty, jnp.zeros_like(task.count), jnp.asarray(False))
    return jax.lax.while_loop(again, body, start)


def _judged(old: Any, new: Any, record: Any) -> tuple[Any, Bool[Array, ""]]:
    """Return what to continue with after a step, and whether the step failed."""
    fields = named(record)
    failed = fields.get("failed", getattr(record, "failed", None))
    if failed is not None:
        return new, jnp.asarray(failed, bool)
    # Nobody else keeps a NaN out of the parameters here.
    failed = ~(jnp.isfinite(fields["loss"]) & all_finite(new[0]))
    return jax.tree.map(lambda a, b: jnp.where(failed, a, b), old, new), failed


def as_arrays(tree: Any, numbers: bool = True) -> Any:
    """Return a tree with its NumPy arrays, and its Python numbers, as JAX arrays of their dtype."""
    kinds = (np.ndarray, np.generic, *((bool, int, float) if numbers else ()))

    def convert(x):
        if isinstance(x, kinds):
            return jnp.asarray(np.asarray(x))
        # A weakly typed array is of another type, and in need of another program, after a step.
        return jnp.asarray(x, x.dtype) if eqx.is_array(x) else x

    return jax.tree.map(convert, tree)
