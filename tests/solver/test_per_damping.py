"""One Cholesky factorisation per damping, and a decomposition where λ is below rounding."""

import jax.numpy as jnp
import numpy as np
import pytest
from exact import LINEAR, conditioned, dense, exact, linear, vector
from helpers import distance

import pullback as pb
from pullback.inverse import Dampable
from pullback.solver import _auto
from pullback.solver._per_damping import PerDamping

CASES = {
    "dual": ((6, 10), PerDamping(pb.solver.Dual(), svd=True)),
    "dual, eigenvectors": ((6, 10), PerDamping(pb.solver.Dual(), svd=False)),
    "primal": ((10, 6), PerDamping(pb.solver.Primal(), svd=True)),
    "primal, eigenvectors": ((10, 6), PerDamping(pb.solver.Primal(), svd=False)),
}
INVERSE = pb.MoorePenrose()


def factors_of(a, least, solver):
    return linear(a).factorise(Dampable(INVERSE, jnp.asarray(least)), solver)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("case", CASES)
def test_every_damping_has_the_solution_of_the_dense_formula(case):
    shape, solver = CASES[case]
    a, r, g = conditioned(*shape, 100.0), vector(shape[0]), vector(shape[1])
    factors = factors_of(a, 1e-6, solver)
    assert int(factors.rank) == -1 and not bool(factors.spectrum.fallback)
    for damping in (1e-6, 0.03, 10.0):
        damped, (lifted, covector) = factors.damped(damping), dense(a, INVERSE, damping)
        assert distance(damped.solve_lifted(jnp.asarray(r)), lifted @ r) < 1e-11, damping
        assert distance(damped.solve_covector(jnp.asarray(g)), covector @ g) < 1e-8, damping
        both = damped.solve(jnp.asarray(r), jnp.asarray(g))
        assert distance(both, lifted @ r + covector @ g) < 1e-8, damping
    # Below rounding nothing was computed: no solution, rather than a wrong one.
    for damping in (0.0, 1e-17):
        assert np.all(np.isnan(factors.damped(damping).solve_lifted(jnp.asarray(r))))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("case", CASES)
def test_a_decomposition_takes_over(case):
    """Below rounding if it is the SVD, and for what has a part in the kernel."""
    shape, solver = CASES[case]
    a, r, g = conditioned(*shape, 100.0), vector(shape[0]), vector(shape[1])
    factors = factors_of(a, 0.0 if solver.svd else -1.0, solver)
    assert int(factors.rank) == 6 and bool(factors.spectrum.fallback)
    for damping in (0.0, 1e-15, 0.03):
        damped, (lifted, covector) = factors.damped(damping), dense(a, INVERSE, damping)
        assert distance(damped.solve_lifted(jnp.asarray(r)), lifted @ r) < 1e-9, damping
        if damping != 1e-15:
            assert distance(damped.solve_covector(jnp.asarray(g)), covector @ g) < 1e-8, damping


@pytest.mark.parametrize("shape", [(30, 60), (60, 30)])
def test_where_the_svd_is_too_expensive_a_damping_below_rounding_is_raised(shape):
    """Eigenvectors would lose singular values that this λ does not hide."""
    a = conditioned(*shape, 3e3).astype(np.float32)
    y = (a @ vector(shape[1])).astype(np.float32)
    batch, start = (jnp.asarray(a), jnp.asarray(y)), jnp.zeros(shape[1], jnp.float32)
    gram = pb.solver.Dual() if shape[0] < shape[1] else pb.solver.Primal()
    for damping in (0.0, 1e-12):
        rule = pb.step.LevenbergMarquardt(damping=damping)
        solver = Always(PerDamping(gram, svd=False))
        opt = pb.NaturalGradientDescent(LINEAR, solver=solver, step=rule)
        moved, _, record = opt.step(start, opt.init(start), batch)
        assert record.result == pb.RESULTS.successful and bool(record.accepted)
        assert float(record.damping) > 1e-7 and int(record.trials) > 1
        expected = exact(a, y, damping=float(record.damping))
        assert distance(moved, expected) < 30 * 1.2e-7 * float(record.damping) ** -0.5


