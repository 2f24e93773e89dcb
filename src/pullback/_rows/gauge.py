r"""The gauge: an inner product \(W = R^\top R\) on the parameters, for "minimum norm".

Among all \(\delta\) with the same pushforward the weighted Moore-Penrose inverse takes the one of
least \(\delta^\top W \delta\). In the coordinates \(\eta = R\delta\), with \(\tilde A = A R^{-1}\),
it is the ordinary Moore-Penrose inverse: \(\delta = R^{-1}\tilde A^+ r\) from a lifted covector,
and \(\delta = R^{-1}(\tilde A^\top\tilde A)^+ R^{-\top} g\) from a parameter covector. The gauge
never changes \(A\delta\), which is all that the metric sees. Damped, \(\delta = (A^\top A +
λW)^{-1} A^\top r\): a diagonal gauge is a damping for each parameter.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.scipy.linalg import solve_triangular
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .._base import checks
from .._base.pairs import is_complex, like_precision
from .._base.tree import Structure, split
from .._base.types import Flat, Gauge, HasMatrix


class AbstractGauge(eqx.Module):
    """R⁻¹ and its transpose, for W = RᵀR."""

    @abc.abstractmethod
    def lower(self, eta: Flat) -> Flat:
        """R⁻¹ η, from orthonormal coordinates to parameters."""

    @abc.abstractmethod
    def lift(self, delta: Flat) -> Flat:
        """R δ, from parameters to orthonormal coordinates."""

    @abc.abstractmethod
    def pull(self, g: Flat) -> Flat:
        """R⁻ᵀ g, a parameter covector in orthonormal coordinates."""

    @abc.abstractmethod
    def rows(self, a: Float[Array, "m P"]) -> Float[Array, "m P"]:
        """A R⁻¹, dense."""

    @property
    @abc.abstractmethod
    def valid(self) -> Array:
        """Whether W is positive definite."""

    def part(self, take: Callable[[Flat], Flat]) -> "AbstractGauge":
        """The gauge of some of the parameters, whose entries `take` selects."""
        raise checks.error(
            "inverse", "gauge", self, "diagonal for solver=Blocks(...), which inverts the metric "
            "of each block of the parameters by itself", _EXAMPLE,
        )  # fmt: skip


class EuclideanGauge(AbstractGauge):
    """W = I."""

    def lower(self, eta):
        return eta

    def lift(self, delta):
        return delta

    def pull(self, g):
        return g

    def rows(self, a):
        return a

    @property
    def valid(self):
        return jnp.asarray(True)

    def part(self, take):
        return self


class DiagonalGauge(AbstractGauge):
    """W = diag(weights)."""

    weights: Flat

    def lower(self, eta):
        return eta / jnp.sqrt(self.weights)

    def lift(self, delta):
        return delta * jnp.sqrt(self.weights)

    def pull(self, g):
        return g / jnp.sqrt(self.weights)

    def rows(self, a):
        return a / jnp.sqrt(self.weights)[None, :]

    @property
    def valid(self):
        return jnp.all((self.weights > 0) & jnp.isfinite(self.weights))

    def part(self, take):
        return DiagonalGauge(take(self.weights))


class MatrixGauge(AbstractGauge):
    """W = C Cᵀ by Cholesky, R = Cᵀ."""

    cholesky: Float[Array, "P P"]

    def lower(self, eta):
        return solve_triangular(self.cholesky, eta, lower=True, trans="T")

    def lift(self, delta):
        return self.cholesky.T @ delta

    def pull(self, g):
        return solve_triangular(self.cholesky, g, lower=True)

    def rows(self, a):
        return solve_triangular(self.cholesky, a.T, lower=True).T

    @property
    def valid(self):
        diagonal = jnp.diagonal(self.cholesky)
        smallest = jnp.min(diagonal)
        largest = jnp.max(diagonal)
        # Positive to working precision: a pivot at the level of rounding counts as zero.
        eps = jnp.finfo(diagonal.dtype).eps
        positive = smallest**2 > diagonal.size * eps * largest**2
        return jnp.all(jnp.isfinite(self.cholesky)) & positive


def as_gauge(gauge: Gauge | AbstractGauge, params: Structure, dtype: DTypeLike) -> AbstractGauge:
    """The gauge from any of the forms in which users give it."""
    if gauge is None:
        return EuclideanGauge()
    if isinstance(gauge, AbstractGauge):
        return gauge
    if isinstance(gauge, lx.AbstractLinearOperator):
        matrix = gauge.as_matrix()
    elif isinstance(gauge, HasMatrix):
        matrix = gauge.matrix()
    elif eqx.is_array_like(gauge) and jnp.ndim(gauge) == 0:
        return DiagonalGauge(jnp.full(params.size, gauge, dtype))
    elif (
        isinstance(gauge, jax.Array)
        and gauge.shape == (params.size, params.size)
        and params.shapes != (gauge.shape,)
    ):
        matrix = gauge
    else:
        try:
            return DiagonalGauge(_diagonal(gauge, params, dtype))
        except (ValueError, TypeError) as error:
            wanted = (
                f"a positive number, a pytree like the parameters (its diagonal), or a prefix of "
                f"one with a number for each leaf or group of leaves, a ({params.size}, "
                f"{params.size}) matrix, a lineax operator or a pullback metric"
            )
            raise checks.error("inverse", "gauge", gauge, wanted, _EXAMPLE) from error
    matrix = jnp.asarray(matrix, dtype)
    if matrix.shape != (params.size, params.size):
        wanted = f"a ({params.size}, {params.size}) matrix, not of shape {matrix.shape}"
        raise checks.error("inverse", "gauge", matrix, wanted, _EXAMPLE)
    # A matrix that is not symmetric is no inner product. It must not be symmetrised in silence; NaN
    # is reported as a bad gauge.
    asymmetry = jnp.max(jnp.abs(matrix - matrix.T))
    symmetric = asymmetry <= 100 * jnp.finfo(dtype).eps * jnp.max(jnp.abs(matrix))
    return MatrixGauge(jnp.where(symmetric, jnp.linalg.cholesky((matrix + matrix.T) / 2), jnp.nan))


def _diagonal(gauge: Any, params: Structure, dtype: DTypeLike) -> Flat:
    """The diagonal from a tree like the parameters, or from a prefix of one.

    A number stands for all entries of the leaves below it, and for both parts of a complex one; a
    complex number a + ib for a and b.
    """
    try:
        return params.ravel(_both_parts(gauge, params)).astype(dtype)
    except (ValueError, TypeError, AttributeError):
        pass  # Not a tree like the parameters.
    shapes = params.treedef.unflatten([jax.ShapeDtypeStruct(s, dtype) for s in params.shapes])

    def fill(weight, below):
        def leaf(like):
            if isinstance(weight, bool) or jnp.shape(weight) not in ((), like.shape):
                raise ValueError(f"expected a number or shape {like.shape}, got {weight!r}.")
            kind = like_precision(jnp.result_type(weight), dtype)
            return jnp.broadcast_to(jnp.asarray(weight, kind), like.shape)

        return jax.tree.map(leaf, below)

    return params.ravel(_both_parts(jax.tree.map(fill, gauge, shapes), params)).astype(dtype)


def _both_parts(weights: Any, params: Structure) -> Any:
    """A tree of weights with (1 + i) times a real one for a leaf that is complex."""
    both = [is_complex(dtype) for dtype in params.dtypes]
    if not any(both):
        return weights

    def one(both, weight):
        real = eqx.is_array(weight) and not is_complex(weight.dtype)
        return jax.lax.complex(weight, weight) if both and real else weight

    return jax.tree.map(one, params.treedef.unflatten(both), split(weights)[0])


_EXAMPLE = "MoorePenrose(gauge=2.0)"
