"""Programs of JAX: an equation run on its own gives what it gives in the program."""

import jax
import jax.numpy as jnp
import numpy as np

from pullback._compat.jaxpr import (
    called,
    evaluate,
    has_effects,
    is_literal,
    loop,
    trace,
    without_repetitions,
)

X = jnp.linspace(0.1, 1.0, 4)


@jax.custom_jvp
def safe_log(x):
    return jnp.log(x)


safe_log.defjvp(lambda primals, tangents: (safe_log(*primals), 3.0 * tangents[0]))


def run(program, *args):
    """The results of a program, one equation at a time."""
    env = dict(zip(program.inputs, args, strict=True))
    env |= dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    read = lambda name: name.val if is_literal(name) else env[name]
    for eqn in program.jaxpr.eqns:
        values = evaluate(program, eqn, [read(name) for name in eqn.invars])
        env.update(zip(eqn.outvars, values, strict=True))
    return [read(name) for name in program.outputs]


def model(x):
    inner = jax.jit(lambda y: y * 2.0 + X)(jnp.sin(x))
    carry, stacked = jax.lax.scan(lambda c, y: (c + y, c * y), 1.0, inner)
    return safe_log(x), carry, stacked


def test_equations_one_by_one_are_the_program():
    program = trace(model, X)
    for found, expected in zip(run(program, X), model(X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_an_equation_keeps_its_own_derivative_rule():
    program = trace(model, X)
    slope = jax.jvp(lambda x: run(program, x)[0], (X,), (jnp.ones(4),))[1]
    np.testing.assert_allclose(slope, 3.0)


def test_calls_and_loops_are_found_with_their_bodies():
    program = trace(model, X)
    calls = [inner for eqn in program.jaxpr.eqns if (inner := called(eqn)) is not None]
    loops = [turns for eqn in program.jaxpr.eqns if (turns := loop(eqn)) is not None]
    assert calls and all(inner.jaxpr.eqns for inner in calls)
    assert [(turns.consts, turns.carry, turns.length, turns.reverse) for turns in loops] == [
        (0, 1, 4, False)
    ]
    assert len(loops[0].body.inputs) == 2 and len(loops[0].body.outputs) == 2


def test_side_effects_are_found():
    def printing(x):
        jax.debug.print("{}", x)
        return x

    assert has_effects(trace(printing, X)) and not has_effects(trace(model, X))


def test_equations_that_repeat_another_are_left_out():
    eye = np.eye(2)
    sines = lambda x: jnp.sin(eye.copy() @ x) + 1.0

    def function(x):
        one, other = sines(x), sines(x)
        jax.debug.print("{}", x[0])
        return one * other, one, jnp.sin(eye @ x) + 2.0

    x = jnp.asarray([0.3, 0.5])
    program = without_repetitions(trace(function, x))
    names = [eqn.primitive.name for eqn in program.jaxpr.eqns]
    assert names.count("dot_general") == names.count("sin") == 1
    assert names.count("add") == 2 and any("print" in n or "callback" in n for n in names)
    found = run(without_repetitions(trace(lambda x: (sines(x) * sines(x), sines(x)), x)), x)
    np.testing.assert_allclose(found, [np.square(np.sin(x) + 1), np.sin(x) + 1])
