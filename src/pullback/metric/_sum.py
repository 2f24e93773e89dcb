r"""The sum of metrics on the same outputs, \(M = \sum_a M_a\).

The root is \(S = [S_1 \dots S_n]\), gradings kept. The lift is dense: \(S^+ c = S^\top M^+ c\), so
\(\hat r = \hat S^\top M^+ c\) needs no division by the grading, and \(M^+ c = (S^+)^\top S^+ c\)
comes from the pseudo-inverse of \(S\), which does not square its condition number.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._base import checks
from .._base.tree import Structure, structure
from .._base.vector import finite_or_nan
from ._base import AbstractMetric, AbstractRoot
from ._check import require_metrics
from ._roots import dense_factor


class SumRoot(AbstractRoot):
    """The roots next to each other."""

    log_scale: Float[Array, " q"]
    roots: tuple[AbstractRoot, ...]
    inverse: Float[Array, "q k"]
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        pieces = jnp.split(w, np.cumsum([root.size for root in self.roots])[:-1])
        return _add([root.unit(x) for root, x in zip(self.roots, pieces, strict=True)])

    def unit_transpose(self, v):
        return jnp.concatenate([root.unit_transpose(v) for root in self.roots])

    def unit_lift(self, c):
        return self.unit_transpose(
            self.like.unravel(self.inverse.T @ (self.inverse @ self.like.ravel(c)))
        )


def _add(trees: list[PyTree]) -> PyTree:
    """The sum of trees, leaf by leaf."""
    return jax.tree.map(lambda *leaves: sum(leaves), *trees)


class Sum(AbstractMetric):
    """The sum of metrics on the same outputs, e.g. `Sum((Categorical(), Euclidean(1e-3)))`.

    The divergence is the sum of the divergences.

    **Arguments:**

    - `metrics`: a tuple of metrics.
    """

    metrics: tuple[AbstractMetric, ...]

    def __check_init__(self):
        wanted = "a tuple of metrics"
        if not isinstance(self.metrics, tuple | list) or not self.metrics:
            raise checks.error("Sum", "metrics", self.metrics, wanted, _EXAMPLE)
        require_metrics("Sum", "metrics", self.metrics, wanted, _EXAMPLE)

    @property
    def nonsingular(self) -> bool:
        """Whether one of the metrics is."""
        return any(metric.nonsingular for metric in self.metrics)

    @property
    def graded(self) -> bool:
        """Whether one of the metrics is."""
        return any(metric.graded for metric in self.metrics)

    @property
    def event_ndim(self) -> int | None:
        """The largest among the metrics."""
        known = [metric.event_ndim for metric in self.metrics if metric.event_ndim is not None]
        return max(known) if len(known) == len(self.metrics) else None

    @property
    def has_divergence(self):
        return all(metric.has_divergence for metric in self.metrics)

    def root(self, z):
        roots = tuple(metric.root(z) for metric in self.metrics)
        like = structure(z)
        factor = jnp.concatenate([dense_factor(root, like) for root in roots], axis=1)
        return SumRoot(
            jnp.concatenate([root.log_scale for root in roots]),
            roots,
            jnp.linalg.pinv(finite_or_nan(factor)),
            like,
        )

    def apply(self, z, v):
        return _add([metric.apply(z, v) for metric in self.metrics])

    def sharp(self, z, c):
        root = self.root(z)
        return root.like.unravel(root.inverse.T @ (root.inverse @ root.like.ravel(c)))

    def divergence(self, u, z):
        return sum(metric.divergence(u, z) for metric in self.metrics)

    def observe(self, targets, index):
        return Sum(tuple(metric.observe(targets, index) for metric in self.metrics))

    def complaint(self, z):
        bad = [metric.complaint(z) for metric in self.metrics if not metric.root(z).is_finite]
        return " ".join(bad) or "Sum is not finite at these outputs."


_EXAMPLE = "Sum((Categorical(), Euclidean(1e-3)))"
