"""Where batches come from: always the same arrays, a function of a PRNG key, or an iterator.

Step k of a run draws with `fold_in(key, k)`, so that a resumed run gets the batches of the
uninterrupted one. An iterator is advanced by the number of steps already made.

A source lives on the host and hands data to the compiled loop, some steps at a time. Its `draw` is
a function without state: the compiled loop depends on the kind of source, never on the source
itself, so a second run with data of the same shapes compiles nothing.
"""

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .._problem.batch import as_batch

STACKED = 8
"""How many batches of an iterator are passed to the device at once."""


class AbstractSource(abc.ABC):
    """Batches for a compiled loop, some at a time."""

    @abc.abstractmethod
    def take(self, limit: int) -> tuple[Any, int]:
        """Return data for the loop and the number of steps they suffice for; 0 at the end."""

    @staticmethod
    @abc.abstractmethod
    def draw(data: Any, key: PRNGKeyArray, place: Array) -> Any:
        """Return the batch of one step from the data; traced."""


class Same(AbstractSource):
    """The whole data in every step."""

    def __init__(self, batch: Any):
        """Keep a batch."""
        self.batch = batch

    def take(self, limit: int) -> tuple[Any, int]:
        return self.batch, limit

    @staticmethod
    def draw(data: Any, key: PRNGKeyArray, place: Array) -> Any:
        return data


class Sampled(AbstractSource):
    """A function of a key."""

    def __init__(self, sampler: Callable[[PRNGKeyArray], Any]):
        """Keep a sampler, which is itself the data: the arrays in it are arguments of the loop."""
        self.sampler = sampler

    def take(self, limit: int) -> tuple[Any, int]:
        return self.sampler, limit

    @staticmethod
    def draw(data: Any, key: PRNGKeyArray, place: Array) -> Any:
        return as_batch(data(key))


class Streamed(AbstractSource):
    """An iterator of batches."""

    def __init__(self, batches: Iterator[Any]):
        """Keep an iterator, which is used up."""
        self.batches = batches
        self.waiting: list[Any] = []

    def take(self, limit: int) -> tuple[Any, int]:
        taken = [first] if (first := self._next()) is not None else []
        while taken and len(taken) < min(limit, STACKED):
            more = self._next()
            if more is None:
                break
            if _shapes(more) != _shapes(first):
                # A stack has one shape: this batch begins the next one.
                self.waiting.append(more)
                break
            taken.append(more)
        if not taken:
            return None, 0
        # Always the same number, so that the loop is compiled once; the loop does not use the
        # copies at the end.
        padded = taken + [taken[-1]] * (STACKED - len(taken))
        return jax.tree.map(_stack, *padded), len(taken)

    @staticmethod
    def draw(data: Any, key: PRNGKeyArray, place: Array) -> Any:
        arrays, rest = eqx.partition(data, eqx.is_array)
        at_place = lambda x: jax.lax.dynamic_index_in_dim(x, place, keepdims=False)
        return eqx.combine(jax.tree.map(at_place, arrays), rest)

    def _next(self) -> Any:
        """Return the next batch with NumPy arrays, or `None` at the end."""
        if self.waiting:
            return self.waiting.pop()
        taken = list(itertools.islice(self.batches, 1))
        return _host(taken[0]) if taken else None


def _host(batch: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x) if eqx.is_array(x) else x, as_batch(batch))


def _stack(*leaves: Any) -> Any:
    return jnp.asarray(np.stack(leaves)) if isinstance(leaves[0], np.ndarray) else leaves[0]


def _shapes(batch: Any) -> Any:
    leaves, treedef = jax.tree.flatten(batch)
    return treedef, [(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in leaves]


def _device(batch: Any) -> Any:
    return jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, as_batch(batch)
    )


def as_source(batches: Any, skip: int) -> AbstractSource:
    """Return the source that a user means, advanced by `skip` steps."""
    if batches is None or isinstance(batches, tuple):
        return Same(_device(batches))
    if callable(batches):
        return Sampled(batches)
    if isinstance(batches, Iterable):
        iterator = iter(batches)
        passed = sum(1 for _ in itertools.islice(iterator, skip))
        if passed < skip:
            raise ValueError(
                f"fit(batches=...): the run resumes after {skip} steps, but the batches end after "
                f"{passed}. Pass the iterable from its beginning."
            )
        return Streamed(iterator)
    raise ValueError(
        "fit(batches=...): batches must be (inputs, targets), a function of a PRNG key, an "
        f"iterable of batches, or None, got {type(batches).__name__}."
    )


class minibatches(eqx.Module):
    """A sampler for `fit`: minibatches without replacement, drawn independently in every step.

    ```python
    fit = pb.fit(opt, params, pb.minibatches((x, y), 32), steps=1000)
    ```
    """

    batch: Any
    size: int = eqx.field(static=True)

    def __init__(self, batch: Any, size: int):
        """Make a sampler.

        **Arguments:**

        - `batch`: `(inputs, targets)` or `(inputs,)`.
        - `size`: the number of samples in a minibatch.
        """
        self.batch = _device(batch)
        self.size = size
        count = self._count
        if not 1 <= size <= count:
            raise ValueError(
                f"minibatches(size={size}): there are {count} samples, so size must be from 1 to "
                f"{count}."
            )

    @property
    def _count(self) -> int:
        return next(x.shape[0] for x in jax.tree.leaves(self.batch) if eqx.is_array(x))

    def __call__(self, key: PRNGKeyArray) -> Any:
        """Return a minibatch.

        **Arguments:**

        - `key`: a PRNG key.
        """
        index = jax.random.choice(key, self._count, (self.size,), replace=False)
        return jax.tree.map(
            lambda x: jnp.take(x, index, axis=0) if eqx.is_array(x) else x, self.batch
        )
