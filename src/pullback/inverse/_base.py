r"""Which generalised inverse: a function of the singular values of \(A\), and a gauge.

With \(\tilde A = U\,\mathrm{diag}(s)\,V^\top\) every inverse here is \(h(G) =
V\,\mathrm{diag}(h(s))\,V^\top + h_0\,(I - VV^\top)\), applied to a covector, or
\(V\,\mathrm{diag}(s\,h(s))\,U^\top r\), applied to a lifted covector. They differ in \(h\):

| inverse | \(h(s)\) | \(h_0\) on the kernel |
|---|---|---|
| `MoorePenrose` | \(1/s^2\) where \(s\) > cut-off, else 0 | 0 |
| `Tikhonov(λ)` | \(1/(s^2 + λ)\) | \(1/λ\) |
| `TruncatedRank(k)` | \(1/s^2\) for the k largest, else 0 | 0 |

`Tikhonov` tends to `MoorePenrose` as λ → 0 on the range of \(G\); a covector with a part outside
the range grows like 1/λ there. Nothing is damped unless the user says so.
"""

import abc
from typing import Any

import equinox as eqx
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import positive
from .._base.types import Count, Scalar


class AbstractInverse(eqx.Module):
    """A generalised inverse of the pullback metric. To add one: a class here, a line in the test
    registry (see CONTRIBUTING).
    """

    gauge: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def cutoff(self, largest: Scalar, shape: tuple[int, int]) -> Scalar:
        """The singular value at or below which a direction counts as null.

        **Arguments:**

        - `largest`: the largest singular value of A.
        - `shape`: the shape of A.
        """

    @abc.abstractmethod
    def filter(self, s: Float[Array, " k"], cutoff: Scalar) -> Float[Array, " k"]:
        """h(s), for singular values in descending order.

        **Arguments:**

        - `s`: singular values, largest first.
        - `cutoff`: what `cutoff` returned, or more where the solver resolves less.
        """

    def kept(self, s: Float[Array, " k"], cutoff: Scalar) -> Array:
        """Which singular values count for the rank.

        **Arguments:**

        - `s`: singular values, largest first.
        - `cutoff`: what `cutoff` returned, or more where the solver resolves less.
        """
        return s > cutoff

    @property
    def kernel(self) -> Scalar | float:
        """h₀, what the inverse does to a covector on the kernel of A."""
        return 0.0

    def rank(self, s: Float[Array, " k"], cutoff: Scalar) -> Count:
        """The number of singular values kept.

        **Arguments:**

        - `s`: singular values, largest first.
        - `cutoff`: what `cutoff` returned, or more where the solver resolves less.
        """
        return jnp.sum(self.kept(s, cutoff), dtype=jnp.int32)


def _numerical_zero(largest: Scalar, shape: tuple[int, int]) -> Scalar:
    """NumPy's convention: max(m, P) · eps · s_max."""
    return max(shape) * jnp.finfo(largest.dtype).eps * largest


def _inverse_square(s: Array, kept: Array) -> Array:
    safe = jnp.where(kept, s, 1.0)
    return jnp.where(kept, 1 / safe / safe, 0.0)


class MoorePenrose(AbstractInverse):
    """The Moore-Penrose inverse, in the gauge the one of minimum norm. Undamped."""

    rtol: float | Scalar | None
    gauge: Any

    def __init__(self, rtol: float | Scalar | None = None, gauge: Any = None):
        """Choose the Moore-Penrose inverse.

        **Arguments:**

        - `rtol`: singular values of A at or below `rtol · s_max` count as zero; if left out, max(m,
            P) · eps.
        - `gauge`: the inner product on the parameters (see `pullback._gauge`); Euclidean if left
            out.
        """
        if rtol is not None:
            positive("MoorePenrose", "rtol", rtol, zero=True)
        self.rtol, self.gauge = rtol, gauge

    def cutoff(self, largest, shape):
        return (
            _numerical_zero(largest, shape)
            if self.rtol is None
            else jnp.asarray(self.rtol, largest.dtype) * largest
        )

    def filter(self, s, cutoff):
        return _inverse_square(s, self.kept(s, cutoff))


class Tikhonov(AbstractInverse):
    """(G + λW)⁻¹, W the gauge: damping, because the user asks for it."""

    damping: float | Scalar
    gauge: Any

    def __init__(self, damping: float | Scalar, gauge: Any = None):
        """Choose a damped inverse.

        **Arguments:**

        - `damping`: λ > 0.
        - `gauge`: the inner product on the parameters; Euclidean if left out.
        """
        positive("Tikhonov", "damping", damping, zero=True)
        if not isinstance(damping, jax.core.Tracer) and not damping > 0:
            raise ValueError(
                "Tikhonov(damping=0) has no inverse on the kernel; the undamped inverse is MoorePenrose()."
            )
        self.damping, self.gauge = damping, gauge

    def cutoff(self, largest, shape):
        return _numerical_zero(largest, shape)

    def filter(self, s, cutoff):
        return 1 / (s * s + jnp.asarray(self.damping, s.dtype))

    @property
    def kernel(self):
        return 1 / self.damping


class TruncatedRank(AbstractInverse):
    """The Moore-Penrose inverse of the best approximation of A of rank at most k."""

    k: int = eqx.field(static=True)
    gauge: Any

    def __init__(self, k: int, gauge: Any = None):
        """Choose a truncated inverse.

        **Arguments:**

        - `k`: how many singular values to keep, at most (numerically zero ones never are).
        - `gauge`: the inner product on the parameters; Euclidean if left out.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise ValueError(
                f"TruncatedRank(k={k!r}): k must be an integer >= 0, e.g. TruncatedRank(10)."
            )
        self.k, self.gauge = k, gauge

    def cutoff(self, largest, shape):
        return _numerical_zero(largest, shape)

    def kept(self, s, cutoff):
        return (s > cutoff) & (jnp.arange(s.shape[0]) < self.k)

    def filter(self, s, cutoff):
        return _inverse_square(s, self.kept(s, cutoff))
