"""One factorisation serves every damping, against dense formulas written with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curved import close, dense, near

import pullback as pb

CASES = {
    "svd": (pb.solver.SVD(), None),
    "primal": (pb.solver.Primal(), None),
    "dual, gauge": (pb.solver.Dual(), 3.0),
    "krylov": (pb.solver.Krylov(), None),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "krylov" else []) for name in CASES],
)
def test_one_factorisation_serves_every_damping(case):
    solver, gauge = CASES[case]
    a, r, _ = dense()
    w = np.eye(a.shape[1]) * (1.0 if gauge is None else gauge)
    g, outside = np.linspace(-1, 1, a.shape[1]), np.linalg.svd(a)[2][-1]

    @jax.jit
    def answers(damping, g):
        here = near(solver, pb.inverse.Dampable(pb.MoorePenrose(gauge=gauge))).damped(damping)
        return here.direction(), here.factorised.solve_covector(g)

    for damping in (1.0, 1e-3):
        d, v = answers(jnp.asarray(damping), jnp.asarray(g))
        damped = np.linalg.inv(a.T @ a + damping * w)
        close(d, -damped @ a.T @ r, 1e-8)
        close(v, damped @ g, 1e-6)
    # Undamped it is Moore-Penrose, and a covector outside the range gets nothing.
    d, v = answers(jnp.asarray(0.0), jnp.asarray(outside))
    close(d, -np.linalg.pinv(a) @ r, 1e-8)
    if case != "krylov":
        close(v, 0 * outside, 1e-7)


def test_damping_tends_to_moore_penrose_at_first_order():
    a, r, _ = dense()
    limit = -np.linalg.pinv(a) @ r

    @jax.jit
    def direction(damping):
        return near(pb.solver.SVD(), rule=pb.step.LevenbergMarquardt()).damped(damping).direction()

    apart = [np.linalg.norm(direction(jnp.asarray(10.0**-k)) - limit) for k in (5, 6, 7)]
    assert np.allclose(np.log10(np.array(apart[:-1]) / apart[1:]), 1, atol=0.02)
    # Far below rounding nothing happens any more, and there is no NaN.
    close(direction(jnp.asarray(1e-300)), limit)
