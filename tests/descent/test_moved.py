"""A move that is not finite is not taken; the record says which piece returned it, and where."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from curved import PARAMS, PROBLEM, X, Y, flat

import pullback as pb


class Direction(pb.AbstractMomentum):
    """A momentum whose direction has a NaN in the leaf "v"."""

    def direction(self, sub, memory):
        return (-sub.solution).at[3].set(jnp.nan)


class Remembers(pb.AbstractMomentum):
    """A momentum whose memory is not finite."""

    def direction(self, sub, memory):
        return -sub.solution

    def remember(self, sub, memory, direction):
        return direction * jnp.inf


class Limit(pb.AbstractMomentum):
    """A momentum with a limit that is none."""

    longest: float = eqx.field(static=True)

    def direction(self, sub, memory):
        return -sub.solution

    def limit(self, memory, direction):
        return self.longest


class Rule(pb.step.AbstractStep):
    """A rule that does one thing wrong."""

    wrong: str = eqx.field(static=True)

    def init(self, dtype):
        return jnp.ones((), dtype)

    def step(self, sub, state):
        d = sub.direction()
        d = d.at[9].set(-jnp.inf) if self.wrong == "direction" else d
        move = pb.step.move(sub, sub.curve(d), 0.1)
        if self.wrong == "value":
            nothing = (jnp.asarray(jnp.nan), jnp.asarray(True))
            move = eqx.tree_at(lambda m: (m.value, m.accepted), move, nothing)
        return move, state * (jnp.nan if self.wrong == "state" else 0.5)


def third(count):
    """A schedule that is NaN in the third step."""
    return jnp.where(count == 2, jnp.nan, 0.1)


def spoils(params):
    return params | {"v": params["v"].at[0, 1].set(jnp.nan)}


CASES = {
    "momentum": ({"momentum": Direction(), "step": 0.1}, "direction", "momentum", "v"),
    "momentum, damped": (
        {"momentum": Direction(), "step": pb.step.LevenbergMarquardt()},
        "direction", "momentum", "v",
    ),
    "memory": ({"momentum": Remembers(), "step": 0.1}, "direction", "momentum", None),
    "limit": ({"momentum": Limit(np.nan), "step": 0.1}, "direction", "momentum", None),
    "negative limit": ({"momentum": Limit(-1.0), "step": 0.1}, "direction", "momentum", None),
    "rule": ({"step": Rule("direction")}, "move", "step", "w"),
    # The momentum is finite, so that it is the rule.
    "rule, momentum": (
        {"step": Rule("direction"), "momentum": pb.HeavyBall(0.5)}, "move", "step", "w",
    ),
    "state": ({"step": Rule("state")}, "move", "step", None),
    "value": ({"step": Rule("value")}, "move", "step", None),
    "constraint": ({"step": 0.1, "constraint": spoils}, "constraint", "constraint", "v"),
    "searched": ({"constraint": spoils}, "constraint", "constraint", "v"),
}  # fmt: skip
SCHEDULES = {
    "Fixed": {"step": third},
    "LevenbergMarquardt": {"step": pb.step.LevenbergMarquardt(rate=third)},
    "Geodesic": {"step": pb.step.Geodesic(third)},
    "Spring": {"step": third, "momentum": pb.Spring(0.5)},
}
LEAVES = {None: -1, "b": 0, "v": 1, "w": 2}


@pytest.mark.parametrize("name", CASES)
def test_a_move_that_is_not_finite_is_said_and_not_taken(name):
    options, code, piece, leaf = CASES[name]
    opt = pb.NaturalGradientDescent(PROBLEM, **options)
    params, state, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert record.result == getattr(pb.RESULTS, f"nonfinite_{code}")
    assert not bool(record.accepted) and bool(record.failed)
    assert int(record.leaf) == LEAVES[leaf]
    assert np.array_equal(flat(params), flat(PARAMS)) and float(record.loss_after) == record.loss
    kept = [x for x in jax.tree.leaves(state) if eqx.is_inexact_array(x)]
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in kept)
    if name not in ("momentum", "rule", "limit", "constraint"):
        return
    where = rf"Returned by {piece}=.*" + (rf"not finite in params\['{leaf}'\]" if leaf else "")
    with pytest.raises(pb.FitError, match=where):
        pb.fit(opt, PARAMS, (X, Y), 2, progress=False)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_is_nan_once_costs_one_step(name):
    opt = pb.NaturalGradientDescent(PROBLEM, **SCHEDULES[name])
    fit = pb.fit(opt, PARAMS, (X, Y), 5, progress=False, throw=False)
    expected = ["successful"] * 5
    expected[2] = "nonfinite_move"
    assert fit.history.words("result").tolist() == expected
    assert fit.history["accepted"].tolist() == [True, True, False, True, True]


def test_optax_has_it_in_its_record_and_does_not_move():
    tx = pb.as_optax(pb.NaturalGradientDescent(PROBLEM, step=0.1, momentum=Direction()))
    gradient = jax.grad(loss)(PARAMS)
    updates, state = tx.update(gradient, tx.init(PARAMS), PARAMS, batch=(X, Y))
    assert not np.any(flat(updates))
    assert optax.tree.get(state, "record").result == pb.RESULTS.nonfinite_direction


def loss(params):
    z = PROBLEM.model(params, X)
    return jnp.mean(jnp.sum((z - Y) ** 2, axis=1)) / 2


def test_block_descent_names_its_rate():
    opt = pb.BlockDescent(PROBLEM, lambda path: path, rate=third)
    fit = pb.fit(opt, PARAMS, (X, Y), 4, progress=False, throw=False)
    assert fit.history.words("result").tolist()[2] == "nonfinite_move"
    assert fit.history["accepted"].tolist() == [True, True, False, True]
    with pytest.raises(pb.FitError, match=r"step 2: The step rule .* Returned by rate="):
        pb.fit(opt, PARAMS, (X, Y), 4, progress=False)
    with pytest.raises(ValueError, match=r"rate\(count\) must return one number, got shape \(2,\)"):
        pb.fit(eqx.tree_at(lambda o: o.rate, opt, lambda k: jnp.ones(2)), PARAMS, (X, Y), 1)


class Spoils(pb.constraint.AbstractConstraint):
    """A projection, or a slack, that is not finite away from the parameters."""

    what: str = eqx.field(static=True)

    def _far(self, params):
        return jnp.any(params["b"] != PARAMS["b"])

    def slack(self, params):
        return jnp.where(self._far(params) & (self.what == "slack"), jnp.nan, 1.0)

    def __call__(self, params):
        far = self._far(params) & (self.what == "point")
        return params | {"w": jnp.where(far, jnp.inf, params["w"])}


@pytest.mark.parametrize("what", ["point", "slack"])
def test_a_constrained_step_names_its_constraint(what):
    step = lambda **options: pb.constrained_step(
        PROBLEM, PARAMS, (X, Y), step=0.1, constraint=Spoils(what), **options
    )
    assert step(throw=False).result == pb.RESULTS.nonfinite_constraint
    where = r"Found in params\['w'\] \(first at index \(0, 0\)\)" if what == "point" else ""
    with pytest.raises(RuntimeError, match=rf"Returned by constraint=Spoils.*{where}"):
        step()


def test_a_constrained_step_names_a_traced_rate():
    box = pb.constraint.Clipping(-9.0, 9.0)
    step = lambda h: pb.constrained_step(
        PROBLEM, PARAMS, (X, Y), step=h, constraint=box, throw=False
    )
    assert jax.jit(step)(jnp.nan).result == pb.RESULTS.nonfinite_move


@pytest.mark.parametrize("damping", [jnp.nan, -0.01])
def test_a_rule_that_damps_with_no_damping_is_refused(damping):
    class Damps(pb.step.AbstractStep):
        def factorises(self, inverse):
            return pb.inverse.Dampable(inverse)

        def step(self, sub, state):
            damped = sub.damped(damping)
            return pb.step.move(damped, damped.curve(damped.direction()), 0.1), state

    opt = pb.NaturalGradientDescent(PROBLEM, step=Damps(), solver=pb.solver.SVD())
    _, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert record.result == pb.RESULTS.bad_filter and not bool(record.accepted)


class Kind(pb.AbstractMomentum):
    """A direction of another dtype."""

    dtype: str = eqx.field(static=True)

    def direction(self, sub, memory):
        return sub.solution.astype(self.dtype)


def test_numbers_that_are_not_real_are_refused():
    class Complex(pb.step.AbstractStep):
        def step(self, sub, state):
            move = pb.step.move(sub, sub.curve(sub.direction()), 0.1)
            return eqx.tree_at(
                lambda m: m.displacement, move, move.displacement.astype(complex)
            ), state

    descent = lambda dtype: pb.NaturalGradientDescent(PROBLEM, step=0.1, momentum=Kind(dtype))
    for dtype in ("complex128", "bool"):
        with pytest.raises(ValueError, match=rf"must return real floating numbers, got {dtype}"):
            descent(dtype).step(PARAMS, descent(dtype).init(PARAMS), (X, Y))
    opt = pb.NaturalGradientDescent(PROBLEM, step=Complex())
    with pytest.raises(ValueError, match=r"Complex\.step: `displacement` of the Move is complex"):
        opt.step(PARAMS, opt.init(PARAMS), (X, Y))
