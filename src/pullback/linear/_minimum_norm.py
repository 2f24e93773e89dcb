r"""\(J^+G\) for a product of matrices: \(X_l = A_l^\top MB_l^\top\) where M solves

\[ K(M) = \sum_l P_l\,M\,Q_l = \Pi G, \qquad P_l = A_lA_l^\top,\quad Q_l = B_l^\top B_l,\qquad P_1 =
I,\ Q_L = I, \]

and \(\Pi\) is the projection on the range of J. (A part of M in the kernel of K changes no
\(X_l\).)

*Depth 2* is Sylvester's equation \(MQ_1 + P_2M = G\): with \(P_2 =
U\,\mathrm{diag}(\lambda)\,U^\top\), \(Q_1 = V\,\mathrm{diag}(\mu)\,V^\top\) it is solved by
dividing the entries of \(U^\top GV\) by \(\lambda_i + \mu_j\), those with a zero denominator
dropped: Moore-Penrose for every rank. While \(Q_1\) is far from singular one eigenvalue problem is
enough, the columns \((P_2 + \mu_j)^{-1}(GV)_j\) come from a tridiagonal form of \(P_2\). Otherwise
the eigenvalues would be squared singular values that have lost their digits: then the bases come
from singular value decompositions of \(W_1\) and \(W_2\) themselves.

*Depth 3 and more.* The \(P_l\) do not commute. Conjugate gradients in the bases of \(P_L\) and
\(Q_1\), where the first and the last term are diagonal and cost nothing, preconditioned by the
diagonal of the whole; each middle term costs two products of matrices an iteration.

*The range of J.* The column spaces \(U_l\) of \(A_l\) are nested, \(U_1 \supseteq U_2 \supseteq
\cdots\), and so are the row spaces \(V_l\) of \(B_l\), \(V_1 \subseteq V_2 \subseteq \cdots\).
Hence

\[ \mathrm{range}(J) = \sum_l U_l \otimes V_l, \qquad \Pi G = \sum_l \Pi_{U_l}\,G\,(\Pi_{V_l} -
\Pi_{V_{l-1}}), \]

and \(\Pi = I\) as soon as \(A_L\) has full row rank or \(B_1\) full column rank. Only otherwise are
the ranks needed, from singular values.
"""

from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Factors: TypeAlias = tuple[Float[Array, "..."], ...]
"""Matrices that can be multiplied, or a change of them."""

MOST = 2000
"""Iterations of conjugate gradients."""


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
    """The product of the factors; with a change, the change of the product to first order, Σ A_l
    X_l B_l.
    """
    product, moved = factors[0], factors[0] if change is None else change[0]
    for l, w in enumerate(factors[1:], start=1):
        moved = moved @ w if change is None else moved @ w + product @ change[l]
        product = moved if change is None else product @ w
    return moved


def pull(factors: Factors, covector: Array) -> Factors:
    """Jᵀ: (A_lᵀ M B_lᵀ)."""
    left = [covector]
    for w in factors[:-1]:
        left.append(w.T @ left[-1])
    result, after = [left[-1]], None
    for l in range(len(factors) - 2, -1, -1):
        after = factors[l + 1] if after is None else factors[l + 1] @ after
        result.append(left[l] @ after.T)
    return tuple(result[::-1])


def kernel(factors: Factors, covector: Array) -> Array:
    """K(M) = J Jᵀ(M)."""
    return push(factors, pull(factors, covector))


def minimum_norm(factors: Factors, g: Array, throw: bool = True) -> Factors:
    """J⁺G."""
    change, residual = _minimum_norm(factors, g)
    if not throw or len(factors) < 3:
        return change
    # A NaN that was put in comes out as one.
    return eqx.error_if(
        change,
        residual > jnp.sqrt(jnp.finfo(g.dtype).eps),
        "conjugate gradients for the shortest natural gradient of a MatrixProduct did not converge: its factors are too ill-conditioned. "
        "Use pullback.natural_gradient with solver=SVD() or Dual() on the product, or throw=False to get what they came to.",
    )


# Compiled here, so that calls outside of compiled code do not compile the branches below anew.
@jax.jit
def _minimum_norm(factors, g):
    """J⁺G and the relative residual of the iteration, zero where there is none."""
    zero = jnp.zeros((), g.dtype)
    if len(factors) == 1:
        return (g,), zero
    return (_sylvester(factors, g), zero) if len(factors) == 2 else _conjugate_gradients(factors, g)


def _safe(denominator, cutoff):
    """The reciprocal; zero where the denominator is."""
    keep = denominator > cutoff
    return jnp.where(keep, 1 / jnp.where(keep, denominator, 1), 0)


