r"""\(J^+G\) for a product of matrices.

The solution is \(X_l = A_l^\top MB_l^\top\) where M solves

\[ K(M) = \sum_l P_l\,M\,Q_l = \Pi G, \qquad P_l = A_lA_l^\top,\quad Q_l = B_l^\top B_l,\qquad P_1 =
I,\ Q_L = I, \]

and \(\Pi\) is the projection on the range of J. (A part of M in the kernel of K does not change
\(X_l\).)

*Depth 2* is Sylvester's equation \(MQ_1 + P_2M = G\): with \(P_2 =
U\,\mathrm{diag}(\lambda)\,U^\top\), \(Q_1 = V\,\mathrm{diag}(\mu)\,V^\top\) it is solved by
dividing the entries of \(U^\top GV\) by \(\lambda_i + \mu_j\), those with a zero denominator
dropped: Moore-Penrose for every rank. While \(Q_1\) is far from singular one eigenvalue problem is
enough: the columns \((P_2 + \mu_j)^{-1}(GV)_j\) come from a tridiagonal form of \(P_2\). Otherwise
the eigenvalues are squared singular values that have lost their digits, and the bases come from
singular value decompositions of \(W_1\) and \(W_2\) themselves.

*Depth 3 and more.* The \(P_l\) do not commute. Conjugate gradients run in the bases of \(P_L\) and
\(Q_1\), where the first and the last term are diagonal and cost nothing, preconditioned by the
diagonal of the whole operator. Each middle term costs two products of matrices per iteration.

*The range of J.* The column spaces \(U_l\) of \(A_l\) are nested, \(U_1 \supseteq U_2 \supseteq
\cdots\), and so are the row spaces \(V_l\) of \(B_l\), \(V_1 \subseteq V_2 \subseteq \cdots\).
Hence

\[ \mathrm{range}(J) = \sum_l U_l \otimes V_l, \qquad \Pi G = \sum_l \Pi_{U_l}\,G\,(\Pi_{V_l} -
\Pi_{V_{l-1}}), \]

and \(\Pi = I\) as soon as \(A_L\) has full row rank or \(B_1\) full column rank. Only otherwise the
ranks are needed, and singular values give them.
"""

from collections.abc import Callable
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Scalar

Factors: TypeAlias = tuple[Float[Array, "..."], ...]
"""Matrices that can be multiplied, or a change of them."""

MOST = 2000
"""The bound on iterations of conjugate gradients."""
PATIENCE = 200
"""The number of iterations without an improvement of the residual after which they stop."""


def partial_products(factors: Factors) -> tuple[list[Array | None], list[Array | None]]:
    """(A_l), (B_l): the products before and after each factor; `None` for the identity."""
    before: list[Array | None] = [None]
    after: list[Array | None] = [None]
    for w in factors[:-1]:
        before.append(w if before[-1] is None else before[-1] @ w)
    for w in reversed(factors[1:]):
        after.append(w if after[-1] is None else w @ after[-1])
    return before, after[::-1]


def push(factors: Factors, change: Factors | None = None) -> Array:
    """The product of the factors, or its first-order change Σ A_l X_l B_l by a change of them."""
    product = factors[0]
    moved = factors[0] if change is None else change[0]
    for l, w in enumerate(factors[1:], start=1):
        moved = moved @ w if change is None else moved @ w + product @ change[l]
        product = moved if change is None else product @ w
    return moved


def pull(factors: Factors, covector: Array) -> Factors:
    """Jᵀ M, with the parts A_lᵀ M B_lᵀ."""
    left = [covector]
    for w in factors[:-1]:
        left.append(w.T @ left[-1])
    result = [left[-1]]
    after = None
    for l in range(len(factors) - 2, -1, -1):
        after = factors[l + 1] if after is None else factors[l + 1] @ after
        result.append(left[l] @ after.T)
    return tuple(result[::-1])


def kernel(factors: Factors, covector: Array) -> Array:
    """K(M) = J Jᵀ(M)."""
    return push(factors, pull(factors, covector))


def minimum_norm(factors: Factors, g: Array, throw: bool = True) -> Factors:
    """J⁺G, the shortest change of the factors that changes the product by ΠG."""
    change, residual = _minimum_norm(factors, g)
    if not throw or len(factors) < 3:
        return change
    # A NaN in the arguments is returned as a NaN: the comparison is then false.
    return eqx.error_if(
        change,
        residual > jnp.sqrt(jnp.finfo(g.dtype).eps),
        "MatrixProduct.natural_gradient: conjugate gradients for the shortest natural gradient did "
        "not converge, because the factors are too ill-conditioned. Use pullback.natural_gradient "
        "with solver=SVD() or Dual() on the product, or throw=False to get the best iterate.",
    )