@pytest.mark.parametrize("shape", [(30, 60), (60, 30)])
def test_single_precision_keeps_what_eigenvectors_of_a_square_lose(shape):
    """Singular values down to 3e-4 of the largest, √(n eps) is 3e-3: with λ from 1e-2 to 1e-12 the
    step is that of the dense formula, as far as float32 determines it, and certified.
    """
    a = conditioned(*shape, 3e3).astype(np.float32)
    y = (a @ vector(shape[1])).astype(np.float32)
    batch, start = (jnp.asarray(a), jnp.asarray(y)), jnp.zeros(shape[1], jnp.float32)
    gram = pb.solver.Dual() if shape[0] < shape[1] else pb.solver.Primal()
    solver = Always(PerDamping(gram, svd=True))
    fallbacks = []
    for damping in (1e-2, 1e-5, 1e-7, 1e-12):
        rule = pb.step.LevenbergMarquardt(damping=damping)
        opt = pb.NaturalGradientDescent(LINEAR, solver=solver, step=rule)
        moved, _, record = opt.step(start, opt.init(start), batch)
        assert record.result == pb.RESULTS.successful and bool(record.accepted)
        expected = exact(a, y, damping=damping)
        assert distance(moved, expected) < 30 * 1.2e-7 * min(3e3, damping**-0.5), damping
        fallbacks.append(int(record.rank) == 30)
    assert fallbacks == [False, False, True, True]


class Always(pb.solver.AbstractSolver):
    """Another solver, whatever the step rule passes on."""

    inner: PerDamping

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return self.inner.factorise(rows, inverse)


def test_auto_factorises_per_damping_and_a_penalty_takes_the_decomposition(monkeypatch):
    """A penalty has a part in the kernel, which is divided by λ: the row space must be known."""
    monkeypatch.setattr(_auto, "DAMPED_SVD_WORK", 0)
    a, y = conditioned(6, 10, 100.0), vector(6)
    batch, start = (jnp.asarray(a), jnp.asarray(y)), jnp.asarray(vector(10, 2))
    weight = lambda p: 0.05 * jnp.sum(p**2)
    for penalty, rank in ((None, -1), (weight, 6)):
        opt = pb.NaturalGradientDescent(
            LINEAR, step=pb.step.LevenbergMarquardt(damping=0.01), penalty=penalty
        )
        moved, _, record = opt.step(start, opt.init(start), batch)
        g = a.T @ (a @ start - y) + (0.0 if penalty is None else 0.1 * np.asarray(start))
        expected = -np.linalg.solve(a.T @ a + float(record.damping) * np.eye(10), g)
        assert record.result == pb.RESULTS.successful and int(record.rank) == rank
        assert distance(moved - start, expected) < 1e-10


def test_what_auto_chooses_for_a_rule_that_damps():
    """The limits are those of a damped inverse; what truncates needs its singular values."""
    auto, single = pb.solver.Auto(), jnp.dtype("float32")
    least = lambda inverse: Dampable(inverse, 1e-3)
    table = [
        (1280, 800, least(INVERSE), PerDamping(pb.solver.Primal(), svd=True)),
        (100, 9000, least(INVERSE), pb.solver.SVD()),
        (1000, 5000, least(INVERSE), PerDamping(pb.solver.Dual(), svd=True)),
        (1000, 5001, least(INVERSE), PerDamping(pb.solver.Dual(), svd=False)),
        (1280, 1210, Dampable(INVERSE), pb.solver.SVD()),
        (1280, 1210, least(pb.MoorePenrose(rtol=1e-3)), pb.solver.SVD()),
        (1280, 1210, least(pb.TruncatedRank(3)), pb.solver.SVD()),
    ]
    for rows, size, inverse, solver in table:
        choice = auto.select(rows, size, single, inverse)
        assert choice.solver == solver, (rows, size, inverse)
        assert ("factorised per damping" in choice.reason) == isinstance(solver, PerDamping)
    # Memory for K, and none for the SVD of A as well.
    small = pb.solver.Auto(memory=40 * 2**20).select(900, 2000, single, least(INVERSE))
    assert small.solver == PerDamping(pb.solver.Dual(), svd=False)
    with pytest.raises(ValueError, match="needs the least damping"):
        PerDamping(pb.solver.Dual(), svd=True).check(INVERSE)