def _sylvester(factors, g):
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
        # What is left of M on one side of a singular value: u1 m (s2) z2ᵀ and z1ᵀ (s1) m v2.
        first = (u1 @ m[:, : s2.shape[0]]) * s2[None, :] @ z2[:, : s2.shape[0]].T
        second = z1[: s1.shape[0]].T @ (s1[:, None] * (m[: s1.shape[0]] @ v2))
        return first, second

    if min(g.shape) < 3:
        return by_singular_values(None)
    return jax.lax.cond(mu[0] > 1e-7 * largest, by_eigenvalues, by_singular_values, None)


def _shifted_solves(p, mu, b):
    """The columns (P + μ_j)⁻¹ b_j: P is made tridiagonal once, which costs a third of its
    eigenvectors.
    """
    reflectors, diagonal, beside, scales = jax.lax.linalg.tridiagonal(p, lower=True)
    q = jax.lax.linalg.householder_product(reflectors[1:, :-1], scales)
    b = jnp.concatenate([b[:1], q.T @ b[1:]])
    shape, end = (mu.shape[0], p.shape[0]), jnp.zeros(1, p.dtype)
    below = jnp.broadcast_to(jnp.concatenate([end, beside])[None, :], shape)
    above = jnp.broadcast_to(jnp.concatenate([beside, end])[None, :], shape)
    x = jax.lax.linalg.tridiagonal_solve(
        below, diagonal[None, :] + mu[:, None], above, b.T[:, :, None]
    )[:, :, 0].T
    return jnp.concatenate([x[:1], q @ x[1:]])


def _conjugate_gradients(factors, g):
    before, after = partial_products(factors)
    eps = jnp.finfo(g.dtype).eps
    last, first = jnp.asarray(before[-1]), jnp.asarray(after[0])
    lam, u = jnp.linalg.eigh(last @ last.T, symmetrize_input=False)
    mu, v = jnp.linalg.eigh(first.T @ first, symmetrize_input=False)
    onto = jnp.maximum(lam[0] / lam[-1], mu[0] / mu[-1]) > 1e4 * max(g.shape) * eps
    g = jax.lax.cond(onto, lambda g: g, lambda g: _on_the_range(before, after, g), g)

    middle = []
    for a, b in zip(before[1:-1], after[1:-1], strict=True):
        left, right = u.T @ jnp.asarray(a), jnp.asarray(b) @ v
        middle.append((left @ left.T, right.T @ right))
    ends = jnp.maximum(lam, 0)[:, None] + jnp.maximum(mu, 0)[None, :]
    diagonal = ends + sum(jnp.diagonal(p)[:, None] * jnp.diagonal(q)[None, :] for p, q in middle)
    # Where the diagonal of a positive operator vanishes so do its row and column: no step is to be
    # taken there.
    reciprocal = _safe(diagonal, max(g.shape) * eps * jnp.max(diagonal))
    operator = lambda m: ends * m + sum(p @ m @ q for p, q in middle)
    m, residual = _solve(operator, reciprocal, u.T @ g @ v)
    return pull(factors, u @ m @ v.T), residual


def _solve(operator, preconditioner, b, patience=200):
    """Preconditioned conjugate gradients for a positive operator, to rounding: until 200 iterations
    have not improved the residual. With that residual, relative.
    """
    tolerance = 20 * jnp.finfo(b.dtype).eps
    inner = lambda x, y: jnp.sum(x * y)
    size = jnp.maximum(jnp.linalg.norm(b), jnp.finfo(b.dtype).tiny)

    def step(carry):
        x, r, p, rho, best, best_at, count = carry
        kp = operator(p)
        alpha = rho / jnp.maximum(inner(p, kp), jnp.finfo(b.dtype).tiny)
        x, r = x + alpha * p, r - alpha * kp
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
        return (best[1] > tolerance) & (count - best_at < patience) & (count < MOST)

    z, zero = b * preconditioner, jnp.asarray(0)
    start = (
        jnp.zeros_like(b),
        b,
        z,
        inner(b, z),
        (jnp.zeros_like(b), jnp.asarray(1.0, b.dtype)),
        zero,
        zero,
    )
    x = (
        jax.lax.while_loop(unfinished, step, start)[4][0] + 0 * size
    )  # NaN if b is, not the zero it started from
    return x, jnp.linalg.norm(b - operator(x)) / size  # the true one: the recurrence drifts


def _on_the_range(before, after, g):
    """ΠG: see the module."""
    result, previous = jnp.zeros_like(g), None
    for a, b in zip(before, after, strict=True):
        on_rows = g if a is None else _projected(a, g)
        now = on_rows if b is None else _projected(b.T, on_rows.T).T
        if previous is not None:
            now = now - _projected(previous.T, on_rows.T).T
        result, previous = result + now, b
    return result


def _projected(a, g):
    """The projection of the columns of g on the column space of a."""
    u, s, _ = jnp.linalg.svd(a, full_matrices=False)
    u = jnp.where((s > max(a.shape) * jnp.finfo(a.dtype).eps * s[0])[None, :], u, 0)
    return u @ (u.T @ g)
