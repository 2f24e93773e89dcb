r"""The contract of a momentum: what earlier steps say about the next one.

A momentum has a memory \(m\), proposes a direction \(d(m)\), and bounds how much of the direction a
step may take:

\[ \theta_{k+1} = \theta_k + \min(t, \bar t(m, d))\,d , \qquad m_{k+1} = \mathrm{remember}(m, d) ,
\]

with \(t\) by the step rule. \(d\) is the direction before the rule took its part of it. By default
the memory is the last direction, and \(\bar t = \infty\).

A rejected step resets the memory to that before the first step, or the same direction would be
proposed again. A failed step (a NaN in the batch) leaves the memory as it is.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.show import settings
from .._base.types import Flat, Scalar
from .._natural.subproblem import Subproblem


class AbstractMomentum(eqx.Module):
    """What earlier steps do to the next. To write one, give `direction`.

    The memory is the last direction. For another one, give `init` and `remember` too.

    ```python
    class Nesterov(pb.AbstractMomentum):
        def direction(self, sub, memory):
            return 0.9 * memory - 1.9 * sub.solution
    ```
    """

    numbers_are_data: ClassVar[bool] = False
    """Whether fields that are floats may be traced; another number then compiles nothing."""

    def __repr__(self) -> str:
        return settings(self, first=True)

    def init(self, size: int, dtype: Any) -> PyTree[Array]:
        """Return the memory before the first step and after a rejected one; defaults to zero.

        The memory is a pytree of arrays with fixed shapes and dtypes.

        **Arguments:**

        - `size`: the number of parameters.
        - `dtype`: the dtype of its numbers.
        """
        return jnp.zeros(size, dtype)

    @abc.abstractmethod
    def direction(self, sub: Subproblem, memory: Any) -> Flat:
        """Return the direction of the next step.

        **Arguments:**

        - `sub`: the problem near the point.
        - `memory`: the memory; unless `remember` is given, the last direction, and zero before the
            first step.
        """

    def remember(self, sub: Subproblem, memory: Any, direction: Flat) -> Any:
        """Return the memory after a step; defaults to the direction.

        **Arguments:**

        - `sub`: the problem near the point, damped as the direction is.
        - `memory`: the memory before the step.
        - `direction`: the direction that the step took a part of.
        """
        return direction

    def corrects(self, memory: Any) -> Flat | None:
        """Return p, the step that `direction` corrects; `None`, the default, if it corrects none.

        The optimiser then solves for the correction with the step, and certifies it;
        `sub.correction(p)` returns the corrected step.

        **Arguments:**

        - `memory`: the memory.
        """
        return None

    def limit(self, memory: Any, direction: Flat) -> Scalar | None:
        """Return the largest part of the direction that a step may take; `None` for no bound.

        **Arguments:**

        - `memory`: the memory before the step.
        - `direction`: the direction.
        """
        return None

    @property
    def remembers(self) -> bool:
        """Whether there is a memory at all."""
        return True


class Plain(AbstractMomentum):
    """No momentum: the natural gradient itself."""

    def init(self, size, dtype):
        return jnp.zeros(0, dtype)

    def direction(self, sub, memory):
        return -sub.solution

    @property
    def remembers(self):
        return False


def as_momentum(momentum: Any) -> AbstractMomentum:
    """Return the momentum that a user means."""
    if momentum is None:
        return Plain()
    if not isinstance(momentum, AbstractMomentum):
        raise ValueError(
            f"momentum must be Spring(mu) or HeavyBall(mu), or left out, got {momentum!r}."
        )
    return momentum


def aimed(momentum: AbstractMomentum, sub: Subproblem, memory: Any) -> Subproblem:
    """Return the subproblem with the direction of a momentum, and with its bound."""
    if not momentum.remembers:
        return sub
    name, size = type(momentum).__name__, sub.evaluation.rows.shape[1]
    memory = _cast(memory, sub.dtype)

    def direction(sub: Subproblem) -> Flat:
        found: Any = momentum.direction(sub, memory)
        if not eqx.is_array(found) or found.shape != (size,):
            got = f"an array of shape {found.shape}" if eqx.is_array(found) else type(found)
            raise ValueError(
                f"{name}.direction(sub, memory) must return a flat vector of shape ({size},), got "
                f"{got}. What is kept for the next step is returned by `remember(sub, memory, "
                "direction)`."
            )
        if not jnp.issubdtype(found.dtype, jnp.floating):
            raise ValueError(
                f"{name}.direction(sub, memory) must return real floating numbers, got "
                f"{found.dtype}."
            )
        return found.astype(sub.dtype)

    def longest(d: Flat) -> Scalar | None:
        found = momentum.limit(memory, d)
        if found is not None and jnp.shape(found) != ():
            raise ValueError(
                f"{name}.limit(memory, direction) must return one number or None, got shape "
                f"{jnp.shape(found)}."
            )
        return found

    previous: Any = momentum.corrects(memory)
    if previous is not None:
        if not eqx.is_array(previous) or previous.shape != (size,):
            got = f"shape {previous.shape}" if eqx.is_array(previous) else type(previous).__name__
            raise ValueError(
                f"{name}.corrects(memory) must return a flat vector of shape ({size},) or None, "
                f"got {got}."
            )
        previous = previous.astype(sub.dtype)
    return sub.aimed(direction, longest, previous)


def recall(momentum: AbstractMomentum, sub: Subproblem, old: Any, direction: Flat) -> Any:
    """Return the memory after a step that is taken; raise a `ValueError` for another structure."""
    if not momentum.remembers:
        return old
    new = momentum.remember(sub, _cast(old, sub.dtype), direction)
    shapes = lambda tree: (jax.tree.structure(tree), [jnp.shape(x) for x in jax.tree.leaves(tree)])
    if shapes(new) != shapes(old):
        name = type(momentum).__name__
        raise ValueError(
            f"{name}.remember must return a memory with the structure and shapes of "
            f"{name}.init(size, dtype): {shapes(old)}, got {shapes(new)}. Give `init` too."
        )
    return new


def kept_memory(
    momentum: AbstractMomentum, sub: Subproblem, old: Any, new: Any, accepted: Array, failed: Array
) -> Any:
    """Return the memory to keep: the new one, the first if rejected, the old one if failed."""
    if not momentum.remembers:
        return old
    first = momentum.init(sub.evaluation.rows.shape[1], sub.dtype)

    def leaf(old, new, first):
        return jnp.where(failed, old, jnp.where(accepted, new, first).astype(old.dtype))

    return jax.tree.map(leaf, old, new, first)


def _cast(memory: Any, dtype: Any) -> Any:
    """Return a memory with its floating leaves in the dtype of the linear algebra."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, memory)
