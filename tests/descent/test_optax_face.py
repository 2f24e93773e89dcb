"""The Optax face: the properties that Optax asks of the optimisers it is given, and what its
wrappers do to a natural gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import normal

import pullback as pb

X = normal(6, 2, seed=1)
Y = jnp.sin(X @ normal(2, 1, seed=2))
PARAMS = {"w": normal(2, 3, seed=3), "v": normal(3, 1, seed=4)}


def model(p, x):
    return jnp.tanh(x @ p["w"]) @ p["v"]


def half_square(z, y):
    return jnp.sum((z - y) ** 2, 1) / 2


PROBLEM = pb.Composite(model, half_square)
OPT = pb.NaturalGradientDescent(PROBLEM, inverse=pb.Tikhonov(0.1), step=pb.step.Fixed(0.5))
TX = pb.as_optax(OPT)


def loss(p, x=X, y=Y):
    return jnp.mean(half_square(model(p, x), y))


GRADIENT = jax.grad(loss)(PARAMS)
EXPECTED = OPT.step(PARAMS, OPT.init(PARAMS), (X, Y))[0]


def apply(tx, gradient=GRADIENT, params=PARAMS, **extra):
    updates, state = tx.update(gradient, tx.init(params), params, batch=(X, Y), **extra)
    return optax.apply_updates(params, updates), state


def close(a, b, tolerance=1e-10):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b
    )


def same_types(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), a) == jax.tree.map(
        lambda x: (x.shape, x.dtype), b
    )


def test_it_makes_the_step_of_the_optimiser_and_keeps_types():
    params, state = apply(TX, unknown=3)
    close(params, EXPECTED)
    same_types(state, TX.init(PARAMS))
    same_types(params, PARAMS)
    record = optax.tree.get(state, "record")
    np.testing.assert_allclose(record.loss, loss(PARAMS))
    assert int(optax.tree.get(TX.init(PARAMS), "record").rank) == -1


def test_two_lines_of_an_existing_loop_scanned_without_recompilation():
    traces = []

    def step(carry, batch):
        traces.append(1)
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        updates, state = TX.update(gradient, state, params, batch=batch)
        return (optax.apply_updates(params, updates), state), value

    step = jax.jit(step)
    carry = (PARAMS, TX.init(PARAMS))
    for _ in range(4):
        carry, value = step(carry, (X, Y))
    assert len(traces) == 1 and value < loss(PARAMS) / 2
    _, values = jax.lax.scan(
        step, (PARAMS, TX.init(PARAMS)), (jnp.stack([X] * 3), jnp.stack([Y] * 3))
    )
    assert values[-1] < values[0]


def test_a_gradient_that_was_changed_is_followed():
    clipped, _ = apply(optax.chain(optax.clip_by_global_norm(1e-3), TX))
    scale = 1e-3 / optax.tree.norm(GRADIENT)
    close(clipped, jax.tree.map(lambda a, b: a + scale * (b - a), PARAMS, EXPECTED))
    decayed, _ = apply(optax.chain(optax.add_decayed_weights(0.1), TX))
    penalised = pb.NaturalGradientDescent(
        PROBLEM,
        inverse=pb.Tikhonov(0.1),
        step=pb.step.Fixed(0.5),
        penalty=lambda p: 0.05 * optax.tree.norm(p, squared=True),
    )
    close(decayed, penalised.step(PARAMS, penalised.init(PARAMS), (X, Y))[0], 1e-8)


def test_wrappers_that_work():
    injected = optax.inject_hyperparams(
        lambda damping: pb.as_optax(
            pb.NaturalGradientDescent(
                PROBLEM, inverse=pb.Tikhonov(damping), step=pb.step.Fixed(0.5)
            )
        )
    )(damping=0.1)
    params, state = apply(injected)
    close(params, EXPECTED)
    assert float(state.hyperparams["damping"]) == 0.1
    close(apply(optax.apply_if_finite(TX, 3))[0], EXPECTED)
    with jax.numpy_dtype_promotion("standard"):  # which these parts of Optax need
        # One micro-batch, so that the metric of the last one is the metric.
        close(apply(optax.MultiSteps(TX, 1))[0], EXPECTED)
        search = optax.scale_by_backtracking_linesearch(20)
        searched, _ = apply(
            pb.as_optax(OPT, linesearch=search), value=loss(PARAMS), grad=GRADIENT, value_fn=loss
        )
    assert loss(searched) < loss(PARAMS)


def test_a_nan_gives_no_update_and_a_code():
    updates, state = TX.update(
        GRADIENT, TX.init(PARAMS), PARAMS, batch=(X.at[0, 0].set(jnp.nan), Y)
    )
    assert not any(np.any(x) for x in jax.tree.leaves(updates))
    assert state.record.result == pb.RESULTS.nonfinite_batch
    updates, state = TX.update(
        jax.tree.map(lambda x: x * jnp.nan, GRADIENT), TX.init(PARAMS), PARAMS, batch=(X, Y)
    )
    assert not any(np.any(x) for x in jax.tree.leaves(updates)) and bool(state.record.failed)


def test_wrappers_that_cannot_work_say_what_to_do():
    with pytest.raises(ValueError, match="Fix them in the model instead"):
        optax.masked(TX, {"w": True, "v": False}).init(PARAMS)
    with pytest.raises(ValueError, match="Fix them in the model instead"):
        optax.partition({"a": TX, "b": optax.sgd(0.1)}, {"w": "a", "v": "b"}).init(PARAMS)
    with pytest.raises(ValueError, match="at a point"):
        TX.update(GRADIENT, TX.init(PARAMS), batch=(X, Y))
    with pytest.raises(ValueError, match="NaturalGradientDescent"):
        pb.as_optax(PROBLEM)


def test_short_floats_stay_short():
    cast = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)
    params = cast(PARAMS)
    updates, state = TX.update(cast(GRADIENT), TX.init(params), params, batch=cast((X, Y)))
    assert {x.dtype for x in jax.tree.leaves(updates)} == {jnp.dtype(jnp.float32)}
    same_types(state, TX.init(params))
