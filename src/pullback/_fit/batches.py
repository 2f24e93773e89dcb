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

from .._base.functions import canonical
from .._base.types import Params
from .._compat.devices import axes_of
from .._problem.batch import Batch, Batches, as_batch
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
            f"fit({name}=...): JAX traces what draws the batches, so that key and parameters have "
            f"no numbers yet, and it asks for one ({type(failure).__name__}). Write it with "
            "jax.numpy; for a simulator in Python, call opt.step in a loop of your own; data that "
            "do not depend on the parameters may come from an iterable."
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
