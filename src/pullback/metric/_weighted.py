r"""A metric times a positive number, \(wM\).

The root is \(S_w = \sqrt w\,S\), with the factor in the grading, so \(\ell_w = \ell + \tfrac12\log
w\) and \(\hat r_w = \hat r/w\).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base import checks
from ._base import AbstractMetric, AbstractRoot


class WeightedRoot(AbstractRoot):
    """√w S."""

    log_scale: Float[Array, " q"]
    root: AbstractRoot
    weight: Float[Array, ""]

    def unit(self, w):
        return self.root.unit(w)

    def unit_transpose(self, v):
        return self.root.unit_transpose(v)

    def unit_lift(self, c):
        return self.root.unit_lift(c) / self.weight

    def unreached(self, c):
        return self.root.unreached(c)

    @property
    def samples(self):
        return self.root.samples

    @property
    def mean(self):
        return self.root.mean

    @property
    def removed(self):
        scale = jnp.sqrt(self.weight)
        return jax.tree.map(lambda x: scale.astype(x.dtype) * x, self.root.removed)


class Weighted(AbstractMetric):
    """A metric times a positive number, and its divergence times that number.

    **Arguments:**

    - `metric`: any metric, `Scores` included.
    - `weight`: a positive number, which may be traced.
    """

    metric: AbstractMetric
    weight: Float[Array, ""] | float

    def __check_init__(self):
        example = "Weighted(Euclidean(), 0.5)"
        checks.instance("Weighted", "metric", self.metric, AbstractMetric, "a metric", example)
        checks.positive("Weighted", "weight", self.weight, example=example)

    @property
    def nonsingular(self) -> bool:
        """The value of `metric`."""
        return self.metric.nonsingular

    @property
    def graded(self) -> bool:
        """The value of `metric`."""
        return self.metric.graded

    @property
    def couples_samples(self) -> bool:
        """The value of `metric`."""
        return self.metric.couples_samples

    @property
    def centred(self) -> bool:
        """The value of `metric`."""
        return self.metric.centred

    @property
    def event_ndim(self) -> int | None:
        """The value of `metric`."""
        return self.metric.event_ndim

    @property
    def has_divergence(self):
        return self.metric.has_divergence

    def root(self, z):
        root = self.metric.root(z)
        weight = jnp.asarray(self.weight).astype(root.log_scale.dtype)
        # log 0 = -inf is an absent direction in a root; a weight of zero is not a metric.
        return WeightedRoot(
            root.log_scale + jnp.where(weight > 0, jnp.log(weight) / 2, jnp.nan), root, weight
        )

    def apply(self, z, v):
        return jax.tree.map(
            lambda x: x * jnp.asarray(self.weight).astype(x.dtype), self.metric.apply(z, v)
        )

    def sharp(self, z, c):
        return jax.tree.map(
            lambda x: x / jnp.asarray(self.weight).astype(x.dtype), self.metric.sharp(z, c)
        )

    def divergence(self, u, z):
        value = self.metric.divergence(u, z)
        return value * jnp.asarray(self.weight).astype(value.dtype)

    def observe(self, targets, index):
        return Weighted(self.metric.observe(targets, index), self.weight)

    def weigh(self, weights):
        return Weighted(self.metric.weigh(weights), self.weight)

    def complaint(self, z):
        if not self.weight > 0:
            example = "Weighted(Euclidean(), 0.5)"
            return str(checks.error("Weighted", "weight", self.weight, "positive", example))
        return self.metric.complaint(z)