# Compiled here, so that calls outside compiled code do not compile the branches below each time.
@jax.jit
def _minimum_norm(factors: Factors, g: Float[Array, "m n"]) -> tuple[Factors, Scalar]:
    """J⁺G and the relative residual of the iteration, zero where there is none."""
    zero = jnp.zeros((), g.dtype)
    if len(factors) == 1:
        return (g,), zero
    factors, restore = unit_factors(factors)
    if len(factors) == 2:
        return restore(_sylvester(factors, g)), zero
    change, residual = _conjugate_gradients(factors, g)
    return restore(change), residual


def unit_factors(factors: Factors) -> tuple[Factors, Callable[[Factors], Factors]]:
    """The factors in units of the largest entry, and what makes J⁺G of theirs that of the given.

    K has products of 2(L - 1) factors, which over- or underflow long before J⁺ does.
    """
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(w)) for w in factors]))
    # A power of two, so that dividing by it does not round. In two steps: 2^e may be subnormal.
    exponent = jnp.frexp(largest)[1]
    one = jnp.ones_like(largest)
    first = jnp.ldexp(one, -(exponent // 2))
    second = jnp.ldexp(one, -(exponent - exponent // 2))

    def divided(w):
        return (w * first) * second

    def restore(change):
        for _ in factors[1:]:
            change = tuple(map(divided, change))
        return change

    return tuple(map(divided, factors)), restore


def _safe(denominator: Array, cutoff: Array) -> Array:
    """The reciprocal; zero where the denominator is at or below the cut-off."""
    keep = denominator > cutoff
    return jnp.where(keep, 1 / jnp.where(keep, denominator, 1), 0)


def _sylvester(factors: Factors, g: Float[Array, "m n"]) -> Factors:
    """J⁺G at depth 2."""
    w1, w2 = factors
    mu, v = jnp.linalg.eigh(w2.T @ w2, symmetrize_input=False)
    p = w1 @ w1.T
    largest = jnp.maximum(jnp.linalg.norm(p), mu[-1])

    def by_eigenvalues(_):
        m = _shifted_solves(p, mu, g @ v) @ v.T
        return m @ w2.T, w1.T @ m

    def by_singular_values(_):
        u1, s1, z1 = jnp.linalg.svd(w1)
        z2, s2, v2 = jnp.linalg.svd(w2)
        padded = lambda s, size: jnp.zeros(size, g.dtype).at[: s.shape[0]].set(s)
        denominator = padded(s1, g.shape[0])[:, None] ** 2 + padded(s2, g.shape[1])[None, :] ** 2
        m = (u1.T @ g @ v2.T) * _safe(
            denominator, (max(*w1.shape, *w2.shape) * jnp.finfo(g.dtype).eps) ** 2 * largest
        )
        # M W_2ᵀ and W_1ᵀ M in the bases at hand: u1 m (s2) z2ᵀ and z1ᵀ (s1) m v2.
        first = (u1 @ m[:, : s2.shape[0]]) * s2[None, :] @ z2[:, : s2.shape[0]].T
        second = z1[: s1.shape[0]].T @ (s1[:, None] * (m[: s1.shape[0]] @ v2))
        return first, second

    if min(g.shape) < 3:
        return by_singular_values(None)
    return jax.lax.cond(mu[0] > 1e-7 * largest, by_eigenvalues, by_singular_values, None)


def _shifted_solves(
    p: Float[Array, "m m"], mu: Float[Array, " n"], b: Float[Array, "m n"]
) -> Float[Array, "m n"]:
    """The columns (P + μ_j)⁻¹ b_j."""
    # P is made tridiagonal once, which costs a third of its eigenvectors.
    reflectors, diagonal, beside, scales = jax.lax.linalg.tridiagonal(p, lower=True)
    q = jax.lax.linalg.householder_product(reflectors[1:, :-1], scales)
    b = jnp.concatenate([b[:1], q.T @ b[1:]])
    shape = (mu.shape[0], p.shape[0])
    end = jnp.zeros(1, p.dtype)
    below = jnp.broadcast_to(jnp.concatenate([end, beside])[None, :], shape)
    above = jnp.broadcast_to(jnp.concatenate([beside, end])[None, :], shape)
    x = jax.lax.linalg.tridiagonal_solve(
        below, diagonal[None, :] + mu[:, None], above, b.T[:, :, None]
    )[:, :, 0].T
    return jnp.concatenate([x[:1], q @ x[1:]])


def _conjugate_gradients(factors: Factors, g: Float[Array, "m n"]) -> tuple[Factors, Scalar]:
    """J⁺G at depth 3 and more, and the relative residual."""
    before, after = partial_products(factors)
    eps = jnp.finfo(g.dtype).eps
    last = jnp.asarray(before[-1])
    first = jnp.asarray(after[0])
    lam, u = jnp.linalg.eigh(last @ last.T, symmetrize_input=False)
    mu, v = jnp.linalg.eigh(first.T @ first, symmetrize_input=False)
    onto = jnp.maximum(lam[0] / lam[-1], mu[0] / mu[-1]) > 1e4 * max(g.shape) * eps
    g = jax.lax.cond(onto, lambda g: g, lambda g: _on_the_range(before, after, g), g)

    middle = []
    for a, b in zip(before[1:-1], after[1:-1], strict=True):
        left = u.T @ jnp.asarray(a)
        right = jnp.asarray(b) @ v
        middle.append((left @ left.T, right.T @ right))
    ends = jnp.maximum(lam, 0)[:, None] + jnp.maximum(mu, 0)[None, :]
    diagonal = ends + sum(jnp.diagonal(p)[:, None] * jnp.diagonal(q)[None, :] for p, q in middle)
    # Where the diagonal of a positive operator vanishes, so do its row and column: the iteration
    # must not move there.
    reciprocal = _safe(diagonal, max(g.shape) * eps * jnp.max(diagonal))
    operator = lambda m: ends * m + sum(p @ m @ q for p, q in middle)
    m, residual = _solve(operator, reciprocal, u.T @ g @ v)
    return pull(factors, u @ m @ v.T), residual


def _solve(
    operator: Callable[[Array], Array], preconditioner: Array, b: Float[Array, "m n"]
) -> tuple[Float[Array, "m n"], Scalar]:
    """The solution for a positive operator, to rounding, and its relative residual."""
    tolerance = 20 * jnp.finfo(b.dtype).eps
    inner = lambda x, y: jnp.sum(x * y)
    size = jnp.maximum(jnp.linalg.norm(b), jnp.finfo(b.dtype).tiny)

    def step(carry):
        x, r, p, rho, best, best_at, count = carry
        kp = operator(p)
        alpha = rho / jnp.maximum(inner(p, kp), jnp.finfo(b.dtype).tiny)
        x = x + alpha * p
        r = r - alpha * kp
        z = r * preconditioner
        new = inner(r, z)
        residual = jnp.linalg.norm(r) / size
        better = residual < 0.9 * best[1]
        best = (jnp.where(better, x, best[0]), jnp.where(better, residual, best[1]))
        return (
            x,
            r,
            z + new / jnp.maximum(rho, jnp.finfo(b.dtype).tiny) * p,
            new,
            best,
            jnp.where(better, count, best_at),
            count + 1,
        )

    def unfinished(carry):
        best, best_at, count = carry[4:]
        return (best[1] > tolerance) & (count - best_at < PATIENCE) & (count < MOST)

    z = b * preconditioner
    zero = jnp.asarray(0)
    start = (
        jnp.zeros_like(b),
        b,
        z,
        inner(b, z),
        (jnp.zeros_like(b), jnp.asarray(1.0, b.dtype)),
        zero,
        zero,
    )
    # If b is NaN, the best iterate is the zero at the start: 0 * size makes it NaN.
    x = jax.lax.while_loop(unfinished, step, start)[4][0] + 0 * size
    # The residual is recomputed, because that of the recurrence drifts.
    return x, jnp.linalg.norm(b - operator(x)) / size


def _on_the_range(
    before: list[Array | None], after: list[Array | None], g: Float[Array, "m n"]
) -> Float[Array, "m n"]:
    """ΠG, by the formula of the module."""
    result = jnp.zeros_like(g)
    previous = None
    for a, b in zip(before, after, strict=True):
        on_rows = g if a is None else _projected(a, g)
        now = on_rows if b is None else _projected(b.T, on_rows.T).T
        if previous is not None:
            now = now - _projected(previous.T, on_rows.T).T
        result = result + now
        previous = b
    return result


def _projected(a: Array, g: Array) -> Array:
    """The projection of the columns of g on the column space of a."""
    u, s, _ = jnp.linalg.svd(a, full_matrices=False)
    u = jnp.where((s > max(a.shape) * jnp.finfo(a.dtype).eps * s[0])[None, :], u, 0)
    return u @ (u.T @ g)
