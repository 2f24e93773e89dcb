"""How `fit` reads the batches of several terms, whoever draws them.

A tuple of two batches looks like inputs and targets: only the problem knows which it is.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray

from .._base.functions import canonical
from .._base.types import Params
from .._problem.batch import Batches, as_batches
from .._problem.form import Form
from .._problem.terms import Terms
from .batches import Sampler, arguments_of, on_device


def read_by(opt: Any, batches: Any, name: str = "batches") -> Any:
    """Return batches as the problem of an optimiser reads them, whoever draws them."""
    problem = getattr(opt, "problem", None)
    form = problem.form if isinstance(problem, Terms) else None
    if form is None or isinstance(batches, type | Read | ReadAt | ReadSampler | ReadStream):
        return batches
    if batches is None or isinstance(batches, tuple | dict | Batches):
        return on_device(as_batches(form, batches))
    if isinstance(batches, Sampler):
        return ReadSampler(batches, form)
    if callable(batches):
        return (Read, ReadAt)[arguments_of(batches, name) - 1](canonical(batches), form)
    if isinstance(batches, list):
        return [as_batches(form, batch) for batch in batches]
    return ReadStream(batches, form) if isinstance(batches, Iterable) else batches


def _length(sampler: Any) -> float | None:
    """Return how many steps make an epoch, if the sampler says so."""
    return getattr(sampler, "steps_per_epoch", None)


class Read(eqx.Module):
    """A function of a key that draws the batches of several terms."""

    sampler: Callable[..., Any]
    form: Form = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Batches:
        return as_batches(self.form, self.sampler(key))

    @property
    def steps_per_epoch(self) -> float | None:
        """That of the function."""
        return _length(self.sampler)


class ReadAt(eqx.Module):
    """A function of a key and the parameters that draws the batches of several terms."""

    sampler: Callable[..., Any]
    form: Form = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray, params: Params) -> Batches:
        return as_batches(self.form, self.sampler(key, params))

    @property
    def steps_per_epoch(self) -> float | None:
        """That of the function."""
        return _length(self.sampler)


class ReadStream:
    """An iterable of the batches of several terms."""

    def __init__(self, batches: Iterable[Any], form: Form):
        """Keep an iterable; nothing is taken yet."""
        self.batches = batches
        self.form = form

    def __iter__(self) -> Iterator[Batches]:
        return map(partial(as_batches, self.form), self.batches)

    @property
    def steps_per_epoch(self) -> float | None:
        """That of the iterable."""
        return _length(self.batches)


class ReadSampler(eqx.Module):
    """A `Sampler` that draws the batches of several terms."""

    sampler: Sampler
    form: Form = eqx.field(static=True)

    @property
    def steps_per_epoch(self) -> float | None:
        """That of the sampler."""
        return _length(self.sampler)

    def init(self, key: PRNGKeyArray, params: Params) -> Any:
        return self.sampler.init(key, params)

    def draw(self, key: PRNGKeyArray, params: Params, state: Any) -> tuple[Any, Any]:
        made = self.sampler.draw(key, params, state)
        if not isinstance(made, tuple) or len(made) != 2:
            return made
        return as_batches(self.form, made[0]), made[1]
