"""Minibatches of arrays, drawn without replacement."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from .._base.checks import integer
from .._problem.batch import Batch, Batches, as_batches
from .._problem.form import Form, about
from .._problem.padding import bare, sample_places
from .batches import on_device


class minibatches(eqx.Module):
    """A sampler for `fit`: minibatches without replacement, drawn independently in every step.

    ```python
    fit = pb.fit(opt, params, pb.minibatches((x, y), 32), steps=1000)
    ```
    """

    batch: Any
    size: int | tuple[int, ...] = eqx.field(static=True)

    def __init__(self, batch: Any, size: Any):
        """Make a sampler.

        **Arguments:**

        - `batch`: `(inputs, targets)` or `(inputs,)`. For `Terms` a dictionary of such batches by
            name, or a tuple of them if `size` is a tuple.
        - `size`: the number of samples in a minibatch. For `Terms` one number for all terms, or
            one for each, in the form of `batch`.
        """
        if isinstance(batch, dict) or isinstance(size, tuple | list | dict):
            names = tuple(sorted(batch)) if isinstance(batch, dict) else None
            form = Form(names, len(batch))
            self.batch = on_device(as_batches(form, batch))
            sizes = (
                size if isinstance(size, tuple | list | dict) else form.pack([size] * len(batch))
            )
            self.size = form.unpack(sizes, "minibatches(size=...)", "32")
            for label, part, own in zip(form.labels, self.batch.parts, self.size, strict=True):
                with about(label):
                    _check_size(part, own)
            return
        self.batch = on_device(batch)
        self.size = integer("minibatches", "size", size, least=1)
        _check_size(self.batch, self.size)

    @property
    def steps_per_epoch(self) -> float:
        """How many minibatches have as many samples as there are; of terms, the largest number."""
        parts = zip(self.batch.parts, self._sizes, strict=True)
        return max(_count(part) / size for part, size in parts)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.size if isinstance(self.size, tuple) else (self.size,)

    def __call__(self, key: PRNGKeyArray) -> Any:
        """Return a minibatch.

        **Arguments:**

        - `key`: a PRNG key.
        """
        if not isinstance(self.batch, Batches):
            return _drawn(self.batch, self._sizes[0], key)
        keys = jax.random.split(key, len(self._sizes))
        parts = zip(self.batch.parts, self._sizes, keys, strict=True)
        return Batches(tuple(_drawn(*part) for part in parts), self.batch.form)


def _count(batch: Batch) -> int:
    """Return the number of samples; 1 without data."""
    places = sample_places(batch)
    if places is not None:
        return len(places)
    return next((x.shape[0] for x in jax.tree.leaves(batch) if eqx.is_array(x)), 1)


def _check_size(batch: Batch, size: Any) -> None:
    """Raise a `ValueError` if a minibatch of that size cannot be drawn."""
    size = integer("minibatches", "size", size, least=1)
    counts = {x.shape[0] for x in jax.tree.leaves(batch) if eqx.is_array(x)}
    if len(counts) > 1:
        raise ValueError(
            "minibatches(batch=...): inputs and targets must have as many samples as each "
            f"other, got {', '.join(map(str, sorted(counts)))}."
        )
    count = _count(batch)
    if counts and not 1 <= size <= count:
        raise ValueError(
            f"minibatches(size={size}): there are {count} samples, so size must be from 1 to "
            f"{count}."
        )


def _drawn(batch: Batch, size: int, key: PRNGKeyArray) -> Batch:
    """Return some samples of a batch; a batch without data as it is."""
    if batch.inputs is None:
        return batch
    index = jax.random.choice(key, _count(batch), (size,), replace=False)
    places = sample_places(batch)
    if places is not None:
        index, batch = jnp.asarray(places)[index], bare(batch)
    return jax.tree.map(lambda x: jnp.take(x, index, axis=0) if eqx.is_array(x) else x, batch)
