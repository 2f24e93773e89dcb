r"""Preconditioners of `Krylov`, for a damped metric: cheap \(C \approx (G + λ)\) or \((K + λ)\)
that gather the spectrum.

Damped, the solution is unique, and a change of coordinates cannot change it. Undamped it could: the
Krylov space of a preconditioned method leaves the range of \(A^\top\), and what it finds is not of
minimum norm. So preconditioners are for `Tikhonov` only.

- `Diagonal`: \(C = \mathrm{diag}(G) + λ\), on parameters;
- `Kronecker`: \(C = \bigoplus_\text{layers} \overline{xx^\top} \otimes \sum_q d d^\top + λ\), layer
    by layer, on parameters (leaves that are not understood: their diagonal);
- `Nystrom(rank)`: \(C = U(\Lambda)U^\top + λ\) from `rank` random products with K, on rows;
- `SampleBlocks`: \(C = \bigoplus_\text{samples} K_{nn} + λ\), on rows. In a trained classifier the
    rows of a sample that is learnt are small and those of one that is not are large; this, and what
    the outputs of a sample share, is gone with the blocks.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.types import Flat, Scalar
from .._gram import Factors, diagonal_blocks
from .._rows.pullback import PullbackMetric
from ..inverse._base import MoorePenrose
from ._base import Whitened, whiten
from ._structured import find, structured_factors


class AbstractScaling(eqx.Module):
    """C^(-1/2), symmetric, on parameters."""

    @abc.abstractmethod
    def apply(self, v: Flat) -> Flat:
        """C^(-1/2) v."""


class AbstractRowInverse(eqx.Module):
    """C⁻¹, symmetric and positive, on rows."""

    @abc.abstractmethod
    def apply(self, y: Float[Array, " m"]) -> Float[Array, " m"]:
        """C⁻¹ y, up to a factor."""


class AbstractPreconditioner(eqx.Module):
    """A choice of preconditioner."""


class AbstractRowPreconditioner(AbstractPreconditioner):
    """A choice of preconditioner of the kernel."""


class Diagonal(AbstractPreconditioner):
    """The diagonal of the metric."""


class Kronecker(AbstractPreconditioner):
    """One Kronecker product a layer, as if layers and samples were independent; exact products are
    still used in the iteration.
    """


class SampleBlocks(AbstractRowPreconditioner):
    """The block of the kernel of each sample with itself."""


class Nystrom(AbstractRowPreconditioner):
    """A randomised approximation of the kernel of a given rank. `adapted` chooses the rank."""

    rank: int = eqx.field(static=True)
    key: PRNGKeyArray

    def __init__(self, rank: int, key: PRNGKeyArray | None = None):
        """Choose a rank.

        **Arguments:**

        - `rank`: the number of products with the kernel that are spent; good if the eigenvalue of
            that number is near the damping.
        - `key`: for the random vectors; `jax.random.key(0)` if left out.
        """
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(
                f"Nystrom(rank={rank!r}): rank must be an integer >= 1, e.g. Nystrom(100)."
            )
        self.rank, self.key = rank, jax.random.key(0) if key is None else key

    @staticmethod
    def adapted(
        metric: PullbackMetric, damping: float, start: int = 16, key: PRNGKeyArray | None = None
    ) -> "Nystrom":
        """Double the rank until the smallest eigenvalue found is below ten times the damping, or
        the rank is m/2. Not for use inside `jit`.

        **Arguments:**

        - `metric`: a `PullbackMetric`, made by `pullback.pullback`.
        - `damping`: λ.
        - `start`: the first rank to try.
        - `key`: for the random vectors.
        """
        operator = whiten(metric, MoorePenrose())
        limit = max(1, metric.rows // 2)
        rank = min(start, limit)
        while True:
            trial = Nystrom(rank, key)
            values = eqx.filter_jit(sketch)(operator, trial)[1]
            if rank == limit or float(values[-1]) <= 10 * damping:
                return trial
            rank = min(2 * rank, limit)


class DiagonalScaling(AbstractScaling):
    """diag(G) + λ."""

    values: Flat

    def apply(self, v):
        return v / jnp.sqrt(self.values)


class KroneckerScaling(AbstractScaling):
    """Eigenvectors of the two factors of each layer."""

    left: tuple[Float[Array, "i i"], ...]
    right: tuple[Float[Array, "o o"], ...]
    scales: tuple[Float[Array, "i o"], ...]
    rest: Float[Array, " r"]
    order: np.ndarray

    def apply(self, v):
        ordered, out, start = v[self.order], [], 0
        for u, w, scale in zip(self.left, self.right, self.scales, strict=True):
            size = scale.size
            block = ordered[start : start + size].reshape(scale.shape)
            out.append((u @ (scale * (u.T @ block @ w)) @ w.T).ravel())
            start += size
        out.append(self.rest * ordered[start:])
        return jnp.zeros_like(v).at[self.order].set(jnp.concatenate(out), unique_indices=True)


class LowRankInverse(AbstractRowInverse):
    """U (λ_k + λ)/(Λ + λ) Uᵀ + (1 - UUᵀ)."""

    vectors: Float[Array, "m k"]
    ratio: Float[Array, " k"]

    def apply(self, y):
        return y + self.vectors @ ((self.ratio - 1) * (self.vectors.T @ y))


class BlockInverse(AbstractRowInverse):
    """WᵀW for each block, W the inverse of its Cholesky factor."""

    roots: Float[Array, "n q q"]

    def apply(self, y):
        y = y.reshape(self.roots.shape[:2])
        return jnp.einsum(
            "npq,np->nq", self.roots, jnp.einsum("npq,nq->np", self.roots, y)
        ).reshape(-1)


def scaling(operator: Whitened, kind: AbstractPreconditioner, damping: Scalar) -> AbstractScaling:
    """C^(-1/2) for a preconditioner on parameters."""
    metric, plan = operator.metric, find(operator, single=True)
    if plan is None:
        # Nothing is understood: the diagonal, from blocks of rows.
        return DiagonalScaling(
            metric.sum_blocks(lambda rows: jnp.sum(operator.gauge.rows(rows) ** 2, axis=0))
            + damping
        )
    factors = structured_factors(metric, plan, operator.scale)
    rest = jnp.sum(factors.rows**2, axis=(0, 1))
    if isinstance(kind, Diagonal):
        blocks = [
            (jnp.einsum("nti,nqto->io", x**2, d**2)).ravel()
            for x, d in zip(factors.x, factors.d, strict=True)
        ]
        values = jnp.concatenate([*blocks, rest])
        return DiagonalScaling(
            jnp.zeros_like(values).at[plan.order].set(values, unique_indices=True) + damping
        )
    return _kronecker(factors, rest, plan.order, damping)


def _kronecker(
    factors: Factors, rest: Array, order: np.ndarray, damping: Scalar
) -> KroneckerScaling:
    left, right, scales = [], [], []
    for x, d in zip(factors.x, factors.d, strict=True):
        a, u = jnp.linalg.eigh(jnp.einsum("nti,ntj->ij", x, x) / x.shape[0])
        b, w = jnp.linalg.eigh(jnp.einsum("nqto,nqtp->op", d, d))
        left.append(u)
        right.append(w)
        scales.append(
            1 / jnp.sqrt(jnp.maximum(a, 0.0)[:, None] * jnp.maximum(b, 0.0)[None, :] + damping)
        )
    return KroneckerScaling(
        tuple(left), tuple(right), tuple(scales), 1 / jnp.sqrt(rest + damping), order
    )


def row_inverse(
    operator: Whitened, kind: AbstractRowPreconditioner, damping: Scalar
) -> AbstractRowInverse:
    """C⁻¹ for a preconditioner on rows."""
    if isinstance(kind, Nystrom):
        u, values = sketch(operator, kind)
        return LowRankInverse(u, (values[-1] + damping) / (values + damping))
    blocks = _blocks(operator)
    # Positive beyond rounding: a preconditioner may be a little off.
    shift = damping + jnp.finfo(blocks.dtype).eps * blocks.shape[1] * jnp.trace(
        blocks, axis1=1, axis2=2
    )
    eye = jnp.eye(blocks.shape[1], dtype=blocks.dtype)
    lower = jnp.linalg.cholesky(blocks + shift[:, None, None] * eye)
    return BlockInverse(
        jax.vmap(lambda factor: jax.scipy.linalg.solve_triangular(factor, eye, lower=True))(lower)
    )


def _blocks(operator: Whitened) -> Float[Array, "n q q"]:
    metric, plan = operator.metric, find(operator)
    if plan is not None:
        return diagonal_blocks(structured_factors(metric, plan, operator.scale))

    def gram(rows):
        rows = operator.gauge.rows(rows)
        return rows @ rows.T

    return metric.sample_blocks(gram)


def sketch(operator: Whitened, kind: Nystrom) -> tuple[Float[Array, "m k"], Float[Array, " k"]]:
    r"""U and Λ of the Nyström approximation \(K\Omega(\Omega^\top K\Omega)^+\Omega^\top K\) of K,
    with \(\Omega\) orthonormal.

    A shift by rounding, taken off again at the end, keeps the Cholesky factorisation of the k × k
    matrix positive.
    """
    m, dtype = operator.shape[0], operator.metric.dtype
    omega = jnp.linalg.qr(jax.random.normal(kind.key, (m, min(kind.rank, m)), dtype))[0]
    image = jax.lax.map(lambda y: operator.mv(operator.rmv(y)), omega.T, batch_size=16).T
    shift = math.sqrt(m) * float(jnp.finfo(dtype).eps) * jnp.linalg.norm(image)
    image = image + shift * omega
    factor = jnp.linalg.cholesky(omega.T @ image)
    root = jax.scipy.linalg.solve_triangular(factor, image.T, lower=True).T
    u, s, _ = jnp.linalg.svd(root, full_matrices=False)
    return u, jnp.maximum(s**2 - shift, 0.0)
