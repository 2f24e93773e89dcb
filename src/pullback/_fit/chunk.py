"""The compiled loop: up to `CAPACITY` steps on the device, without a call back to the host.

How many steps are made is data, so that one program serves every number of them.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from .._base.types import Count
from .optimiser import Optimiser, check_record, named

CAPACITY = 256
"""The largest number of steps in one call of the loop."""


class Task(eqx.Module):
    """What the steps of a chunk have in common."""

    opt: Optimiser
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
    failed: Array
    """Whether the last step failed."""


@eqx.filter_jit
def run_chunk(task: Task, params: Any, state: Any) -> Chunk:
    """Make steps until there are `count`, or one has failed."""

    def one(params, state, place):
        batch = task.draw(task.data, jax.random.fold_in(task.key, task.start + place), place)
        params, state = eqx.combine((params, state), task.static)
        params, state, record = task.opt.step(params, state, batch)
        params, state = eqx.filter((params, state), eqx.is_array)
        return params, state, record

    like = eqx.filter_eval_shape(one, params, state, jnp.asarray(0))[2]
    check_record(task.opt, like)
    empty = jax.tree.map(lambda x: jnp.zeros((CAPACITY, *x.shape), x.dtype), like)

    def again(chunk):
        return (chunk.made < task.count) & ~(chunk.failed & task.stop_on_failure)

    def body(chunk):
        params, state, record = one(chunk.params, chunk.state, chunk.made)
        write = lambda column, x: column.at[chunk.made].set(x)
        records = jax.tree.map(write, chunk.records, record)
        return Chunk(params, state, records, chunk.made + 1, _failed(record))

    start = Chunk(params, state, empty, jnp.zeros_like(task.count), jnp.asarray(False))
    return jax.lax.while_loop(again, body, start)


def _failed(record: Any) -> Array:
    """Whether a step failed: the record's `failed`, or a loss that is not finite."""
    failed = getattr(record, "failed", None)
    failed = named(record).get("failed", failed)
    return ~jnp.isfinite(named(record)["loss"]) if failed is None else failed
