"""Where batches come from: the same arrays in every step, a function of a key, or an iterator.

Step k of a run draws with `fold_in(key, k)`, so that a resumed run gets the batches of the
uninterrupted one. An iterator is advanced by the number of steps already made. A sampler may depend
on the parameters, and carry a state from step to step.

A source lives on the host and hands data to the compiled loop, some steps at a time. Its `draw` is
a function without state: the compiled loop depends on the kind of source, never on the source
itself, so a second run with data of the same shapes compiles nothing.
"""

import abc
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .._base.checks import integer
from .._base.functions import canonical
from .._base.types import Params
from .._compat.devices import axes_of
from .._problem.batch import Batch, Batches, as_batch, as_batches
from .._problem.form import Form, about
from .._problem.padding import bare, sample_places
from .optimiser import check_kept

STACKED = 8
"""How many batches of an iterator are passed to the device at once."""
TRACER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a number is needed that is not there."""
BEGINNING = np.uint32(2**32 - 1)
"""What the key is folded with for the first state of a sampler; steps use smaller numbers."""


@runtime_checkable
class Sampler(Protocol):
    """A sampler of batches with a state, e.g. the positions of Markov chains.

    ```python
    class Chains(eqx.Module):
        def init(self, key, params):
            return jax.random.normal(key, (100, 3))

        def draw(self, key, params, state):
            state = metropolis(key, params, state)
            return (state,), state

    fit = pb.fit(opt, params, Chains(), steps=1000)
    fit.sampler  # the last state
    ```

    `draw` is traced, so it must be a pure function of arrays. The state is a pytree; a step keeps
    its structure, shapes and dtypes. It is saved and resumed with the run. It advances in every
    step, also in one that is rejected or fails: the batch was drawn.
    """

    def init(self, key: PRNGKeyArray, params: Params) -> Any:
        """Return the state before the first step.

        **Arguments:**

        - `key`: a PRNG key, which no step uses.
        - `params`: the parameters at the start.
        """
        ...

    def draw(self, key: PRNGKeyArray, params: Params, state: Any) -> tuple[Any, Any]:
        """Return the batch of one step, and the next state.

        **Arguments:**

        - `key`: the PRNG key of the step.
        - `params`: the parameters before the step.
        - `state`: the state.
        """
        ...


class AbstractSource(abc.ABC):
    """Batches for a compiled loop, some at a time."""

    same = False
    """Whether every step has the same batch."""
    constant = False
    """Whether the data for the loop are the same each time, and never end."""

    @abc.abstractmethod
    def take(self, limit: int) -> tuple[Any, int]:
        """Return data for the loop and the number of steps they suffice for; 0 at the end."""

    @staticmethod
    @abc.abstractmethod
    def draw(
        data: Any, key: PRNGKeyArray, params: Params, state: Any, place: Array
    ) -> tuple[Batch, Any]:
        """Return the batch of one step from the data, and the next state; traced."""


class AbstractConstant(AbstractSource):
    """A source whose data are the same in every step, whatever it draws from them."""

    constant = True

    def __init__(self, data: Any):
        """Keep the data: a batch, or a sampler, whose arrays are arguments of the loop."""
        self.data = data

    def take(self, limit: int) -> tuple[Any, int]:
        return self.data, limit


class Same(AbstractConstant):
    """The whole data in every step."""

    same = True

    @staticmethod
    def draw(
        data: Any, key: PRNGKeyArray, params: Params, state: Any, place: Array
    ) -> tuple[Batch, Any]:
        return data, state


class Sampled(AbstractConstant):
    """A function of a key."""

    @staticmethod
    def draw(
        data: Any, key: PRNGKeyArray, params: Params, state: Any, place: Array
    ) -> tuple[Batch, Any]:
        return as_batch(traced("batches", data, key)), state


class SampledAt(AbstractConstant):
    """A function of a key and the parameters."""

    @staticmethod
    def draw(
        data: Any, key: PRNGKeyArray, params: Params, state: Any, place: Array
    ) -> tuple[Batch, Any]:
        return as_batch(traced("batches", data, key, params)), state


class Carried(AbstractConstant):
    """A `Sampler`."""

    @staticmethod
    def draw(
        data: Any, key: PRNGKeyArray, params: Params, state: Any, place: Array
    ) -> tuple[Batch, Any]:
        made = traced("batches", data.draw, key, params, state)
        owner = type(data).__name__
        if not isinstance(made, tuple) or len(made) != 2:
            raise ValueError(
                f"{owner}.draw(key, params, state) must return (batch, state), got "
                f"{type(made).__name__}"
                + (f" of length {len(made)}." if isinstance(made, tuple) else ".")
            )
        check_kept(f"{owner}.draw: state", state, made[1], "draw")
        return as_batch(made[0]), made[1]


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
    def draw(
        data: Any, key: PRNGKeyArray, params: Params, state: Any, place: Array
    ) -> tuple[Batch, Any]:
        arrays, rest = eqx.partition(data, eqx.is_array)
        at_place = lambda x: jax.lax.dynamic_index_in_dim(x, place, keepdims=False)
        return eqx.combine(jax.tree.map(at_place, arrays), rest), state

    def _next(self) -> Any:
        """Return the next batch, its arrays on the host unless on a mesh; `None` at the end."""
        if self.waiting:
            return self.waiting.pop()
        taken = list(itertools.islice(self.batches, 1))
        return _host(taken[0]) if taken else None


def _is_key(x: Any) -> bool:
    """Whether a leaf is an array of typed PRNG keys, which NumPy cannot hold."""
    return eqx.is_array(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _host(batch: Any) -> Any:
    """Return a batch with its arrays in NumPy, but for those that are spread over devices."""
    stay = lambda x: not eqx.is_array(x) or _is_key(x) or bool(axes_of(x))
    return jax.tree.map(lambda x: x if stay(x) else np.asarray(x), as_batch(batch))


def _stack(*leaves: Any) -> Any:
    if eqx.is_array(leaves[0]):
        return jnp.stack(leaves)
    return jnp.asarray(np.stack(leaves)) if isinstance(leaves[0], np.ndarray) else leaves[0]


def _shapes(batch: Any) -> Any:
    leaves, treedef = jax.tree.flatten(batch)
    return treedef, [
        (x.shape, x.dtype) if eqx.is_array_like(x) and hasattr(x, "dtype") else x for x in leaves
    ]


def on_device(batch: Any) -> Batch:
    """Return a batch with its NumPy arrays as JAX arrays."""
    return jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, as_batch(batch)
    )


def as_source(batches: Any, skip: int) -> AbstractSource:
    """Return the source that a user means, advanced by `skip` steps."""
    if batches is None or isinstance(batches, tuple | Batches):
        return Same(on_device(batches))
    if isinstance(batches, type):
        name = batches.__name__
        raise ValueError(f"fit(batches={name}): {name} is a class; pass an instance, {name}(...).")
    if isinstance(batches, Sampler):
        return Carried(batches)
    if callable(batches):
        return (Sampled, SampledAt)[arguments_of(batches) - 1](canonical(batches))
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
        "fit(batches=...): batches must be (inputs, targets), a function of a PRNG key (and of the "
        f"parameters), a Sampler, an iterable of batches, or None, got {type(batches).__name__}."
    )


def traced(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function of the user draws; raise a `ValueError` if JAX cannot trace it."""
    try:
        return function(*given)
    except TRACER_ERRORS as failure:
        raise ValueError(
            f"fit({name}=function): JAX traces the function, so that its arguments have no numbers "
            f"yet, and it asks for one ({type(failure).__name__}). Write it with jax.numpy; for a "
            "simulator in Python, call opt.step in a loop of your own; data that do not depend on "
            "the parameters may come from an iterable."
        ) from failure


