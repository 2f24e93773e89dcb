r"""Masked completion where everything commutes: a theorem, with a matrix whose mask allows it.

Let \(T = \{U\,\mathrm{diag}(b)\,V^\top\}\) for orthogonal U, V. If masking maps T into itself, and
the observed part of the matrix is in T, then from factors \(W_l = U_{l-1}\mathrm{diag}(w_l)
U_l^\top\), \(U_0 = U\), \(U_L = V\), both the Euclidean flow and the natural flow with the Fisher
matrix of the observed entries stay in this form, and \((w_l)\) is a diagonal network: b is the
Bregman projection of its start on its own observations (`one-manifold`). For two factors that start
at \(\beta_0 = 0\) the flow tends, as the weights shrink, to the completion of *least nuclear norm*,
with the bound of `min-l1`. The proof is in the docs, "Results".

*A mask that allows it.* Let \(\beta_{ij} = f(i \oplus j)\), \(\oplus\) the exclusive or of the
digits of i and j, \(D = 2^n\). Such matrices are \(H\,\mathrm{diag}(b)\,H\) with the Hadamard
matrix H, and b is the spectrum of f. Observe the entries with \(i \oplus j \in S\): masking is a
product of f with an indicator, so that it maps T into itself. The rank is the number of frequencies
in f, the nuclear norm the \(\ell_1\) norm of its spectrum: completing the matrix is compressed
sensing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard

from pullback.linear import (
    MatrixProduct,
    hyperbolic_projection,
    l1_interpolant,
    minimum_nuclear_norm,
)

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from ..depth._figure_factors import Completion, error, product
from ._entropy import entropy
from .one_manifold import outside

DEPTHS = (2, 3, 4)
FLOWS = ("natural", "Euclidean")
LATE = {"natural": 4.0, "Euclidean": 30.0}
SCALES = np.array([1e0, 1e-2, 1e-4, 1e-6, 1e-8])
"""Of the imbalance κ, with β₀ = 0."""


def basis(size: int) -> np.ndarray:
    """H, symmetric and orthogonal."""
    return hadamard(size) / np.sqrt(size)


def invariant_mask(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """S, half of the indices, and the entries (i, j) with i xor j in S."""
    seen = np.zeros(size, bool)
    seen[rng.permutation(size)[: size // 2]] = True
    return seen, seen[np.bitwise_xor.outer(np.arange(size), np.arange(size))]


def sparse(rng: np.random.Generator, size: int) -> np.ndarray:
    """A spectrum with two entries, and so a matrix of rank 2, of the Frobenius norm D."""
    spectrum = np.zeros(size)
    spectrum[rng.permutation(size)[:2]] = rng.choice([-1.0, 1.0], 2) * rng.uniform(0.5, 1.0, 2)
    return spectrum * size / np.linalg.norm(spectrum)


def field(kind: str, depth: int, task: Completion) -> Callable:
    """The natural gradient with the Fisher matrix of the observed entries, or the gradient."""
    model = MatrixProduct(depth)
    truth, mask = jnp.asarray(task.truth), jnp.asarray(task.mask)
    method = model.masked_natural_gradient if kind == "natural" else model.gradient
    return jax.jit(lambda factors: jnp.stack(method(tuple(factors), truth, mask)))


def follow(kind: str, task: Completion, factors: np.ndarray) -> np.ndarray:
    """The factors late in a flow."""
    ours = field(kind, len(factors), task)
    velocity = lambda _, flat: -np.asarray(ours(jnp.asarray(flat.reshape(factors.shape)))).ravel()
    options = {"method": "DOP853", "rtol": 1e-9, "atol": 1e-11}
    end = solve_ivp(velocity, (0.0, LATE[kind]), factors.ravel(), **options)
    return end.y[:, -1].reshape(factors.shape)


def off_diagonal(h: np.ndarray, factors: np.ndarray) -> float:
    """The fraction of the factors that is not diagonal in the basis H."""
    turned = h @ factors @ h
    rest = turned * (1 - np.eye(len(h)))
    return float(np.linalg.norm(rest) / np.linalg.norm(turned))


def flows(rng: np.random.Generator, size: int) -> dict[str, list[float]]:
    """Depths and flows from random weights, and a mask that does not fit."""
    h = basis(size)
    found: dict[str, list[float]] = {n: [] for n in ("leaves", "outside", "closed", "unfit")}
    for depth in DEPTHS:
        seen, mask = invariant_mask(rng, size)
        truth = h @ np.diag(sparse(rng, size)) @ h
        weights = rng.standard_normal((depth, size))
        factors = np.stack([h @ np.diag(w) @ h for w in weights])
        x = h[seen]
        psi = entropy(weights)
        for kind in FLOWS:
            end = follow(kind, Completion(truth, mask), factors)
            found["leaves"].append(off_diagonal(h, end))
            spectra = [np.diag(h @ product(some) @ h) for some in (factors, end)]
            found["outside"].append(outside(x, psi.gradient(spectra[1]) - psi.gradient(spectra[0])))
            if depth == 2:
                start, late, kappa = map(jnp.asarray, (*spectra, psi.mu[0]))
                ours = hyperbolic_projection(jnp.asarray(x), jnp.asarray(x) @ late, start, kappa)
                found["closed"].append(distance(ours, late))
        other = np.zeros(size * size, bool)
        other[rng.permutation(size * size)[: mask.sum()]] = True
        task = Completion(truth, other.reshape(mask.shape))
        found["unfit"].append(off_diagonal(h, follow("natural", task, factors)))
    return found


def limits(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Two factors from β₀ = 0, smaller and smaller: the limit of the natural flow."""
    h = basis(size)
    seen, mask = invariant_mask(rng, size)
    spectrum = sparse(rng, size)
    task = Completion(h @ np.diag(spectrum) @ h, mask)
    x = jnp.asarray(h[seen])
    least = np.asarray(l1_interpolant(x, x @ jnp.asarray(spectrum)))
    norm = np.abs(least).sum()
    convex = minimum_nuclear_norm(jnp.asarray(task.truth), jnp.asarray(mask))[0]
    excess, bound, errors = (np.zeros(len(SCALES)) for _ in range(3))
    for i, kappa in enumerate(SCALES):
        ones = jnp.ones(size)
        ours = hyperbolic_projection(x, x @ jnp.asarray(spectrum), 0 * ones, kappa * ones)
        beta = h @ np.diag(np.asarray(ours)) @ h
        excess[i] = np.linalg.norm(beta, "nuc") / norm - 1
        bound[i] = np.log(size) / np.log(4 * norm / (np.e * size * kappa))
        errors[i] = error(beta, task)
    gap = abs(np.linalg.norm(np.asarray(convex), "nuc") / norm - 1)
    found = {"excess": excess, "bound": bound, "errors": errors, "gap": np.array(gap)}
    return found | {"least": np.array(error(h @ np.diag(least) @ h, task))}


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Flows of matrices, then their limits in closed form."""
    small, large, count = (32, 64, 20) if budget.full else (8, 32, 6)
    repeated = max(budget.seeds, 2) if budget.full else 1
    moved: dict[str, list[float]] = {}
    for seed in range(repeated):
        rng = generator(jax.random.fold_in(key, seed))
        for name, values in flows(rng, small).items():
            moved.setdefault(name, []).extend(values)
    ends = [limits(generator(jax.random.fold_in(key, 100 + seed)), large) for seed in range(count)]
    data: dict[str, Any] = {name: np.stack([end[name] for end in ends]) for name in ends[0]}
    return Measured(_rows(moved, data), data | {"scales": SCALES, "size": large})


def _rows(moved: dict[str, list[float]], data: Mapping[str, np.ndarray]) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    ratio = np.where(data["bound"] > 0, data["excess"] / data["bound"], np.inf)
    return (
        at_most(
            "both flows, L = 2, 3, 4: fraction of the factors outside the commuting ones, largest",
            max(moved["leaves"]),
            1e-7,  # the tolerance of the integration, times the growth of errors
        ),
        at_most(
            "both flows, L = 2, 3, 4: ∇ψ(b_t) - ∇ψ(b₀) outside the range of the observations, "
            "largest fraction",
            max(moved["outside"]),
            1e-6,
        ),
        at_most(
            "L = 2: b_t against hyperbolic_projection on its own observations, largest distance",
            max(moved["closed"]),
            1e-6,
        ),
        at_most(
            "nuclear norm of the limit beyond the least, fraction of its bound, largest",
            ratio.max(),
            1.0,
        ),
        at_most(
            "nuclear norm beyond the least: at κ = 1e-8 over that at κ = 1, largest",
            (data["excess"][:, -1] / data["excess"][:, 0]).max(),
            0.3,
        ),
        at_most(
            "error on unobserved entries at κ = 1e-8, median",
            np.median(data["errors"][:, -1]),
            0.05,
        ),
        at_most(
            "least nuclear norm of all matrices against that of commuting ones, largest difference",
            data["gap"].max(),
            1e-3,
        ),
        at_least(
            "a mask of as many entries that does not fit: fraction outside, least",
            min(moved["unfit"]),
            1e-3,
            Role.CONTROL,
        ),
        at_least(
            "error on unobserved entries at κ = 1, median",
            np.median(data["errors"][:, 0]),
            0.1,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Two factors, natural flow with the Fisher matrix of the observed entries, one curve per
    matrix of rank 2. Left: error on the other half of the entries, over the size of the initial
    weights. Right: nuclear norm beyond the least, and its bound (dashed, nearly one curve).
    """
    drawing, (left, right) = open_figure(columns=2)
    for excess, bound, errors in zip(data["excess"], data["bound"], data["errors"], strict=True):
        left.loglog(data["scales"], errors, marker="o", ms=4, color=COLOURS[1], lw=1)
        right.loglog(data["scales"], excess, marker="o", ms=4, color=COLOURS[1], lw=1)
        right.loglog(data["scales"], bound, "--", color=COLOURS[0], lw=1)
    left.set(
        xlabel="κ = |w1² - w2²| at the start",
        ylabel="relative error, unobserved entries",
        title=f"β(i, j) = f(i xor j), D = {data['size']}, half observed",
    )
    right.set(
        xlabel="κ = |w1² - w2²| at the start",
        ylabel="nuclear norm beyond the least, relative",
        title="dashed: log D / log(4S/(eDκ))",
    )
    return drawing


CLAIM = Claim(
    name="commuting-completion",
    source="ours",
    place="after section 4 of Kerekes et al.; proof in the docs, Results",
    statement=(
        "Where mask, matrix and initial factors commute, the Euclidean flow and the natural flow "
        "with the Fisher matrix of the observed entries of a product of any depth are those of a "
        "diagonal network on the singular values. With two factors that start at β = 0 the natural "
        "flow tends to the completion of least nuclear norm as the initial weights shrink; the "
        "excess is at most log D / log(4S/(eDκ))."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
    key_number="nuclear norm of the limit beyond the least, fraction of its bound, largest",
)
