"""What step rules and solvers promise each other, with a solver and a rule of one's own."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from curved import PARAMS, PROBLEM, X, Y, close, dense, flat

import pullback as pb
from pullback._base.tree import structure

SOLVED = []
"""One entry for each `solve_lifted` that was traced."""


class Undamped(pb.solver.AbstractFactors):
    """Factors of the singular value decomposition, counted, without `damped`."""

    inner: pb.solver.AbstractFactors

    @property
    def spectrum(self):
        return self.inner.spectrum

    @property
    def kernel_exact(self):
        # Undeclared, the certificate would solve twice more.
        return self.inner.kernel_exact

    def solve_lifted(self, r):
        SOLVED.append(1)
        return self.inner.solve_lifted(r)

    def solve_covector(self, g):
        return self.inner.solve_covector(g)


class Dampable(Undamped):
    """The same, with `damped`."""

    def damped(self, damping):
        return Dampable(self.inner.damped(damping))


class Own(pb.solver.AbstractSolver):
    """A solver of one's own."""

    factors: type = eqx.field(static=True, default=Dampable)

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return self.factors(pb.solver.SVD().factorise(rows, inverse))


def step(rule, solver, **kwargs):
    opt = pb.NaturalGradientDescent(PROBLEM, solver=solver, step=rule, **kwargs)
    params, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    return flat(params), record


RULES = {
    "Fixed": pb.step.Fixed(0.1),
    "LineSearch": pb.step.LineSearch(),
    "GridSearch": pb.step.GridSearch(),
    "TrustRegion": pb.step.TrustRegion(),
    "LevenbergMarquardt": pb.step.LevenbergMarquardt(),
}


@pytest.mark.parametrize("name", RULES)
def test_a_step_solves_its_first_direction_once(name):
    SOLVED.clear()
    own, record = step(RULES[name], Own())
    assert len(SOLVED) == 1
    assert record.solver_name == "another" and record.result == pb.RESULTS.successful
    close(own, step(RULES[name], pb.solver.SVD())[0])


def test_spring_solves_once_more_for_its_correction():
    SOLVED.clear()
    step(pb.step.Fixed(0.1), Own(), momentum=pb.Spring(0.5))
    assert len(SOLVED) == 2


@pytest.mark.parametrize("rule", [pb.step.LevenbergMarquardt(), pb.step.DampingSearch((1.0,))])
def test_factors_that_cannot_be_damped_raise_with_a_rule_that_damps(rule):
    with pytest.raises(ValueError, match=r"Undamped cannot be damped.*implement `damped\(λ\)`"):
        step(rule, Own(Undamped))


def test_a_rule_of_ones_own():
    class Halving(pb.step.AbstractStep):
        def step(self, sub, state):
            curve = sub.curve(sub.direction())
            return pb.step.move(sub, curve, 0.5), state

    a, r, point = dense()
    there, record = step(Halving(), None)
    close(there, point - 0.5 * np.linalg.pinv(a) @ r)
    assert float(record.rate) == 0.5 and int(record.trials) == 1


def test_a_rule_of_ones_own_that_damps():
    class Constant(pb.step.AbstractStep):
        damping: float

        def factorises(self, inverse):
            return pb.inverse.Dampable(inverse)

        def init(self, dtype):
            return jnp.zeros((), dtype)

        def step(self, sub, state):
            damped = sub.damped(self.damping)
            move = pb.step.move(damped, damped.curve(damped.direction()), 1.0)
            return move, state + move.value.astype(state.dtype)

    a, r, point = dense()
    size = structure(PARAMS).size
    there, record = step(Constant(0.3), Own())
    close(there, point - np.linalg.solve(a.T @ a + 0.3 * np.eye(size), a.T @ r))
    assert float(record.damping) == 0.3 and record.result == pb.RESULTS.successful


def test_a_rule_that_forgets_its_damping_raises():
    class Forgetful(pb.step.AbstractStep):
        def factorises(self, inverse):
            return pb.inverse.Dampable(inverse)

        def step(self, sub, state):
            return pb.step.move(sub, sub.curve(sub.direction()), 1.0), state

    with pytest.raises(ValueError, match=r"take `sub\.damped\(λ\)` first"):
        step(Forgetful(), pb.solver.SVD())


def test_a_rule_that_damps_and_does_not_declare_it_raises():
    class Undeclared(pb.step.AbstractStep):
        def step(self, sub, state):
            damped = sub.damped(0.1)
            return pb.step.move(damped, damped.curve(damped.direction()), 1.0), state

    with pytest.raises(ValueError, match=r"pullback\.inverse\.Dampable\(MoorePenrose"):
        step(Undeclared(), pb.solver.SVD())