def first_state(batches: Any, key: PRNGKeyArray, params: Params) -> Any:
    """Return the state of a sampler before the first step, `None` for batches without one."""
    if not isinstance(batches, Sampler) or isinstance(batches, type):
        return None
    return batches.init(jax.random.fold_in(key, BEGINNING), params)


def arguments_of(sampler: Callable[..., Any], name: str = "batches") -> int:
    """Return how many arguments a sampler needs: 1, a key, or 2, a key and the parameters."""
    try:
        listed = inspect.signature(sampler).parameters.values()
    except (TypeError, ValueError):
        return 1  # a function without a signature, e.g. one written in C
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [x for x in listed if x.kind in positional and x.default is x.empty]
    named = [x.name for x in listed if x.kind is x.KEYWORD_ONLY and x.default is x.empty]
    takes = any(x.kind in (*positional, x.VAR_POSITIONAL) for x in listed)
    if len(needed) > 2 or named or not takes:
        verb = "needs" if takes or named else "takes"
        raise ValueError(
            f"fit({name}=function): the function must take a PRNG key, or a key and the "
            f"parameters, e.g. fit({name}=lambda key, params: ...); it {verb} "
            f"{', '.join([x.name for x in needed] + named) or 'no arguments'}."
        )
    # `lambda *args: ...`, and a function whose arguments all have defaults, get a key.
    return max(len(needed), 1)


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
