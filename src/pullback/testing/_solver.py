r"""What every solver must do: the same as the dense reference, for every inverse it accepts, for
both right-hand sides. Run it on yours.

For \(A\) of known rank and spectrum (more parameters than rows, fewer, rank-deficient) and an
inverse \(h\):

\[ \mathtt{lifted}(r) = R^{-1} h(\tilde A^\top\tilde A)\,\tilde A^\top r, \qquad
\mathtt{covector}(g) = R^{-1} h(\tilde A^\top\tilde A)\,R^{-\top} g, \]

with `g` inside and outside the range, the rank where it is reported, the projection behind the
share in range, and all of it again under `jit`.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._natural.natural_gradient import natural_gradient
from .._natural.pullback_metric import pullback
from ..inverse import AbstractInverse, MoorePenrose, Tikhonov, TruncatedRank
from ..metric import Bernoulli
from ..solver import AbstractSolver
from ._problems import Example, prescribed
from ._reference import reference_natural_gradient

SHAPES = {
    "more parameters than rows": (4, 4, 7),
    "fewer parameters than rows": (4, 7, 4),
    "rank-deficient": (3, 6, 5),
}
INVERSES = {
    "MoorePenrose": MoorePenrose(),
    "Tikhonov": Tikhonov(0.03),
    "TruncatedRank": TruncatedRank(2),
}


def check_solver(solver: AbstractSolver, *, tolerance: float = 1e-9) -> list[str]:
    """Raise an `AssertionError` with the measured numbers if a solver does not agree with the dense
    reference; return what was checked.

    An inverse that `solver.check` refuses is left out; every other one must be right.

    **Arguments:**

    - `solver`: any solver.
    - `tolerance`: how large a relative error may be, in float64.
    """
    checked = []
    for name, inverse, example in _cases():
        if _accepts(solver, inverse):
            what = f"{type(solver).__name__}, {name}"
            _check(solver, inverse, example, what, tolerance)
            checked.append(what)
    assert checked, f"{type(solver).__name__} accepts no inverse."
    _check_jit(solver, tolerance)
    return checked


def _accepts(solver: AbstractSolver, inverse: AbstractInverse) -> bool:
    try:
        solver.check(inverse)
    except ValueError:
        return False
    return True


def _cases() -> Iterator[tuple[str, AbstractInverse, Example]]:
    for shape, (rank, rows, size) in SHAPES.items():
        for name, inverse in INVERSES.items():
            yield f"{name}, {shape}", inverse, prescribed(rank, rows, size)
        # A family that saturates: a solver may treat its rows by themselves.
        yield (
            f"MoorePenrose, {shape}, Bernoulli",
            MoorePenrose(),
            prescribed(rank, rows, size, metric=Bernoulli()),
        )
    diagonal, example = jnp.linspace(0.5, 2.0, 5), prescribed(3, 6, 5)
    yield "MoorePenrose with a cut-off", MoorePenrose(rtol=0.2), example
    yield "MoorePenrose in a gauge", MoorePenrose(gauge=diagonal), example
    yield "Tikhonov in a gauge", Tikhonov(0.03, gauge=diagonal), example


def _dense(example: Example, inverse: AbstractInverse) -> dict[str, Any]:
    """A, h(G) and the projection on what is kept, dense. Both metrics used here are diagonal, and
    so is the root.
    """
    reference = reference_natural_gradient(*example, inverse=inverse)
    a = np.sqrt(np.diag(reference.metric))[:, None] * reference.jacobian
    gauge = np.ones(a.shape[1]) if inverse.gauge is None else np.sqrt(np.asarray(inverse.gauge))
    _, s, vt = np.linalg.svd(a / gauge, full_matrices=True)
    s = np.concatenate([s, np.zeros(vt.shape[0] - s.size)])[: vt.shape[0]]
    kept = (np.arange(s.size) < reference.rank).astype(float)
    h = (
        1 / (s**2 + float(inverse.damping))
        if isinstance(inverse, Tikhonov)
        else kept / np.where(kept > 0, s, 1.0) ** 2
    )
    frame = vt.T / gauge[:, None]
    return {"A": a, "rank": reference.rank, "h": (frame * h) @ frame.T, "Π": (vt.T * kept) @ vt}


def _check(
    solver: AbstractSolver, inverse: AbstractInverse, example: Example, what: str, tolerance: float
) -> None:
    dense, rng = _dense(example, inverse), np.random.default_rng(0)
    metric = pullback(*example, inverse=inverse, solver=solver)
    m, size = dense["A"].shape
    r, outside, eta = rng.standard_normal(m), rng.standard_normal(size), rng.standard_normal(size)
    inside = dense["A"].T @ r

    def everything(r, covectors, eta):
        factorised = metric.factorise()
        solved = jax.vmap(factorised.covector)(covectors)
        return (
            factorised.lifted(r),
            solved,
            factorised.factors.project(eta),
            factorised.rank,
            factorised.factors.resolved,
        )

    unit = r / np.asarray(jnp.exp(metric.log_scale))
    # What factorises runs as it is, operation by operation; what iterates would be compiled loop by
    # loop.
    run = everything if metric.factorise().factors.resolved else eqx.filter_jit(everything)
    lifted, solved, projected, rank, resolved = run(
        jnp.asarray(unit), jnp.asarray(np.stack([inside, outside])), jnp.asarray(eta)
    )
    expected = dense["h"] @ inside
    _close(f"{what}: lifted(r)", lifted, expected, tolerance)
    _close(f"{what}: covector(g), g in the range", solved[0], expected, tolerance)
    _close(f"{what}: covector(g), g not in the range", solved[1], dense["h"] @ outside, tolerance)
    assert int(rank) in (-1, dense["rank"]), (
        f"{what}: rank {rank}, not {dense['rank']} (-1 if it is not computed)."
    )
    finite = bool(np.all(np.isfinite(projected)))
    assert finite or not resolved, (
        f"{what}: the row space is said to be known, but project is not finite."
    )
    if finite:
        _close(
            f"{what}: project, behind the share in range", projected, dense["Π"] @ eta, tolerance
        )


def _check_jit(solver: AbstractSolver, tolerance: float) -> None:
    """The whole natural gradient, compiled by the user."""
    inverse = next(inverse for inverse in INVERSES.values() if _accepts(solver, inverse))
    problem, params, batch = prescribed(3, 6, 5)
    expected = reference_natural_gradient(problem, params, batch, inverse=inverse)
    compiled = eqx.filter_jit(
        lambda p, b: natural_gradient(problem, p, b, inverse=inverse, solver=solver, throw=False)
    )
    ng, what = (
        compiled(params, batch),
        f"{type(solver).__name__}, {type(inverse).__name__}, under jit",
    )
    _close(f"{what}: vector", ng.vector, expected.vector, tolerance)
    rank = int(ng.stats.rank)
    assert rank in (-1, expected.rank), (
        f"{what}: stats.rank is {rank}, not {expected.rank} (-1 if it is not computed)."
    )


def _close(what: str, found: Any, expected: Any, tolerance: float) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}."
    size, error = np.linalg.norm(expected), np.linalg.norm(found - expected)
    assert error <= tolerance * size, (
        f"{what}: relative error {error / size:.3e}, more than {tolerance:.1e}."
    )
