"""What step rules and solvers promise each other, with a solver and a rule of one's own."""

import equinox as eqx
import jax
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


class Stranger(pb.step.AbstractStep):
    """A rule that returns what it is told to."""

    first: object = eqx.field(static=True)
    made: object = eqx.field(static=True)

    def init(self, dtype):
        return self.first

    def step(self, sub, state):
        return self.made(sub, sub.curve(sub.direction()), state)


half = lambda sub, curve, state: (pb.step.move(sub, curve, 0.5), state)


@pytest.mark.parametrize(
    ("first", "made", "words"),
    [
        (None, lambda sub, curve, state: pb.step.move(sub, curve, 0.5), "must return a Move and"),
        (None, lambda sub, curve, state: (state, state), "must return a Move and"),
        (
            None,
            lambda sub, curve, state: (pb.step.move(sub, curve, jnp.abs(curve.velocity)), state),
            r"`rate` of the Move must be of shape \(\), got",
        ),
        (
            None,
            lambda sub, curve, state: (pb.step.move(sub, curve, 0.5, jnp.ones(1)), None),
            r"`value` of the Move must be of shape \(\), got \(1,\)",
        ),
        (0, lambda *at: (half(*at)[0], at[2].astype(float) + 0.6), r"a state like that of .*int64"),
        (0.0, lambda *at: (half(*at)[0], at[1].velocity), "a state like that of"),
        ((0.0,), lambda *at: (half(*at)[0], [at[2][0]]), "a state like that of"),
    ],
)  # fmt: skip
def test_a_rule_that_returns_something_else_is_refused(first, made, words):
    with pytest.raises(ValueError, match=rf"Stranger\.step.*{words}"):
        step(Stranger(first, made), None)


def test_the_state_of_a_rule_may_be_a_python_number():
    rule = Stranger(0.5, lambda sub, curve, t: (pb.step.move(sub, curve, t), t / 2))
    opt = pb.NaturalGradientDescent(PROBLEM, step=rule)
    _, state, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert float(record.rate) == 0.5 and float(state.rule) == 0.25


def test_bad_numbers_of_rules_and_plans_are_refused():
    for bad in ("2", jnp.asarray([2.0, 3.0]), float("inf"), 1.0):
        with pytest.raises(ValueError, match=r"increase must be .*LevenbergMarquardt\(increase=2"):
            pb.step.LevenbergMarquardt(increase=bad)
    with pytest.raises(ValueError, match=r"memory='4 GB' must be a number of bytes"):
        pb.plan(PROBLEM, PARAMS, (X, Y), memory="4 GB")
    with pytest.raises(ValueError, match=r"step must be one of pullback\.step"):
        pb.plan(PROBLEM, PARAMS, (X, Y), step=pb.step.LevenbergMarquardt)
    opt = pb.NaturalGradientDescent(PROBLEM)
    for key in (jnp.asarray(0), np.zeros(2), jax.random.split(jax.random.key(0), 3)):
        with pytest.raises(ValueError, match=r"fit\(key=.*one PRNG key or a seed"):
            pb.fit(opt, PARAMS, (X, Y), 1, key=key)


def test_a_bound_of_a_momentum_is_one_number():
    class Each(pb.AbstractMomentum):
        def direction(self, sub, memory):
            return -sub.solution

        def limit(self, memory, direction):
            return jnp.abs(direction)

    with pytest.raises(ValueError, match=r"Each\.limit\(memory, direction\) must return one"):
        step(None, None, momentum=Each())


def test_a_state_may_be_a_number():
    class Counting(pb.step.AbstractStep):
        def init(self, dtype):
            return 0

        def step(self, sub, state):
            return pb.step.move(sub, sub.curve(sub.direction()), 0.5), 0

    problem = pb.Composite(lambda p: p, lambda z: jnp.sum((z - 1) ** 2) / 2)
    opt = pb.NaturalGradientDescent(problem, step=Counting())
    moved, state, _ = opt.step(jnp.zeros(2), opt.init(jnp.zeros(2)), None)
    assert jnp.allclose(moved, 0.5) and int(state.rule) == 0
