"""A problem whose samples are spread over devices, seen from one of them.

The measure knows the devices (`measure.Shared`), and the number of samples of all of them.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.axis import Axis, anywhere, gathered, own, place, total
from .._base.checks import takes
from .._base.types import OutputCovector, Outputs
from .._compat.devices import Layout
from .batch import Batch, replace_absent, sample_count
from .measure import AbstractMeasure, Shared
from .padding import Padded, bare, positions, taken


def spread(problem: Any, layout: Layout) -> Any:
    """Return a problem of one or several terms on the devices that share its samples."""
    if not layout.names:
        return problem
    axis = Axis(layout.names, layout.size)
    share = lambda term: eqx.tree_at(lambda t: t.measure, term, Shared(term.measure, axis))
    return problem.mapped(share)


def declare(problem: Any, layout: Layout) -> Any:
    """Return a problem whose samples are on these devices, also where arrays do not tell it."""
    return problem.mapped(lambda term: replace(term, over=layout))


def unpadded(problem: Any, batch: Batch) -> tuple[Any, Batch]:
    """Return a problem of one term and its batch, of which the measure knows the padding."""
    if not isinstance(batch.inputs, Padded):
        return problem, batch
    measure = problem.measure.padded(batch.inputs.counts)
    return eqx.tree_at(lambda p: p.measure, problem, measure), bare(batch)


def whole(problem: Any) -> Any:
    """Return the problem for a batch that is whole again, and without padding."""
    return eqx.tree_at(lambda p: p.measure, problem, problem.measure.whole)


def is_joint(problem: Any, outputs: Outputs, batch: Batch) -> bool:
    """Return whether the loss is one number for samples of several devices, or beside padding."""
    loss, measure = problem.loss, problem.measure
    if (measure.axis is None and measure.counts is None) or loss is None:
        return False
    given = (outputs,) if batch.targets is None else (outputs, batch.targets)
    if not takes(loss, *given):
        return False
    return eqx.filter_eval_shape(lambda *given: jnp.asarray(loss(*given)), *given).ndim == 0


def everywhere(problem: Any, outputs: Outputs, batch: Batch) -> tuple[Outputs, Batch]:
    """Return outputs and targets of the samples of all devices, for a loss that is one number.

    Of the inputs only the number of samples is left.
    """
    arrays, static = eqx.partition((outputs, batch.targets), eqx.is_array)
    arrays = gathered(arrays, problem.axis)
    length = _length(problem, batch)
    if length is not None and problem.measure.counts is not None:
        places = positions(problem.measure.counts, length)
        arrays, length = taken(arrays, places), len(places)
    outputs, targets = eqx.combine(arrays, static)
    return outputs, Batch(None if length is None else jnp.zeros(length), targets)


def _length(problem: Any, batch: Batch) -> int | None:
    """Return the number of entries of a batch on all devices."""
    count = sample_count(batch)
    return count if count is None or problem.axis is None else count * problem.axis.size


def back(problem: Any, c: OutputCovector, batch: Batch) -> OutputCovector:
    """Return the share of this device of what `everywhere` was differentiated to."""
    length, counts = _length(problem, batch), problem.measure.counts
    if length is not None and counts is not None:
        places = positions(counts, length)
        put = lambda x: jnp.zeros((length, *x.shape[1:]), x.dtype).at[places].set(x)
        c = jax.tree.map(put, c)
    return own(c, problem.axis)


def present(measure: AbstractMeasure, batch: Batch, count: int) -> Batch:
    """Replace every sample of weight zero by the first present one, of whichever device."""
    dtype = jnp.result_type(float)
    if not isinstance(measure, Shared):
        return replace_absent(batch, measure.weights(count, dtype))
    axis, weights = measure.devices, measure.weights(count, dtype)
    first = jnp.argmax(measure.all_weights(count, dtype) > 0)
    mine, index = place(axis) == first // count, first % count

    def fill(x):
        if not eqx.is_array(x):
            return x
        raw = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        # Where everything else is zero, a sum is a copy.
        sample = jnp.where(mine, raw[index], jnp.zeros_like(raw[index]))
        flags = raw.dtype == bool
        sample = anywhere(sample, axis) if flags else total(sample, axis)
        filled = jnp.where((weights > 0).reshape(-1, *(1,) * (raw.ndim - 1)), raw, sample)
        return filled if raw is x else jax.random.wrap_key_data(filled, impl=jax.random.key_impl(x))

    return jax.tree.map(fill, batch)
