"""The second solves of a step, of `Spring` and `Geodesic`, are certified as the first is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curved import PARAMS, PROBLEM, X, Y, dense, flat

import pullback as pb

FIRST = jnp.asarray(dense()[1])
"""The lifted differential of the loss, up to a factor."""


class Factors(pb.solver.AbstractFactors):
    """Factors that answer the first right-hand side, and multiply what they answer to others."""

    inner: pb.solver.AbstractFactors
    lie: float

    @property
    def spectrum(self):
        return self.inner.spectrum

    @property
    def kernel_exact(self):
        return self.inner.kernel_exact

    def solve_lifted(self, r):
        cosine = jnp.vdot(r, FIRST) / (jnp.linalg.norm(r) * jnp.linalg.norm(FIRST))
        first = jnp.abs(cosine) > 1 - 1e-9
        return self.inner.solve_lifted(r) * jnp.where(first, 1.0, self.lie)

    def solve_covector(self, g):
        return self.inner.solve_covector(g)

    def damped(self, damping):
        return Factors(self.inner.damped(damping), self.lie)


class Liar(pb.solver.AbstractSolver):
    """A solver with such factors."""

    lie: float

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        return Factors(pb.solver.SVD().factorise(rows, inverse), self.lie)


class Own(pb.AbstractMomentum):
    """A correction of one's own, of half of the last direction."""

    def corrects(self, memory):
        return memory / 2

    def direction(self, sub, memory):
        return 3 * sub.correction(memory / 2)


def second(solver, **options):
    """The second step, before which a momentum remembers something."""
    opt = pb.NaturalGradientDescent(PROBLEM, solver=solver, **options)
    state = opt.init(PARAMS)
    if opt.momentum.remembers:
        last = jnp.linspace(-1.0, 1.0, state.previous.size)
        state = eqx.tree_at(lambda s: s.previous, state, last)
    return opt.step(PARAMS, state, (X, Y))


CASES = {
    "Spring": {"step": 0.1, "momentum": pb.Spring(0.5)},
    "Spring, bounded": {"step": 0.1, "momentum": pb.Spring(0.5, 0.3)},
    "Spring, damped": {"step": pb.step.LevenbergMarquardt(), "momentum": pb.Spring(0.5)},
    "momentum": {"step": 0.1, "momentum": Own()},
    "Geodesic": {"step": pb.step.Geodesic(0.1, bound=1e9)},
    "Geodesic, damped": {"step": pb.step.Geodesic(pb.step.LevenbergMarquardt(), bound=1e9)},
    "both": {"step": pb.step.Geodesic(0.1, bound=1e9), "momentum": pb.Spring(0.5)},
}


@pytest.mark.parametrize("name", CASES)
def test_a_second_solve_that_is_wrong_is_unconverged(name):
    _, _, honest = second(Liar(1.0), **CASES[name])
    assert honest.result == pb.RESULTS.successful and bool(honest.accepted)
    _, _, record = second(Liar(1.001), **CASES[name])
    assert record.result == pb.RESULTS.unconverged


@pytest.mark.parametrize("inverse", [None, pb.Tikhonov(0.1)])
@pytest.mark.parametrize("solver", [pb.solver.Primal(), pb.solver.Dual(), pb.solver.Krylov()])
def test_our_solvers_certify_both(solver, inverse):
    _, _, record = second(solver, inverse=inverse, **CASES["both"])
    assert record.result == pb.RESULTS.successful and float(record.curvature) > 0


def test_a_correction_that_is_not_finite_fails_the_step():
    params, _, record = second(Liar(jnp.nan), **CASES["Spring"])
    assert record.result == pb.RESULTS.nonfinite_vector and bool(record.failed)
    assert np.array_equal(flat(params), flat(PARAMS))


def test_a_bend_that_is_not_used_is_not_certified_and_the_record_says_so():
    straight, _, _ = second(Liar(1.0), step=0.1)
    for lie, bound, recorded in ((1.001, 1e-9, 0.0), (jnp.inf, 1.0, jnp.nan)):
        there, _, record = second(Liar(lie), step=pb.step.Geodesic(0.1, bound=bound))
        assert record.result == pb.RESULTS.successful and bool(record.accepted)
        np.testing.assert_array_equal(record.curvature, recorded)
        np.testing.assert_array_equal(flat(there), flat(straight))


def test_a_correction_is_declared():
    class Undeclared(pb.AbstractMomentum):
        def direction(self, sub, memory):
            return sub.correction(memory)

    class Another(Undeclared):
        def corrects(self, memory):
            return memory / 2

    class Pair(Undeclared):
        def corrects(self, memory):
            return (memory, memory)

    with pytest.raises(ValueError, match=r"return p from the method `corrects\(memory\)`"):
        second(None, step=0.1, momentum=Undeclared())
    with pytest.raises(ValueError, match=r"Pair\.corrects\(memory\) must return a flat vector"):
        second(None, step=0.1, momentum=Pair())
    _, _, record = second(None, step=0.1, momentum=Another())
    assert record.result == pb.RESULTS.nonfinite_direction


def test_a_move_without_its_second_solve_is_refused():
    class Bare(pb.step.AbstractStep):
        def step(self, sub, state):
            made = pb.step.move(sub, sub.curve(sub.direction()), 0.1)
            fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
            return pb.step.Move(**fields | {"second": None, "bend": None}), state

    for options in (
        {"step": Bare(), "momentum": pb.Spring(0.5)},
        {"step": pb.step.Geodesic(Bare())},
    ):
        with pytest.raises(ValueError, match=r"Bare\.step: the Move lacks a solve"):
            second(None, **options)


def test_the_certificate_is_compiled_once():
    """A second solve adds a loop around the certificate, not another certificate."""

    def size(momentum):
        opt = pb.NaturalGradientDescent(PROBLEM, inverse=pb.Tikhonov(0.1), momentum=momentum)
        program = jax.make_jaxpr(opt.step)(PARAMS, opt.init(PARAMS), (X, Y))
        return len(str(program).splitlines())

    assert size(pb.Spring(0.5)) < 1.15 * size(pb.HeavyBall(0.5))
