r"""Preconditioners of `Krylov`, for a damped metric: cheap approximations that gather the spectrum.

Damped, the solution is unique, and a change of coordinates cannot change it. Undamped it could: the
Krylov space of a preconditioned method leaves the range of \(A^\top\), and what it finds is not of
minimum norm. So preconditioners are for damped inverses only.

A preconditioner builds itself: `build(rows, λ)` returns a symmetric positive definite action, on
parameters one that approximates \((G + λ)^{-1/2}\), on rows one that approximates \((K + λ)^{-1}\).

- `Diagonal`: \(C = \mathrm{diag}(G) + λ\), on parameters;
- `Kronecker`: \(C = \bigoplus_\text{layers} \overline{xx^\top} \otimes \sum_q d d^\top + λ\), layer
    by layer, on parameters (leaves that are not understood: their diagonal);
- `Nystrom(rank)`: \(C = U(\Lambda)U^\top + λ\) from `rank` random products with K, on rows;
- `SampleBlocks`: \(C = \bigoplus_\text{samples} K_{nn} + λ\), on rows. In a trained classifier the
    rows of a learnt sample are small and those of others are large; the blocks remove that scale.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.axis import Axis, gathered, own
from .._base.checks import positive
from .._base.show import settings
from .._base.types import Flat, Scalar
from .._base.vector import finite_or_nan
from .._compat.xla import jit
from .._gram import joint
from .._gram.factors import Layout
from .._gram.joint import Joint, JointFactors, joint_factors, mean_of, per_term
from .._gram.kernel import diagonal_blocks
from .._gram.structured import find, structured_factors
from .._rows.rows import AbstractRows, Rows, scatter


class AbstractPreconditioner(eqx.Module):
    """A preconditioner of the damped metric. To write one, give `build`."""

    on_rows: ClassVar[bool] = False
    """Whether the action is on rows, as (K + λ)⁻¹; otherwise on parameters, as (G + λ)^(-1/2)."""

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def build(self, rows: AbstractRows, damping: Scalar) -> Callable[[Array], Array]:
        """Return a symmetric positive definite action on flat parameters, or on rows.

        **Arguments:**

        - `rows`: Ã as an operator: `mv`, `rmv`, `sum_blocks`, `sample_blocks`, `shape`, `dtype`.
        - `damping`: λ > 0.
        """


class Diagonal(AbstractPreconditioner):
    """The diagonal of the metric."""

    def build(self, rows, damping):
        return DiagonalScaling(rows.summed(per_term(rows, self._term)) + damping)

    def _term(self, rows: Rows) -> Flat:
        """Return the diagonal of the metric of one term."""
        plan = _uncentred(rows, single=True)
        if plan is None:
            return rows.sum_blocks(lambda block: jnp.sum(block**2, axis=0))
        factors = structured_factors(rows, plan, rows.scale)
        blocks = [
            jnp.einsum("nti,nqto->io", x**2, d**2).ravel()
            for x, d in zip(factors.x, factors.d, strict=True)
        ]
        values = jnp.concatenate([*blocks, jnp.sum(factors.rows**2, axis=(0, 1))])
        return scatter(values, plan.order)


class Kronecker(AbstractPreconditioner):
    """One Kronecker product per layer, as if layers and samples were independent.

    The iteration still uses exact products. Where no layer is understood it is `Diagonal`.
    """

    def build(self, rows, damping):
        plan = joint.find(rows, single=True) if mean_of(rows) is None else None
        if plan is None or not plan.groups:
            return Diagonal().build(rows, damping)
        factors = joint_factors(rows.local, plan, rows.local.scale)
        rest = sum(jnp.sum(part.rows**2, axis=(0, 1)) for part in factors.parts)
        return _kronecker(factors, rows.summed(jnp.asarray(rest)), plan, damping, rows)


class SampleBlocks(AbstractPreconditioner):
    """The block of the kernel of each sample with itself."""

    on_rows: ClassVar[bool] = True

    def build(self, rows, damping):
        found = tuple(self._term(term, damping) for term in rows.terms)
        here = found[0] if len(found) == 1 else StackedInverse(found)
        return here if rows.axis is None else SharedInverse(here, rows.axis)

    def _term(self, rows: Rows, damping: Scalar) -> "BlockInverse":
        """Return the action on the rows of one term."""
        plan = _uncentred(rows)
        if plan is None:
            blocks = rows.sample_blocks(lambda block: block @ block.T)
        else:
            blocks = diagonal_blocks(structured_factors(rows, plan, rows.scale))
        # Positive beyond rounding: a preconditioner may be a little off.
        trace = jnp.trace(blocks, axis1=1, axis2=2)
        shift = damping + jnp.finfo(blocks.dtype).eps * blocks.shape[1] * trace
        eye = jnp.eye(blocks.shape[1], dtype=blocks.dtype)
        lower = jnp.linalg.cholesky(blocks + shift[:, None, None] * eye[None])
        invert = lambda factor: jax.scipy.linalg.solve_triangular(factor, eye, lower=True)
        return BlockInverse(jax.vmap(invert)(lower))


class Nystrom(AbstractPreconditioner):
    """A randomised approximation of the kernel of a given rank. `adapted` chooses the rank."""

    rank: int = eqx.field(static=True)
    key: PRNGKeyArray
    on_rows: ClassVar[bool] = True

    def __init__(self, rank: int, key: PRNGKeyArray | None = None):
        """Choose a rank.

        **Arguments:**

        - `rank`: the number of products with the kernel that are spent; good if the eigenvalue of
            that number is near the damping.
        - `key`: for the random vectors; defaults to `jax.random.key(0)`.
        """
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(
                f"Nystrom(rank={rank!r}): rank must be an integer >= 1, e.g. Nystrom(100)."
            )
        self.rank = rank
        self.key = jax.random.key(0) if key is None else key

    @staticmethod
    def adapted(
        metric, damping: float, start: int = 16, key: PRNGKeyArray | None = None
    ) -> "Nystrom":
        """Return the smallest doubled rank that reaches ten times the damping, at most m/2.

        Not for use inside `jit`.

        **Arguments:**

        - `metric`: a `PullbackMetric`, made by `pullback.pullback`.
        - `damping`: λ.
        - `start`: the first rank to try.
        - `key`: for the random vectors.
        """
        positive("Nystrom.adapted", "damping", damping)
        rows = metric.whitened
        limit = max(1, rows.shape[0] // 2)
        rank = min(start, limit)
        while True:
            trial = Nystrom(rank, key)
            values = _sketch(rows, trial)[1]
            if rank == limit or float(values[-1]) <= 10 * damping:
                return trial
            rank = min(2 * rank, limit)

    def build(self, rows, damping):
        u, values = sketch(rows, self)
        return LowRankInverse(u, (values[-1] + damping) / (values + damping))


class DiagonalScaling(eqx.Module):
    """(diag(G) + λ)^(-1/2)."""

    values: Flat

    def __call__(self, v: Flat) -> Flat:
        return v / jnp.sqrt(self.values)


class KroneckerScaling(eqx.Module):
    """Eigenvectors of the two factors of each layer."""

    left: tuple[Float[Array, "i i"], ...]
    right: tuple[Float[Array, "o o"], ...]
    scales: tuple[Float[Array, "i o"], ...]
    rest: Float[Array, " r"]
    order: np.ndarray

    def __call__(self, v: Flat) -> Flat:
        ordered = v[self.order]
        out, start = [], 0
        for u, w, scale in zip(self.left, self.right, self.scales, strict=True):
            block = ordered[start : start + scale.size].reshape(scale.shape)
            out.append((u @ (scale * (u.T @ block @ w)) @ w.T).ravel())
            start += scale.size
        out.append(self.rest * ordered[start:])
        return scatter(jnp.concatenate(out), self.order)


class LowRankInverse(eqx.Module):
    """U (λ_k + λ)/(Λ + λ) Uᵀ + (1 - UUᵀ)."""

    vectors: Float[Array, "m k"]
    ratio: Float[Array, " k"]

    def __call__(self, y: Array) -> Array:
        return y + self.vectors @ ((self.ratio - 1) * (self.vectors.T @ y))


class StackedInverse(eqx.Module):
    """One action for the rows of each of several terms."""

    parts: tuple["BlockInverse", ...]

    def __call__(self, y: Array) -> Array:
        sizes = [math.prod(part.roots.shape[:2]) for part in self.parts]
        own = jnp.split(y, np.cumsum(sizes)[:-1])
        return jnp.concatenate([part(x) for part, x in zip(self.parts, own, strict=True)])


class SharedInverse(eqx.Module):
    """An action on the rows of this device, on the rows of all."""

    here: Any
    axis: Axis = eqx.field(static=True)

    def __call__(self, y: Array) -> Array:
        return gathered(self.here(own(y, self.axis)), self.axis)


class BlockInverse(eqx.Module):
    """WᵀW for each block, W the inverse of its Cholesky factor."""

    roots: Float[Array, "n q q"]

    def __call__(self, y: Array) -> Array:
        y = y.reshape(self.roots.shape[:2])
        image = jnp.einsum("npq,nq->np", self.roots, y)
        return jnp.einsum("npq,np->nq", self.roots, image).reshape(-1)


def _uncentred(rows: Rows, single: bool = False) -> Layout | None:
    """Return how the leaves are kept, if their factors are those of A: no mean is taken off."""
    return find(rows, single) if rows.root.mean is None else None


def _kronecker(
    factors: JointFactors, rest: Array, plan: Joint, damping: Scalar, rows: AbstractRows
) -> KroneckerScaling:
    left, right, scales = [], [], []
    for group in plan.groups:
        users = [(x, d) for _, x, d, _ in factors.of(group.leaf)]
        count = sum(x.shape[0] for x, _ in users)
        inner = sum(jnp.einsum("nti,ntj->ij", x, x) for x, _ in users)
        outer = sum(jnp.einsum("nqto,nqtp->op", d, d) for _, d in users)
        a, u = jnp.linalg.eigh(rows.summed(jnp.asarray(inner)) / (count * rows.shares))
        b, w = jnp.linalg.eigh(rows.summed(jnp.asarray(outer)))
        left.append(u)
        right.append(w)
        values = jnp.maximum(a, 0.0)[:, None] * jnp.maximum(b, 0.0)[None, :]
        scales.append(1 / jnp.sqrt(values + damping))
    return KroneckerScaling(
        tuple(left), tuple(right), tuple(scales), 1 / jnp.sqrt(rest + damping), plan.order
    )


def sketch(rows: AbstractRows, kind: Nystrom) -> tuple[Float[Array, "m k"], Float[Array, " k"]]:
    r"""Return U and Λ of the Nyström approximation \(K\Omega(\Omega^\top K\Omega)^+\Omega^\top K\).

    \(\Omega\) is orthonormal. A shift by rounding, taken off again at the end, keeps the Cholesky
    factorisation of the k × k matrix positive.
    """
    m, dtype = rows.shape[0], rows.dtype
    omega = jnp.linalg.qr(jax.random.normal(kind.key, (m, min(kind.rank, m)), dtype))[0]
    image = jax.lax.map(lambda y: rows.mv(rows.rmv(y)), omega.T, batch_size=16).T
    shift = math.sqrt(m) * float(jnp.finfo(dtype).eps) * jnp.linalg.norm(image)
    image = image + shift * omega
    factor = jnp.linalg.cholesky(omega.T @ image)
    root = jax.scipy.linalg.solve_triangular(factor, image.T, lower=True).T
    u, s, _ = jnp.linalg.svd(finite_or_nan(root), full_matrices=False)
    return u, jnp.maximum(s**2 - shift, 0.0)


_sketch = jit(sketch)
