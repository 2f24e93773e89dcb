r"""The contract of a generalised inverse: a filter \(h\) of the singular values of \(A\), a gauge.

With \(\tilde A = U\,\mathrm{diag}(s)\,V^\top\) every inverse is

\[ h(G) = V\,\mathrm{diag}(h(s))\,V^\top + h_0\,(I - VV^\top) \]

on a covector, and \(V\,\mathrm{diag}(s\,h(s))\,U^\top r\) on a lifted covector:

| inverse | \(h(s)\) | \(h_0\) on the kernel |
|---|---|---|
| `MoorePenrose` | \(1/s^2\) where \(s\) > cut-off, else 0 | 0 |
| `Tikhonov(λ)` | \(1/(s^2 + λ)\) | \(1/λ\) |
| `TruncatedRank(k)` | \(1/s^2\) for the k largest, else 0 | 0 |

An inverse of your own is a subclass with a `filter`. It works with every solver that computes
singular values; the four declarations below unlock the faster routes. Solvers use the declarations,
never the type, and a declaration that contradicts the filter raises when things are built.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.show import settings
from .._base.types import Scalar


class AbstractInverse(eqx.Module):
    """A generalised inverse of the pullback metric: the filter h(s), h₀ and a gauge.

    To write one, give a field `gauge` and a method `filter`:

        class Landweber(pullback.inverse.AbstractInverse):
            steps: int = 50
            rate: float = 0.1
            gauge: None = None

            def filter(self, s, cutoff):
                return (1 - (1 - self.rate * s * s) ** self.steps) / (s * s)
    """

    gauge: eqx.AbstractVar[Any]
    """The inner product on the parameters; `None` for the Euclidean one."""

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def filter(self, s: Float[Array, " k"], cutoff: Scalar) -> Float[Array, " k"]:
        """Return h(s), finite and not negative, for singular values in descending order.

        **Arguments:**

        - `s`: singular values, largest first.
        - `cutoff`: what `cutoff` returned, or more where the solver resolves less.
        """

    def cutoff(self, largest: Scalar, shape: tuple[int, int]) -> Scalar:
        """Return the singular value at or below which a direction counts as null.

        **Arguments:**

        - `largest`: the largest singular value of A.
        - `shape`: the shape of A.
        """
        return numerical_zero(largest, shape)

    def kept(self, s: Float[Array, " k"], cutoff: Scalar) -> Array:
        """Return which singular values count for the rank.

        **Arguments:**

        - `s`: singular values, largest first.
        - `cutoff`: what `cutoff` returned, or more where the solver resolves less.
        """
        return s > cutoff

    @property
    def kernel(self) -> Scalar | float:
        """h₀, what the inverse does to a covector on the kernel of A."""
        return 0.0

    # ---- declarations ---------------------------------------------------------------------------

    # Class variables, so that a subclass may override each by a field or by a property.

    damping: ClassVar[Any] = None
    """λ, if the inverse is exactly (G + λ)⁻¹ in the gauge; `None` otherwise."""
    homogeneous: ClassVar[bool] = False
    """Whether h(αs) = h(s)/α², so that a common factor of A may be divided out."""
    pseudo_inverse: ClassVar[bool] = False
    """Whether h(s) is 1/s² or 0 and h₀ = 0, so that a solution may be refined."""
    truncates: ClassVar[bool] = True
    """Whether singular values above rounding may be dropped."""
    differentiable: ClassVar[bool] = False
    """Whether the solution has a derivative with respect to A at constant rank."""
    awaits_damping: ClassVar[bool] = False
    """Whether factors are damped before they are used, so that nothing is solved without."""
    least_damping: ClassVar[Any] = None
    """Where factors are damped later: the least λ that will be asked for; `None` if not known.

    Negative: a decomposition is needed, whatever λ is."""

    def damped_from(self, least: Scalar) -> "AbstractInverse":
        """Return the same inverse, told that no λ below `least` will be asked for.

        **Arguments:**

        - `least`: the least λ; of no use to an inverse that does not await a damping.
        """
        return self

    @property
    def factorised_per_damping(self) -> bool:
        """Whether a Cholesky factorisation for each λ will do, where λ is not below rounding.

        Not if singular values are dropped: which ones, only a decomposition tells.
        """
        known = self.awaits_damping and self.least_damping is not None
        return known and self.pseudo_inverse and not self.truncates

    @property
    def cancels_weights(self) -> bool:
        """Whether weights of independent rows cancel: a pseudo-inverse that drops nothing."""
        return self.pseudo_inverse and not self.truncates


class Response(NamedTuple):
    """An inverse on a spectrum."""

    h: Float[Array, " k"]
    kept: Array
    cutoff: Scalar


def respond(
    inverse: AbstractInverse,
    s: Float[Array, " k"],
    shape: tuple[int, int],
    resolution: Scalar | float = 0.0,
) -> Response:
    """Evaluate h on singular values that are known up to `resolution`; h₀ on rounding."""
    largest = jnp.max(s, initial=0.0)
    cutoff = jnp.maximum(
        jnp.asarray(inverse.cutoff(largest, shape), s.dtype), jnp.asarray(resolution, s.dtype)
    )
    h = inverse.filter(s, cutoff)
    if not inverse.pseudo_inverse:
        # A singular value at rounding level is a direction of the kernel, whatever its digits say.
        noise = jnp.maximum(numerical_zero(largest, shape), jnp.asarray(resolution, s.dtype))
        h = jnp.where(s > noise, h, jnp.asarray(inverse.kernel, s.dtype))
    return Response(h.astype(s.dtype), inverse.kept(s, cutoff), cutoff)


def numerical_zero(largest: Scalar, shape: tuple[int, int]) -> Scalar:
    """Return max(m, P) · eps · s_max, NumPy's convention."""
    return max(shape) * jnp.finfo(largest.dtype).eps * largest


def inverse_square(s: Array, kept: Array) -> Array:
    """Return 1/s² where kept, else 0."""
    safe = jnp.where(kept, s, 1.0)
    return jnp.where(kept, 1 / safe / safe, 0.0)
