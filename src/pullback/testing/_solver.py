r"""`check_solver`: agreement with the dense reference, for every inverse that a solver accepts.

For \(A\) of known rank and spectrum (more parameters than rows, fewer, rank-deficient) and an
inverse \(h\):

\[ \mathtt{solve\_lifted}(r) = R^{-1} h(\tilde A^\top\tilde A)\,\tilde A^\top r, \qquad
\mathtt{solve\_covector}(g) = R^{-1} h(\tilde A^\top\tilde A)\,R^{-\top} g, \]

with `g` inside and outside the range, the rank where it is reported, the projection where it is
known, the damped factors where they are offered, and the natural gradient under `jit`.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._base.results import RESULTS
from .._natural.natural_gradient import natural_gradient
from .._natural.pullback_metric import pullback
from ..inverse import AbstractInverse, Dampable, MoorePenrose, Tikhonov, TruncatedRank
from ..metric import Bernoulli
from ..solver import AbstractFactors, AbstractSolver
from ._filters import random_filter
from ._problems import Example, prescribed
from ._reference import dense_gauge, dense_inverse, reference_natural_gradient

SHAPES = {
    "more parameters than rows": (4, 4, 7),
    "fewer parameters than rows": (4, 7, 4),
    "rank-deficient": (3, 6, 5),
}
INVERSES: dict[str, AbstractInverse] = {
    "MoorePenrose": MoorePenrose(),
    "Tikhonov": Tikhonov(0.03),
    "TruncatedRank": TruncatedRank(2),
}
DAMPING = 0.05


def check_solver(solver: AbstractSolver, *, tolerance: float = 1e-9) -> list[str]:
    """Check a solver against the dense reference; return what was checked.

    Raises an `AssertionError` with the measured numbers. An inverse that `solver.check` refuses is
    left out; every other one must be right.

    **Arguments:**

    - `solver`: any solver.
    - `tolerance`: how large a relative error may be, in float64.
    """
    checked = []
    for name, inverse, example in _cases():
        if accepts(solver, inverse):
            what = f"{type(solver).__name__}, {name}"
            _check(solver, inverse, example, what, tolerance)
            checked.append(what)
    assert checked, f"{type(solver).__name__} accepts no inverse."
    checked += _check_damped(solver, tolerance)
    _check_whole(solver, tolerance)
    return checked


def accepts(solver: AbstractSolver, inverse: AbstractInverse) -> bool:
    """Return whether a solver can compute an inverse."""
    try:
        solver.check(inverse)
    except ValueError:
        return False
    return True


def _cases() -> Iterator[tuple[str, AbstractInverse, Example]]:
    for shape, (rank, rows, size) in SHAPES.items():
        for name, inverse in INVERSES.items():
            yield f"{name}, {shape}", inverse, prescribed(rank, rows, size)
        for seed in (1, 2, 3):
            yield (
                f"random filter {seed}, {shape}",
                random_filter(seed),
                prescribed(rank, rows, size),
            )
        # A family that saturates: a solver may treat its rows by themselves.
        example = prescribed(rank, rows, size, metric=Bernoulli())
        yield f"MoorePenrose, {shape}, Bernoulli", MoorePenrose(), example
    diagonal, example = jnp.linspace(0.5, 2.0, 5), prescribed(3, 6, 5)
    yield "MoorePenrose with a cut-off", MoorePenrose(rtol=0.2), example
    yield "MoorePenrose in a gauge", MoorePenrose(gauge=diagonal), example
    yield "Tikhonov in a gauge", Tikhonov(0.03, gauge=diagonal), example
    yield "random filter in a gauge", random_filter(4, diagonal), example


def whitened(example: Example) -> np.ndarray:
    """Return A, dense; both metrics used here are diagonal, and so is their root."""
    reference = reference_natural_gradient(*example)
    return np.sqrt(np.diag(reference.metric))[:, None] * reference.jacobian


def _check(
    solver: AbstractSolver, inverse: AbstractInverse, example: Example, what: str, tolerance: float
) -> None:
    a, rng = whitened(example), np.random.default_rng(0)
    root = np.linalg.cholesky(dense_gauge(inverse.gauge, a.shape[1]))
    dense = dense_inverse(a, inverse, root)
    metric = pullback(*example, inverse=inverse, solver=solver)
    r, outside, eta = (rng.standard_normal(n) for n in (a.shape[0], a.shape[1], a.shape[1]))
    inside = a.T @ r
    factorised = metric.factorise()

    def everything(r, covectors, eta):
        solved = jax.lax.map(factorised.solve_covector, covectors)
        lifted, both = factorised.solve_lifted(r), None
        if type(factorised.factors).solve_both is not AbstractFactors.solve_both:
            both = factorised.solve(r, covectors[1])
        return lifted, solved, both, factorised.factors.project(eta)

    known = factorised.factors.knows_row_space
    # What factorises runs operation by operation; what iterates would be compiled loop by loop.
    run = everything if known else eqx.filter_jit(everything)
    unit = r / np.asarray(metric.whitened.scale)
    covectors = jnp.asarray(np.stack([inside, outside]))
    lifted, solved, both, projected = run(jnp.asarray(unit), covectors, jnp.asarray(eta))
    expected = dense.matrix @ inside
    close(f"{what}: solve_lifted(r)", lifted, expected, tolerance)
    close(f"{what}: solve_covector(g), g in the range", solved[0], expected, tolerance)
    beyond = dense.matrix @ outside
    close(f"{what}: solve_covector(g), g not in the range", solved[1], beyond, tolerance)
    if both is not None:
        close(f"{what}: solve_both(r, g)", both, expected + beyond, tolerance)
    rank = int(factorised.rank)
    assert rank in (-1, dense.rank), f"{what}: rank {rank}, not {dense.rank} (-1 if not computed)."
    finite = bool(np.all(np.isfinite(projected)))
    assert finite or not known, f"{what}: the row space is known, but project is not finite."
    if finite:
        close(f"{what}: project", projected, dense.projection @ eta, tolerance)


def _check_damped(solver: AbstractSolver, tolerance: float) -> list[str]:
    """Check (G + λ)⁻¹ from undamped factors, where factors offer `damped`."""
    checked = []
    for name, inverse in {
        "MoorePenrose": MoorePenrose(),
        "TruncatedRank": TruncatedRank(2),
    }.items():
        if not accepts(solver, Dampable(inverse)):
            continue
        for shape, (rank, rows, size) in SHAPES.items():
            example = prescribed(rank, rows, size)
            a, what = whitened(example), f"{type(solver).__name__}, {name}, {shape}, damped"
            factorised = pullback(*example).factorise(Dampable(inverse), solver)
            if type(factorised.factors).damped is AbstractFactors.damped:
                return checked
            dense = dense_inverse(a, inverse, np.eye(size), DAMPING)
            inside = dense.projection @ a.T @ np.linspace(-1, 1, rows)
            g = np.cos(np.arange(size))
            damped = factorised.damped(jnp.asarray(DAMPING))
            solve = damped.solve_lifted if known(damped) else eqx.filter_jit(damped.solve_lifted)
            found = solve(jnp.linspace(-1, 1, rows))
            close(f"{what}: solve_lifted(r)", found, dense.matrix @ inside, tolerance)
            solve = damped.solve_covector
            found = (solve if known(damped) else eqx.filter_jit(solve))(jnp.asarray(g))
            close(f"{what}: solve_covector(g)", found, dense.matrix @ g, tolerance)
            checked.append(what)
    return checked


def known(factorised: Any) -> bool:
    """Return whether factors know their row space, and so need no iteration."""
    return factorised.factors.knows_row_space


def _check_whole(solver: AbstractSolver, tolerance: float) -> None:
    """Check the whole natural gradient, compiled by the user."""
    inverse = next(inverse for inverse in INVERSES.values() if accepts(solver, inverse))
    problem, params, batch = prescribed(3, 6, 5)
    expected = reference_natural_gradient(problem, params, batch, inverse=inverse)
    compiled = eqx.filter_jit(
        lambda p, b: natural_gradient(problem, p, b, inverse=inverse, solver=solver, throw=False)
    )
    ng = compiled(params, batch)
    what = f"{type(solver).__name__}, {type(inverse).__name__}, under jit"
    close(f"{what}: vector", ng.vector, expected.vector, tolerance)
    assert bool(ng.result == RESULTS.successful), f"{what}: {RESULTS[ng.result]}"
    rank = int(ng.stats.rank)
    assert rank in (-1, expected.rank), f"{what}: stats.rank is {rank}, not {expected.rank}."


def close(what: str, found: Any, expected: Any, tolerance: float) -> None:
    """Raise an `AssertionError` with the relative error if two arrays differ."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}."
    size, error = np.linalg.norm(expected), np.linalg.norm(found - expected)
    assert error <= tolerance * size, (
        f"{what}: relative error {error / size:.3e}, more than {tolerance:.1e}."
    )
