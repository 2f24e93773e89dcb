r"""The Wasserstein (Otto) metric on the probability simplex of a finite graph.

\[ M(p) = L(p)^+, \qquad L(p) = \sum_{(i,j) \in E} \omega_{ij}\,\theta(p_i, p_j)\,(e_i - e_j)(e_i -
e_j)^\top , \]

\(\theta\) a mean: how much mass an edge can move. The squared length of a tangent vector \(v\),
\(\sum_i v_i = 0\), is the cost of the cheapest flow along the edges whose divergence is \(v\).
\(M^+ = L(p)\), so the ambient gradient of \(F\) is \(L(p)\nabla F\). With the logarithmic mean
\(\theta(a, b) = (a - b)/(\log a - \log b)\) the ambient gradient of \(\sum p\log p\) is the graph
Laplacian \(\sum \omega_{ij}(p_i - p_j)(e_i - e_j)\): the gradient flow of the entropy is the heat
equation on the graph (Maas).

With \(D = [\sqrt{\omega\theta}\,(e_i - e_j)]\), \(L = DD^\top\) and \(S = (D^+)^\top\): \(S^\top v
= D^+ v\) is the cheapest flow, and the lift is a difference along each edge, \(S^+ c = D^\top c\).
**Assumes** \(p \ge 0\). The metric does not see constants. Where \(p\) vanishes and the graph falls
apart, it does not see the exchange of mass between the parts either. There is no closed form of the
distance, hence no divergence.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.tree import Structure
from .._base.types import Outputs
from .._base.vector import finite_or_nan
from ._base import AbstractMetric
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
    """(a - b)/(log a - log b), zero where one of the two is.

    With it, the heat equation is the gradient flow of the entropy.
    """

    def __call__(self, a, b):
        # log a - log b = 2 artanh t with t = (a - b)/(a + b), and t/artanh t = 1 - t²/3 - 4t⁴/45 -
        # 44t⁶/945 - ... near zero.
        total = a + b
        t = (a - b) / jnp.where(total == 0, 1.0, total)
        near = jnp.abs(t) < 1e-2
        far = jnp.abs(t) > 0.5
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
    """The discrete W₂ metric on probabilities (not logits) on the vertices of a graph.

    The outputs are one array; the vertices are its last axis.

    **Arguments:**

    - `edges`: pairs of vertices, numbered from 0, each pair once.
    - `weights`: a positive weight for each edge; defaults to 1 each.
    - `mean`: `LogarithmicMean()` (the default) or `ArithmeticMean()`.
    """

    edges: tuple[tuple[int, int], ...] = eqx.field(static=True)
    weights: Float[Array, " E"] | None = None
    mean: AbstractMean = LogarithmicMean()
    nonsingular: ClassVar[bool] = False
    event_ndim: ClassVar[int | None] = 1

    def __init__(self, edges, weights=None, mean=None):
        self.edges = _checked_edges(edges)
        if weights is not None:
            _check_weights(weights, len(self.edges))
        self.weights = weights
        mean = LogarithmicMean() if mean is None else mean
        checks.instance(
            "WassersteinGraph",
            "mean",
            mean,
            AbstractMean,
            "LogarithmicMean() or ArithmeticMean()",
            "WassersteinGraph(edges, mean=ArithmeticMean())",
        )
        self.mean = mean

    def _incidence(self, z: Outputs) -> tuple[Float[Array, "*batch n E"], Structure]:
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
                f"WassersteinGraph(edges=...) names vertex {pairs.max()}, but the outputs have {n} "
                f"vertices on their last axis (shape {p.shape})."
            )
        signs = jnp.asarray(np.eye(n)[pairs[:, 0]].T - np.eye(n)[pairs[:, 1]].T, p.dtype)
        weights = (
            jnp.ones(len(pairs), p.dtype)
            if self.weights is None
            else jnp.asarray(self.weights).astype(p.dtype)
        )
        p = jnp.where(jnp.all(p >= 0, axis=-1, keepdims=True), p, jnp.nan)
        batch = p.shape[:-1]
        weights = jnp.broadcast_to(weights, (*batch, len(pairs)))
        capacity = self.mean(p[..., pairs[:, 0]], p[..., pairs[:, 1]]) * weights
        roots = jnp.sqrt(capacity)
        # A pseudo-inverse takes an edge of very small capacity for one of capacity zero.
        largest = jnp.max(roots, axis=-1, keepdims=True, initial=0.0)
        lost = (roots > 0) & (roots < _spread(n, len(pairs), p.dtype) * largest)
        roots = jnp.where(jnp.any(lost, axis=-1, keepdims=True), jnp.nan, roots)
        roots = roots.reshape(*batch, 1, len(pairs))
        return jnp.broadcast_to(signs, (*batch, n, len(pairs))) * roots, like

    def root(self, z):
        incidence, like = self._incidence(z)
        return FactorRoot(
            jnp.swapaxes(_inverse(incidence), -1, -2), jnp.swapaxes(incidence, -1, -2), like
        )

    def apply(self, z, v):
        incidence, like = self._incidence(z)
        v = like.ravel(v).reshape(*incidence.shape[:-1])
        inverse = _inverse(incidence)
        return like.unravel(jnp.einsum("...en,...em,...m->...n", inverse, inverse, v).ravel())

    def sharp(self, z, c):
        incidence, like = self._incidence(z)
        c = like.ravel(c).reshape(*incidence.shape[:-1])
        return like.unravel(jnp.einsum("...ne,...me,...m->...n", incidence, incidence, c).ravel())

    def complaint(self, z):
        p, _ = one_array(z, "WassersteinGraph(edges)", "one array of probabilities", "")
        if bool(jnp.all(p >= 0)):
            return (
                f"The probabilities go from {float(p.min()):.6g} to {float(p.max()):.6g}, so that "
                f"the capacities of edges differ by more than {p.dtype} resolves. Set what is "
                "negligible to zero: an edge of capacity zero is absent."
            )
        return (
            f"WassersteinGraph takes probabilities, and these outputs go from {float(p.min()):.6g} "
            f"to {float(p.max()):.6g}: return softmax(logits), not logits."
        )


def _inverse(incidence: Float[Array, "*batch n E"]) -> Float[Array, "*batch E n"]:
    """D⁺, NaN where the pseudo-inverse drops a direction in which mass can move.

    A bottleneck between two large parts has a smaller singular value than its own capacity. D D⁺
    keeps the divergence of every edge; where a direction that separates a and b vertices is
    dropped, the divergence of the edge between them is off by 1/a and 1/b, one of them at least
    2/n.
    """
    inverse = jnp.linalg.pinv(finite_or_nan(incidence))
    edges = jnp.sign(incidence)
    # n × n first: a graph has many more edges than vertices.
    kept = (incidence @ inverse) @ edges
    off = jnp.max(jnp.abs(kept - edges), axis=(-2, -1), keepdims=True)
    return jnp.where(off < 1 / incidence.shape[-2], inverse, jnp.nan)


def _spread(vertices: int, edges: int, dtype: Any) -> float:
    """The ratio of singular values below which `jnp.linalg.pinv` drops the smaller one, doubled."""
    return 20 * max(vertices, edges) * float(jnp.finfo(dtype).eps)


def _checked_edges(edges: Any) -> tuple[tuple[int, int], ...]:
    """The edges as pairs of integers; raises unless they are different pairs of vertices."""
    try:
        pairs = np.asarray(edges)
        good = (
            pairs.ndim == 2
            and pairs.shape[1] == 2
            and pairs.dtype.kind in "iu"
            and bool((pairs >= 0).all())
            and len({frozenset(map(int, pair)) for pair in pairs}) == len(pairs)
            and bool((pairs[:, 0] != pairs[:, 1]).all())
        )
    except (TypeError, ValueError):
        good = False
    if not good:
        raise checks.error(
            "WassersteinGraph",
            "edges",
            edges,
            "pairs of two different vertices, numbered from 0, each pair once",
            "WassersteinGraph(edges=((0, 1), (1, 2)))",
        )
    return tuple((int(i), int(j)) for i, j in edges)


def _check_weights(weights: Any, count: int) -> None:
    """Raise a `ValueError` unless there is one positive weight per edge."""
    good = np.shape(weights) == (count,)
    if good and checks.is_concrete(weights):
        good = bool(np.all(np.asarray(weights) > 0))
    if not good:
        raise checks.error(
            "WassersteinGraph",
            "weights",
            weights,
            f"{count} positive weights, one per edge",
            f"WassersteinGraph(edges, weights=jnp.ones({count}))",
        )
