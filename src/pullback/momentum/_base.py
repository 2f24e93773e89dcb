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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.checks import positive
from .._base.types import Flat, Scalar
from .._natural.subproblem import Local
from ..step._base import Aim


class AbstractMomentum(eqx.Module):
    """What the last direction does to the next."""

    @abc.abstractmethod
    def aim(self, previous: Flat) -> Aim:
        """The direction as a function of the loss near the point.

        **Arguments:**

        - `previous`: the last direction; zero before the first step.
        """

    @property
    def remembers(self) -> bool:
        """Whether the last direction is kept at all."""
        return True


class Plain(AbstractMomentum):
    """No momentum: the natural gradient itself."""

    def aim(self, previous):
        return lambda local: local.direction()

    @property
    def remembers(self):
        return False


class HeavyBall(AbstractMomentum):
    """Add a multiple of the last direction."""

    mu: float | Scalar

    def __init__(self, mu: float | Scalar = 0.9):
        """Choose the momentum.

        **Arguments:**

        - `mu`: at least 0 and below 1.
        """
        positive("HeavyBall", "mu", mu, below=1, zero=True)
        self.mu = mu

    def aim(self, previous):
        def aim(local: Local) -> Flat:
            return local.direction() + jnp.asarray(self.mu, local.metric.dtype) * previous.astype(
                local.metric.dtype
            )

        return aim


class Spring(AbstractMomentum):
    """The minimum-norm correction of the last direction."""

    mu: float | Scalar
    max_norm: float | None

    def __init__(self, mu: float | Scalar = 0.9, max_norm: float | None = None):
        """Choose the momentum.

        **Arguments:**

        - `mu`: at least 0 and below 1.
        - `max_norm`: the largest Euclidean norm of a direction; a longer one is scaled down to it.
            No bound if left out.
        """
        positive("Spring", "mu", mu, below=1, zero=True)
        if max_norm is not None:
            positive("Spring", "max_norm", max_norm)
        self.mu, self.max_norm = mu, max_norm

    def aim(self, previous):
        def aim(local: Local) -> Flat:
            dtype = local.metric.dtype
            d = local.direction(jnp.asarray(self.mu, dtype) * previous.astype(dtype))
            if self.max_norm is None:
                return d
            size = jnp.linalg.norm(d)
            return d * jnp.where(
                size > self.max_norm, self.max_norm / jnp.where(size > 0, size, 1.0), 1.0
            )

        return aim


def as_momentum(momentum: Any) -> AbstractMomentum:
    """The momentum a user means."""
    if momentum is None:
        return Plain()
    if not isinstance(momentum, AbstractMomentum):
        raise ValueError(
            f"momentum must be Spring(mu) or HeavyBall(mu), or left out, got {momentum!r}."
        )
    return momentum


def remember(
    momentum: AbstractMomentum, old: Flat, direction: Flat, accepted: Any, failed: Any
) -> Flat:
    """The direction to keep: the new one; zero after a rejection; the old one after a failure."""
    if not momentum.remembers:
        return old
    new = jnp.where(jnp.all(jnp.isfinite(direction)), direction.astype(old.dtype), 0.0)
    return jnp.where(failed, old, jnp.where(accepted, new, jax.tree.map(jnp.zeros_like, old)))
