r"""Momentum: what the last step says about the next one.

`Spring` (subsampled projected-increment natural gradient): a minibatch determines a step only in
the directions that its metric sees. Of all steps that minimise the model of this batch, take the
one nearest to \(\mu\) times the last,

\[ d = \mu d_- - A^+(r + A\,\mu d_-) , \]

so that this batch decides what it can and earlier batches decide the rest (damped, the same with
\((G + λW)^{-1}A^\top\) in the place of \(A^+\)). \(\mu = 0\) is the natural gradient.

`HeavyBall`: \(d = \mu d_- - \delta\), blind to what the metric sees.

\(d_-\) is the last direction, before the step rule took its part of it. A rejected step forgets it,
or the same direction would be proposed again; a failed step (a NaN in the batch) leaves it alone.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import positive
from .._base.show import settings
from .._base.types import Flat, Scalar
from .._natural.subproblem import Subproblem


class AbstractMomentum(eqx.Module):
    """What the last direction does to the next. To write one, give `direction`."""

    numbers_are_data: ClassVar[bool] = False
    """Whether fields that are floats may be traced; another number then compiles nothing."""

    def __repr__(self) -> str:
        return settings(self, first=True)

    @abc.abstractmethod
    def direction(self, sub: Subproblem, previous: Flat) -> Flat:
        """Return the direction of the next step.

        **Arguments:**

        - `sub`: the problem near the point.
        - `previous`: the last direction; zero before the first step.
        """

    @property
    def remembers(self) -> bool:
        """Whether the last direction is kept at all."""
        return True


class Plain(AbstractMomentum):
    """No momentum: the natural gradient itself."""

    def direction(self, sub, previous):
        return -sub.solution

    @property
    def remembers(self):
        return False


class HeavyBall(AbstractMomentum):
    """Add a multiple of the last direction."""

    mu: float | Scalar
    numbers_are_data: ClassVar[bool] = True

    def __init__(self, mu: float | Scalar = 0.9):
        """Choose the momentum.

        **Arguments:**

        - `mu`: at least 0 and below 1.
        """
        positive("HeavyBall", "mu", mu, below=1, zero=True)
        self.mu = mu

    def direction(self, sub, previous):
        return jnp.asarray(self.mu, sub.dtype) * previous - sub.solution


class Spring(AbstractMomentum):
    """The minimum-norm correction of the last direction."""

    mu: float | Scalar
    max_norm: float | None
    numbers_are_data: ClassVar[bool] = True

    def __init__(self, mu: float | Scalar = 0.9, max_norm: float | None = None):
        """Choose the momentum.

        **Arguments:**

        - `mu`: at least 0 and below 1.
        - `max_norm`: the largest Euclidean norm of a direction; a longer one is scaled down to it.
            Defaults to no bound.
        """
        positive("Spring", "mu", mu, below=1, zero=True)
        if max_norm is not None:
            positive("Spring", "max_norm", max_norm)
        self.mu = mu
        self.max_norm = max_norm

    def direction(self, sub, previous):
        d = sub.correction(jnp.asarray(self.mu, sub.dtype) * previous)
        if self.max_norm is None:
            return d
        size = jnp.linalg.norm(d)
        longer = size > self.max_norm
        return d * jnp.where(longer, self.max_norm / jnp.where(longer, size, 1.0), 1.0)


def as_momentum(momentum: Any) -> AbstractMomentum:
    """Return the momentum that a user means."""
    if momentum is None:
        return Plain()
    if not isinstance(momentum, AbstractMomentum):
        raise ValueError(
            f"momentum must be Spring(mu) or HeavyBall(mu), or left out, got {momentum!r}."
        )
    return momentum


def remember(
    momentum: AbstractMomentum, old: Flat, direction: Flat, accepted: Array, failed: Array
) -> Flat:
    """Return the direction to keep: the new one, zero if rejected, the old one after a failure."""
    if not momentum.remembers:
        return old
    new = jnp.where(jnp.all(jnp.isfinite(direction)), direction.astype(old.dtype), 0.0)
    return jnp.where(failed, old, jnp.where(accepted, new, 0.0))
