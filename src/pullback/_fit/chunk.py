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
from .optimiser import check_attempt, check_step, named

CAPACITY = 256
"""The largest number of steps in one call of the loop."""


class Task(eqx.Module):
    """What the steps of a chunk have in common."""

    step: Callable[[Any, Any, Any], tuple[Any, ...]]
    """The method of the optimiser: `step` or `attempt`."""
    attempts: bool = eqx.field(static=True)
    """Whether it is `attempt`, which also returns whether it has no answer."""
    owner: str = eqx.field(static=True)
    """The name of the optimiser, for messages."""
    draw: Callable[[Any, PRNGKeyArray, Array], Any]
    """Returns the batch of one step."""
    data: Any
    """The first argument of `draw`."""
    key: PRNGKeyArray
    start: Count
    """The number of the step at place 0."""
    first: Count
    count: Count
    """The places of the first step, and of the one after the last."""
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
    """Records stacked to `CAPACITY` rows, filled from `first` up to `made`."""
    made: Count
    failed: Bool[Array, ""]
    """Whether the last step failed."""
    unanswered: Bool[Array, ""]
    """Whether the next step was attempted without an answer."""


@jit
def run_chunk(task: Task, params: Any, state: Any) -> Chunk:
    """Make steps until there are `count`, one has failed, or an attempt had no answer."""
    no = jnp.asarray(False)

    def one(params, state, place):
        batch = task.draw(task.data, jax.random.fold_in(task.key, task.start + place), place)
        whole = eqx.combine((params, state), task.static)
        made, unanswered = task.step(*whole, batch), no
        if task.attempts:
            check_attempt(task.owner, made)
            made, unanswered = made[:3], made[3]
        check_step(task.owner, whole, made)
        new = eqx.filter(made[:2], eqx.is_array)
        new, failed = _judged((params, state), new, made[2])
        if task.attempts:
            new = jax.tree.map(lambda a, b: jnp.where(unanswered, a, b), (params, state), new)
        record = eqx.filter(as_arrays(made[2]), eqx.is_array)
        return *new, record, failed & ~unanswered, unanswered

    like = eqx.filter_eval_shape(one, params, state, jnp.asarray(0))[2]
    empty = jax.tree.map(lambda x: jnp.zeros((CAPACITY, *x.shape), x.dtype), like)

    def again(chunk):
        stopped = (chunk.failed & task.stop_on_failure) | chunk.unanswered
        return (chunk.made < task.count) & ~stopped

    def body(chunk):
        params, state, record, failed, unanswered = one(chunk.params, chunk.state, chunk.made)
        write = lambda column, x: column.at[chunk.made].set(x)
        records = jax.tree.map(write, chunk.records, record)
        made = jnp.where(unanswered, chunk.made, chunk.made + 1)
        return Chunk(params, state, records, made, failed, unanswered)

    start = Chunk(params, state, empty, task.first, no, no)
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
