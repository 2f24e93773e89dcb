r"""Formulas of the source that a number can decide, as printed and as they must read. None of them
touches a result.

| place | printed | right |
|---|---|---|
| (7), (62) | \(\dot v = F^{-1}\nabla L\) | \(\dot v = -F^{-1}\nabla L\) |
| Theorem 2, sketch | \(v_t = \beta'_t\) | \(v_t = \beta_t(X, y)\) |
| (12) | \(\mathbb E[y_i(1 - \varphi(y_i))]\) | \(\mathbb E[y_i(1 - \varphi(y_i s_i))] = 0\) |
| (22), (25) | \(-\tilde X\varphi(-u)\) | \(-\tilde X^\top\varphi(-u)\) |
| B.2 | most entries of \(J\) are non-zero | are zero |
| B.2 | the last \(L - l - 1\) layers | \(L - l\) |
| (32) | \(p(y = 1) = \varphi(-y\,x\cdot\beta)\) | \(\varphi(x\cdot\beta)\) |
| (36), line 4 | \((1 - \varphi)^2\varphi^2\) | \((1 - \varphi)\varphi^2\) |
| (37) | \(\nabla_\beta = J^\top\nabla_w\), of unfit shapes | \(\nabla_w = J^\top\nabla_\beta\) |
| (39) | \(\prod_{k \ne i}^N\) | \(\prod_{k \ne n}^L\) |
| before (49) | \(\mathrm{vec}(ABC) = (C^\top\otimes A)\,x\) | \(\mathrm{vec}(AXC)\) on the left |
| C.3 | \(\tilde y = 1\) by \(\tilde x = -x\) | only if \(y = -1\); in general \(\tilde x = yx\) |
| 2.3 | unique within the eigenspace of \(F\) | unique up to the kernel of \(F\) |

Before (49), \(x = \mathrm{vec}(X)\); the printed line has no \(X\) on its left, and is right if it
is read with \(B = X\). Also, and not for a number to decide: (28) has \(i = j\) for \(i = k\);
(43), (44) write \(J^{-1}\) for a right inverse (`factorisation`); B.2 and C.3 refer to B.2 for what
is in B.1, section 4 to E for F, appendix A to "Theorem 1.4"; C.3 has \(c \in \mathbb R^D\) for
\(c \in \mathbb R^N\).
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_most, equals
from .._numbers import distance, generator
from ._logistic import fisher, gradient, newton_flow, phi, separable
from .diagonal_network import jacobian


def pair(place: str, printed: float, right: float) -> Iterator[Row]:
    """Two errors: of what is printed and of what is right."""
    yield at_most(f"{place}, as printed: error", printed, 1e-3)
    yield at_most(f"{place}, corrected: error", right, 1e-6, Role.CORRECTED)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """One pair of rows for each entry."""
    rng = generator(key)
    rows = [*_flow(rng), *_linear(rng), *_layers(rng), *_rescaling()]
    return Measured(tuple(rows))


def _flow(rng: np.random.Generator) -> Iterator[Row]:
    """The flow of v = Aᵀβ', by differences of the convex solution."""
    x, y = separable(rng, 15, 3)
    a = rng.standard_normal((3, 3)) + 2 * np.eye(3)
    start = 0.3 * rng.standard_normal(3)
    h = 1e-4
    z = x @ a.T
    moved = np.linalg.solve(a.T, start)
    other = {t: newton_flow(z, y, moved, t) for t in (1.0 - h, 1.0, 1.0 + h)}
    v = {t: a.T @ b for t, b in other.items()}
    motion = (v[1.0 + h] - v[1.0 - h]) / (2 * h)
    field = np.linalg.solve(fisher(x, v[1.0]), gradient(x, y, v[1.0]))
    yield from pair("(7), (62), the sign", distance(motion, field), distance(motion, -field))
    beta = newton_flow(x, y, start, 1.0)
    yield from pair("Theorem 2, sketch, v_t", distance(v[1.0], other[1.0]), distance(v[1.0], beta))


