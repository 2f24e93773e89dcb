r"""What every solver must do: the same as the dense reference, for every inverse it accepts, for both right-hand sides. Run it on yours.

For \(A\) of known rank and spectrum (more parameters than rows, fewer, rank-deficient) and an inverse \(h\):

\[ \mathtt{lifted}(r) = R^{-1} h(\tilde A^\top\tilde A)\,\tilde A^\top r, \qquad \mathtt{covector}(g) = R^{-1} h(\tilde A^\top\tilde A)\,R^{-\top} g, \]

with `g` inside and outside the range, the rank where it is reported, the projection behind the share in range, and all of it again under `jit`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._inverse import AbstractInverse, MoorePenrose, Tikhonov, TruncatedRank
from .._natural_gradient import natural_gradient, pullback
from ..metric import Bernoulli, Euclidean
from ..solver import AbstractSolver
from ._problems import Example, prescribed
from ._reference import reference_natural_gradient

SHAPES = {"more parameters than rows": (4, 4, 7), "fewer parameters than rows": (4, 7, 4), "rank-deficient": (3, 6, 5)}


def check_solver(solver: AbstractSolver, *, tolerance: float = 1e-9) -> list[str]:
    """Raise an `AssertionError` with the measured numbers if a solver does not agree with the dense reference; return what was checked.

    An inverse that `solver.check` refuses is left out; every other one must be right.

    **Arguments:**

    - `solver`: any solver.
    - `tolerance`: how large a relative error may be, in float64.
    """
    checked = []
    for shape, (rank, rows, size) in SHAPES.items():
        for metric in (Euclidean(), Bernoulli()):
            example = prescribed(rank, rows, size, metric=metric)
            for name, inverse in _inverses(size).items():
                try:
                    solver.check(inverse)
                except ValueError:
                    continue
                what = f"{type(solver).__name__}, {name}, {shape}, {type(metric).__name__}"
                _check(solver, inverse, example, what, tolerance)
                checked.append(what)
    assert checked, f"{type(solver).__name__} accepts no inverse."
    _check_jit(solver, tolerance)
    return checked


def _inverses(size: int) -> dict[str, AbstractInverse]:
    diagonal = jnp.linspace(0.5, 2.0, size)
    return {
        "MoorePenrose": MoorePenrose(),
        "MoorePenrose with a cut-off": MoorePenrose(rtol=0.3),
        "MoorePenrose in a gauge": MoorePenrose(gauge=diagonal),
        "Tikhonov": Tikhonov(0.03),
        "Tikhonov in a gauge": Tikhonov(0.03, gauge=diagonal),
        "TruncatedRank": TruncatedRank(2),
    }


def _dense(example: Example, inverse: AbstractInverse) -> dict[str, Any]:
    """A, h(G) and the projection on what is kept, dense. Both metrics used here are diagonal, and so is the root."""
    reference = reference_natural_gradient(*example, inverse=inverse)
    a = np.sqrt(np.diag(reference.metric))[:, None] * reference.jacobian
    gauge = np.ones(a.shape[1]) if inverse.gauge is None else np.sqrt(np.asarray(inverse.gauge))
    _, s, vt = np.linalg.svd(a / gauge, full_matrices=True)
    s = np.concatenate([s, np.zeros(vt.shape[0] - s.size)])[: vt.shape[0]]
    kept = (np.arange(s.size) < reference.rank).astype(float)
    h = 1 / (s**2 + float(inverse.damping)) if isinstance(inverse, Tikhonov) else kept / np.where(kept > 0, s, 1.0) ** 2
    frame = vt.T / gauge[:, None]
    return {"A": a, "rank": reference.rank, "h": (frame * h) @ frame.T, "Π": (vt.T * kept) @ vt}


def _check(solver: AbstractSolver, inverse: AbstractInverse, example: Example, what: str, tolerance: float) -> None:
    dense, rng = _dense(example, inverse), np.random.default_rng(0)
    metric = pullback(*example, inverse=inverse, solver=solver)
    factorised = metric.factorise()
    m, size = dense["A"].shape
    scale = np.asarray(jnp.exp(metric.log_scale))
    r, outside, eta = rng.standard_normal(m), rng.standard_normal(size), jnp.asarray(rng.standard_normal(size))
    inside = dense["A"].T @ r
    expected = dense["h"] @ inside
    _close(f"{what}: lifted(r)", factorised.lifted(jnp.asarray(r / scale)), expected, tolerance)
    _close(f"{what}: covector(g), g in the range", factorised.covector(jnp.asarray(inside)), expected, tolerance)
    _close(f"{what}: covector(g), g not in the range", factorised.covector(jnp.asarray(outside)), dense["h"] @ outside, tolerance)
    rank = int(factorised.rank)
    assert rank in (-1, dense["rank"]), f"{what}: rank {rank}, not {dense['rank']} (-1 if it is not computed)."
    projected = np.asarray(factorised.factors.project(eta))
    assert not factorised.factors.resolved or np.all(np.isfinite(projected)), f"{what}: resolved, but project is not finite."
    if np.all(np.isfinite(projected)):
        _close(f"{what}: project, behind the share in range", projected, dense["Π"] @ np.asarray(eta), tolerance)


def _check_jit(solver: AbstractSolver, tolerance: float) -> None:
    """The whole natural gradient, compiled, with the covector on its own batch so that both right-hand sides are in use."""
    for inverse in (MoorePenrose(), Tikhonov(0.03), TruncatedRank(2)):
        try:
            solver.check(inverse)
        except ValueError:
            continue
        example = prescribed(3, 6, 5)
        expected = reference_natural_gradient(*example, inverse=inverse)
        what = f"{type(solver).__name__}, {type(inverse).__name__}, under jit"
        compiled = eqx.filter_jit(
            lambda p, b, i=inverse: natural_gradient(example.problem, p, b, inverse=i, solver=solver, throw=False)
        )
        ng = compiled(example.params, example.batch)
        _close(f"{what}: vector", ng.vector, expected.vector, tolerance)
        _close(f"{what}: covector", ng.covector, expected.covector, tolerance)
        rank = int(ng.stats.rank)
        assert rank in (-1, expected.rank), f"{what}: stats.rank is {rank}, not {expected.rank} (-1 if it is not computed)."
        assert jax.tree.structure(ng.vector) == jax.tree.structure(example.params)
        break


def _close(what: str, found: Any, expected: Any, tolerance: float) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}."
    size, error = np.linalg.norm(expected), np.linalg.norm(found - expected)
    assert error <= tolerance * size, f"{what}: relative error {error / size:.3e}, more than {tolerance:.1e}."
