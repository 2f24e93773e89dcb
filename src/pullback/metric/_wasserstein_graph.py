r"""The Wasserstein (Otto) metric on the probability simplex of a finite graph.

\[ M(p) = L(p)^+, \qquad L(p) = \sum_{(i,j) \in E} \omega_{ij}\,\theta(p_i, p_j)\,(e_i - e_j)(e_i -
e_j)^\top , \]

\(\theta\) a mean: how much mass an edge can move. A tangent vector \(v\), \(\sum_i v_i = 0\), is
paid by the cheapest flow along the edges whose divergence it is. \(M^+ = L(p)\), so the ambient
gradient of \(F\) is \(L(p)\nabla F\). With the logarithmic mean \(\theta(a, b) = (a - b)/(\log a -
\log b)\) that of \(\sum p\log p\) is the graph Laplacian \(\sum \omega_{ij}(p_i - p_j)(e_i -
e_j)\): its gradient flow is the heat equation on the graph (Maas).

With \(D = [\sqrt{\omega\theta}\,(e_i - e_j)]\), \(L = DD^\top\) and \(S = (D^+)^\top\): \(S^\top v
= D^+ v\) is the cheapest flow, and the lift is a difference along each edge, \(S^+ c = D^\top c\).
**Assumes** \(p \ge 0\). Constants are not seen; nor, where \(p\) vanishes and the graph falls
apart, is the exchange of mass between its parts. There is no closed form of the distance, hence no
divergence.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.tree import Structure
from ._base import AbstractMetric
from .._base.checks import is_concrete
from ._outputs import one_array
from ._roots import FactorRoot


class AbstractMean(eqx.Module):
    """A symmetric mean of two probabilities."""

    @abc.abstractmethod
    def __call__(self, a: Array, b: Array) -> Array:
        """θ(a, b).

        **Arguments:**

        - `a`, `b`: non-negative arrays of one shape.
        """


class LogarithmicMean(AbstractMean):
    """(a - b)/(log a - log b): the heat equation is the gradient flow of the entropy. Zero where
    one of the two is.
    """

    def __call__(self, a, b):
        # log a - log b = 2 artanh t with t = (a - b)/(a + b), and t/artanh t = 1 - t²/3 - 4t⁴/45 -
        # 44t⁶/945 - ... near zero.
        total = a + b
        t = (a - b) / jnp.where(total == 0, 1.0, total)
        near, far = jnp.abs(t) < 1e-2, jnp.abs(t) > 0.5
        series = 1 - t**2 / 3 - 4 * t**4 / 45 - 44 * t**6 / 945
        close = total / 2 * jnp.where(near, series, t / jnp.arctanh(jnp.where(near | far, 0.25, t)))
        both = (a > 0) & (b > 0)
        apart = (a - b) / jnp.where(
            far & both, jnp.log(jnp.where(both, a, 2.0)) - jnp.log(jnp.where(both, b, 1.0)), 1.0
        )
        return jnp.where(far, jnp.where((a == 0) | (b == 0), 0.0, apart), close)


class ArithmeticMean(AbstractMean):
    """(a + b)/2: mass may enter a vertex that has none."""

    def __call__(self, a, b):
        return (a + b) / 2


class WassersteinGraph(AbstractMetric):
    """The discrete W₂ metric on probabilities p (not logits) on the vertices of a graph, the last
    axis of one array.

    **Arguments:**

    - `edges`: pairs of vertices, each pair once.
    - `weights`: a positive weight for each edge; 1 each by default.
    - `mean`: `LogarithmicMean()` or `ArithmeticMean()`.
    """

    edges: tuple[tuple[int, int], ...] = eqx.field(static=True)
    weights: Float[Array, " E"] | None = None
    mean: AbstractMean = LogarithmicMean()
    nonsingular: ClassVar[bool] = False
    event_ndim: ClassVar[int | None] = 1

    def __init__(self, edges, weights=None, mean=None):
        try:
            pairs = np.asarray(edges)
            good = (
                pairs.ndim == 2
                and pairs.shape[1] == 2
                and pairs.dtype.kind in "iu"
                and bool((pairs >= 0).all())
            )
            good = (
                good
                and len({frozenset(map(int, pair)) for pair in pairs}) == len(pairs)
                and bool((pairs[:, 0] != pairs[:, 1]).all())
            )
        except (TypeError, ValueError):
            good = False
        if not good:
            raise ValueError(
                f"WassersteinGraph(edges=...) takes pairs of two different vertices, numbered from 0, each pair once, got {edges!r}. "
                f"For example WassersteinGraph(edges=((0, 1), (1, 2)))."
            )
        self.edges = tuple((int(i), int(j)) for i, j in pairs)
        if weights is not None:
            bad = np.shape(weights) != (len(pairs),)
            if bad or (is_concrete(weights) and not bool(np.all(np.asarray(weights) > 0))):
                raise ValueError(
                    f"WassersteinGraph(weights=...) takes {len(pairs)} positive weights, one an edge, got {weights!r}. "
                    f"For example WassersteinGraph(edges, weights=jnp.ones({len(pairs)}))."
                )
        self.weights = weights
        mean = LogarithmicMean() if mean is None else mean
        if not isinstance(mean, AbstractMean):
            raise ValueError(
                f"WassersteinGraph(mean=...) takes LogarithmicMean() or ArithmeticMean(), got {mean!r}. "
                f"For example WassersteinGraph(edges, mean=ArithmeticMean())."
            )
        self.mean = mean

    def _incidence(self, z) -> tuple[Float[Array, "*batch n E"], Structure]:
        """D, over the leading axes; NaN where a probability is negative."""
        p, like = one_array(
            z,
            "WassersteinGraph(edges)",
            "one array of probabilities, vertices on its last axis",
            "",
        )
        pairs = np.asarray(self.edges).reshape(-1, 2)
        n = p.shape[-1]
        if pairs.size and pairs.max() >= n:
            raise ValueError(
                f"WassersteinGraph(edges=...) names vertex {pairs.max()}, but the outputs have {n} vertices on their last axis "
                f"(shape {p.shape})."
            )
        signs = jnp.asarray(np.eye(n)[pairs[:, 0]].T - np.eye(n)[pairs[:, 1]].T, p.dtype)
        weights = (
            jnp.ones(len(pairs), p.dtype)
            if self.weights is None
            else jnp.asarray(self.weights).astype(p.dtype)
        )
        p = jnp.where(jnp.all(p >= 0, axis=-1, keepdims=True), p, jnp.nan)
        shape = (*p.shape[:-1], 1, len(pairs))
        capacity = self.mean(p[..., pairs[:, 0]], p[..., pairs[:, 1]]) * jnp.broadcast_to(
            weights, (*p.shape[:-1], len(pairs))
        )
        return jnp.broadcast_to(signs, (*p.shape[:-1], n, len(pairs))) * jnp.sqrt(capacity).reshape(
            shape
        ), like

    def root(self, z):
        incidence, like = self._incidence(z)
        return FactorRoot(
            jnp.swapaxes(jnp.linalg.pinv(incidence), -1, -2), jnp.swapaxes(incidence, -1, -2), like
        )

    def apply(self, z, v):
        incidence, like = self._incidence(z)
        v = like.ravel(v).reshape(*incidence.shape[:-1])
        inverse = jnp.linalg.pinv(incidence)
        return like.unravel(jnp.einsum("...en,...em,...m->...n", inverse, inverse, v).ravel())

    def sharp(self, z, c):
        incidence, like = self._incidence(z)
        c = like.ravel(c).reshape(*incidence.shape[:-1])
        return like.unravel(jnp.einsum("...ne,...me,...m->...n", incidence, incidence, c).ravel())

    def complaint(self, z):
        p, _ = one_array(z, "WassersteinGraph(edges)", "one array of probabilities", "")
        return (
            f"WassersteinGraph takes probabilities, and these outputs go from {float(p.min()):.6g} to {float(p.max()):.6g}: "
            f"return softmax(logits), not logits."
        )
