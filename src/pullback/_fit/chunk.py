"""The compiled loop: up to `CAPACITY` steps on the device, without a call back to the host.

How many steps are made is data, so that one program serves every number of them.

On the CPU, XLA runs a convolution inside a loop on one thread and without its library, and a step
that takes long gains nothing from the loop. There the program of such a step makes one step, and
the host calls it again. This is decided by the program alone, so that a resumed run has the same
bits.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PRNGKeyArray

from .._base.tree import all_finite
from .._base.types import Count
from .._compat.jaxpr import Program, contains
from .._compat.xla import jit
from .._gram.flops import flops
from .optimiser import check_attempt, check_step, named

CAPACITY = 256
"""The largest number of steps in one call of the loop."""
SLOW = ("conv_general_dilated",)
"""What the CPU computes slowly inside a loop."""
LONG = 2**29
"""The operations in the products of a step that takes long: ten milliseconds or more."""


class Task(eqx.Module):
    """What the steps of a chunk have in common."""

    step: Callable[[Any, Any, Any], tuple[Any, ...]]
    """The method of the optimiser: `step` or `attempt`."""
    attempts: bool = eqx.field(static=True)
    """Whether it is `attempt`, which also returns whether it has no answer."""
    owner: str = eqx.field(static=True)
    """The name of the optimiser, for messages."""
    draw: Callable[..., tuple[Any, Any]]
    """`AbstractSource.draw`: the batch of one step, and the next state of the sampler."""
    data: Any
    """The first argument of `draw`."""
    key: PRNGKeyArray
    start: Count
    """The number of the step at place 0."""
    first: Count
    count: Count
    """The places of the first step, and of the one after the last."""
    static: Any
    """The leaves of parameters, state and sampler that are not arrays."""
    stop_on_failure: bool


class Chunk(eqx.Module):
    """What some steps made."""

    params: Any
    """The arrays of the parameters."""
    state: Any
    """The arrays of the state."""
    sampler: Any
    """The arrays of the state of the sampler."""
    records: Any
    """Records stacked to `CAPACITY` rows, filled from `first` up to `made`; or that one row."""
    made: Count
    failed: Bool[Array, ""]
    """Whether the last step failed."""
    unanswered: Bool[Array, ""]
    """Whether the next step was attempted without an answer."""


def run_chunk(effort: int | None, *arguments: Any) -> Chunk:
    """Make the steps of a task, with a program that XLA compiles with an effort (`xla.py`)."""
    return _compiled(effort)(*arguments)


@functools.cache
def _compiled(effort: int | None) -> Callable[..., Chunk]:
    return jit(_run_chunk, effort)


def _run_chunk(task: Task, params: Any, state: Any, sampler: Any) -> Chunk:
    """Make steps until there are `count`, one has failed, or an attempt had no answer."""
    no = jnp.asarray(False)

    def one(params, state, sampler, place):
        old = (params, state, sampler)
        whole = eqx.combine(old, task.static)
        key = jax.random.fold_in(task.key, task.start + place)
        batch, drawn = task.draw(task.data, key, whole[0], whole[2], place)
        made, unanswered = task.step(*whole[:2], batch), no
        if task.attempts:
            check_attempt(task.owner, made)
            made, unanswered = made[:3], made[3]
        check_step(task.owner, whole[:2], made)
        new = eqx.filter(made[:2], eqx.is_array)
        new, failed = _judged((params, state), new, made[2])
        # Whatever becomes of the step, its batch was drawn.
        new = (*new, eqx.filter(drawn, eqx.is_array))
        if task.attempts:
            new = jax.tree.map(lambda a, b: jnp.where(unanswered, a, b), old, new)
        record = eqx.filter(as_arrays(made[2]), eqx.is_array)
        return *new, record, failed & ~unanswered, unanswered

    program, like, _ = eqx.filter_make_jaxpr(one)(params, state, sampler, jnp.asarray(0))

    def again(chunk):
        stopped = (chunk.failed & task.stop_on_failure) | chunk.unanswered
        return (chunk.made < task.count) & ~stopped

    def body(chunk):
        *new, record, failed, unanswered = one(chunk.params, chunk.state, chunk.sampler, chunk.made)
        write = lambda column, x: column.at[chunk.made % column.shape[0]].set(x)
        records = jax.tree.map(write, chunk.records, record)
        made = jnp.where(unanswered, chunk.made, chunk.made + 1)
        return Chunk(*new, records, made, failed, unanswered)

    long = contains(program, SLOW) or flops(Program(program.jaxpr, program.consts)) > LONG
    once = jax.default_backend() == "cpu" and long
    rows = 1 if once else CAPACITY
    empty = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), like[3])
    start = Chunk(params, state, sampler, empty, task.first, no, no)
    return body(start) if once else jax.lax.while_loop(again, body, start)


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