def _linear(rng: np.random.Generator) -> Iterator[Row]:
    """The linear model; a square design, so that both shapes fit."""
    s = 1.3
    label = np.array([1.0, -1.0])
    mean = lambda inner: abs(float(np.sum(phi(label * s) * label * (1 - phi(inner)))))
    yield from pair("(12), a mean score that vanishes", mean(label), mean(label * s))
    x, y = separable(rng, 4, 4)
    beta = rng.standard_normal(4)
    signed = y[:, None] * x
    exact = np.array(
        [(_loss(x, y, beta + e) - _loss(x, y, beta - e)) / 2e-6 for e in 1e-6 * np.eye(4)]
    )
    weights = phi(-signed @ beta)
    yield from pair(
        "(22), (25), the gradient",
        distance(-signed @ weights, exact),
        distance(-signed.T @ weights, exact),
    )
    truth = 1 / (1 + np.exp(-s))
    yield from pair(
        "(32), p(y = 1) at a logit of 1.3",
        abs(float(phi(np.array(-s))) - truth),
        abs(float(phi(np.array(s))) - truth),
    )
    p = truth
    yield from pair(
        "(36), line 4",
        abs(p * (1 - p) ** 2 + (1 - p) ** 2 * p**2 - p * (1 - p)),
        abs(p * (1 - p) ** 2 + (1 - p) * p**2 - p * (1 - p)),
    )
    x = rng.standard_normal((2, 4))
    f = fisher(x, beta)
    first = np.linalg.pinv(f) @ f @ rng.standard_normal(4)
    kernel = (np.eye(4) - np.linalg.pinv(f) @ f) @ rng.standard_normal(4)
    yield equals(
        "2.3, as printed: dimension of the set of directions, on the range of F, two samples of "
        "four columns",
        4 - np.linalg.matrix_rank(f),
        0,
    )
    yield at_most(
        "2.3, corrected: F δ of two directions that differ by ker F",
        distance(f @ (first + kernel), f @ first),
        1e-12,
        Role.CORRECTED,
    )


def _loss(x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> float:
    return float(np.sum(np.logaddexp(0.0, -y * (x @ beta))))


def _layers(rng: np.random.Generator) -> Iterator[Row]:
    """Three diagonal layers of six coordinates, then the vec of a product."""
    depth = 3
    size = 6
    w = rng.standard_normal((depth, size))
    j = jacobian(w)
    exact = np.array(
        [
            (
                np.prod((w.ravel() + e).reshape(w.shape), axis=0)
                - np.prod((w.ravel() - e).reshape(w.shape), axis=0)
            )
            / 2e-5
            for e in 1e-5 * np.eye(w.size)
        ]
    ).T
    literal = np.hstack(
        [
            np.diag([np.prod([w[k, i] for k in range(depth) if k != i]) for i in range(size)])
            for _ in range(depth)
        ]
    )
    yield from pair(
        "(39), the product over the other layers", distance(literal, exact), distance(j, exact)
    )
    fraction = np.mean(np.abs(exact) > 1e-9)
    yield equals("B.2, as printed: most entries of J are non-zero", fraction > 0.5, True)
    yield equals(
        "B.2, corrected: fraction of non-zero entries, times D", fraction * size, 1, Role.CORRECTED
    )
    beta = np.prod(w, axis=0)
    split = lambda l, last: np.prod(w[:l], axis=0) * np.prod(w[depth - last :], axis=0)
    yield from pair(
        "B.2, b_l in (27), the product of the last layers, l = 2 of 3",
        distance(split(2, depth - 2 - 1), beta),
        distance(split(2, depth - 2), beta),
    )
    g = rng.standard_normal(size)
    slope = [
        (
            g @ np.prod((w.ravel() + e).reshape(w.shape), axis=0)
            - g @ np.prod((w.ravel() - e).reshape(w.shape), axis=0)
        )
        / 2e-5
        for e in 1e-5 * np.eye(w.size)
    ]
    yield at_most("(37), corrected: ∇_w = Jᵀ∇_β", distance(j.T @ g, slope), 1e-6, Role.CORRECTED)
    a, b, c = (rng.standard_normal((3, 3)) for _ in range(3))
    yield at_most(
        "before (49), corrected: vec(AXB) = (Bᵀ ⊗ A) vec X",
        distance(np.kron(c.T, a) @ b.ravel(order="F"), (a @ b @ c).ravel(order="F")),
        1e-12,
        Role.CORRECTED,
    )


def _rescaling() -> Iterator[Row]:
    """C.3: a sample with y = 1, whose logit is flipped as printed."""
    s = 0.8
    y = 1.0
    speed = y / float(phi(np.array(y * s)))  # eq. (66)
    yield from pair(
        "C.3, the speed (67) of s̃ for y = 1",
        abs(-speed - 1 / float(phi(np.array(-s)))),
        abs(y * speed - 1 / float(phi(np.array(y * s)))),
    )


CLAIM = Claim(
    name="depth-typos",
    source="depth",
    place="eqs. (7), (12), (22), (25), (32), (36), (37), (39), (49), (62), sections 2.3, B.2, C.3",
    statement="The formulas as printed.",
    verdict=Verdict.CORRECTED,
    stands=True,
    run=run,
    correction=(
        "Signs, transposes, indices and counts; the table in the module lists them. No result "
        "depends on them."
    ),
)
