"""Where batches come from: always the same arrays, a function of a PRNG key, or an iterator.

Step k of a run draws with `fold_in(key, k)`, so that a resumed run sees what the uninterrupted one
saw; an iterator is wound forward by the steps made.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._problem.composite import as_batch

STACKED = 8
"""How many batches of an iterator are handed to the device at once."""


class AbstractSource(eqx.Module):
    """Batches, some at a time, for a compiled loop."""

    def take(self, limit: int) -> tuple[Any, int]:
        """Data for the loop, and how many steps it lasts; 0 if the batches have ended."""
        raise NotImplementedError

    def draw(self, data: Any, key: PRNGKeyArray, place: Any) -> Any:
        """The batch of one step; traced."""
        raise NotImplementedError


class Same(AbstractSource):
    """The whole data in every step."""

    batch: Any

    def take(self, limit):
        return self.batch, limit

    def draw(self, data, key, place):
        return data


class Sampled(AbstractSource):
    """A function of a key."""

    sampler: Callable

    def take(self, limit):
        return None, limit

    def draw(self, data, key, place):
        return as_batch(self.sampler(key))


class Streamed(AbstractSource):
    """An iterator of batches."""

    iterator: Any = eqx.field(static=True)

    def take(self, limit):
        taken = list(itertools.islice(self.iterator, 1))
        if not taken:
            return None, 0
        first = _host(taken[0])
        while len(taken) < min(limit, STACKED) and (more := next(self.iterator, None)) is not None:
            if _shapes(_host(more)) != _shapes(first):
                self.iterator.put_back(more)
                break
            taken.append(more)
        hosts = [_host(batch) for batch in taken]
        # Always the same number, so that the loop is compiled once; the copies at the end are not
        # used.
        hosts += [hosts[-1]] * (STACKED - len(hosts))
        stack = lambda *xs: jnp.asarray(np.stack(xs)) if isinstance(xs[0], np.ndarray) else xs[0]
        return jax.tree.map(stack, *hosts), len(taken)

    def draw(self, data, key, place):
        return jax.tree.map(
            lambda x: (
                jax.lax.dynamic_index_in_dim(x, place, keepdims=False) if eqx.is_array(x) else x
            ),
            data,
        )


class Rewindable(Iterator):
    """An iterator into which an element can be put back."""

    def __init__(self, iterator: Iterator):
        """Wrap an iterator."""
        self.iterator, self.waiting = iterator, []

    def __next__(self):
        return self.waiting.pop() if self.waiting else next(self.iterator)

    def put_back(self, element: Any) -> None:
        """Put an element back."""
        self.waiting.append(element)


def _host(batch: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x) if eqx.is_array(x) else x, as_batch(batch))


def _shapes(batch: Any) -> Any:
    return jax.tree.structure(batch), [
        (x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in jax.tree.leaves(batch)
    ]


def as_source(batches: Any, skip: int) -> AbstractSource:
    """The source a user means."""
    if batches is None or isinstance(batches, tuple):
        arrays = jax.tree.map(
            lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, as_batch(batches)
        )
        return Same(arrays)
    if callable(batches):
        return Sampled(batches)
    if hasattr(batches, "__iter__"):
        iterator = iter(batches)
        passed = sum(1 for _ in itertools.islice(iterator, skip))
        if passed < skip:
            raise ValueError(
                f"the run goes on after {skip} steps, but the batches end after {passed}: give the iterable from its beginning."
            )
        return Streamed(Rewindable(iterator))
    raise ValueError(
        f"batches must be (inputs, targets), a function of a PRNG key, an iterable of batches, or None, got {type(batches).__name__}."
    )


class minibatches(eqx.Module):
    """A sampler for `fit`: batches of a given size, drawn from arrays without replacement, anew in
    every step.
    """

    batch: Any
    size: int = eqx.field(static=True)

    def __init__(self, batch: Any, size: int):
        """Make a sampler.

        **Arguments:**

        - `batch`: `(inputs, targets)` or `(inputs,)`.
        - `size`: the number of samples in a minibatch.
        """
        self.batch = jax.tree.map(
            lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, as_batch(batch)
        )
        self.size = size
        count = self._count
        if not 1 <= size <= count:
            raise ValueError(
                f"minibatches(size={size}): there are {count} samples, so size must be from 1 to {count}."
            )

    @property
    def _count(self) -> int:
        return next(x.shape[0] for x in jax.tree.leaves(self.batch) if eqx.is_array(x))

    def __call__(self, key: PRNGKeyArray) -> Any:
        """A minibatch.

        **Arguments:**

        - `key`: a PRNG key.
        """
        index = jax.random.choice(key, self._count, (self.size,), replace=False)
        return jax.tree.map(
            lambda x: jnp.take(x, index, axis=0) if eqx.is_array(x) else x, self.batch
        )
