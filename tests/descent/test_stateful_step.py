"""Steps of models with state, against dense algebra, and when the state is taken over."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from stateful_models import MODELS, N, X, Y, case, half_square

import pullback as pb

RULES = (pb.step.LevenbergMarquardt(damping=0.1), pb.step.LineSearch())


def leaves(tree):
    """The arrays of a tree as NumPy arrays, keys by their data."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [
        np.asarray(jax.random.key_data(x) if is_key(x) else x)
        for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    ]


def same(one, other, **tolerance):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 0, "atol": 0}))


def run(given, params):
    """Outputs and new state at the old state, by the model alone."""
    return given.model(params, jax.tree.map(lambda x: x, given.point.state), given.inputs)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize(("library", "kind"), MODELS)
def test_step_is_that_of_dense_algebra(library, kind, rule):
    given = case(library, kind)
    moving, carried = eqx.partition(given.point.params, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(moving)
    outputs = lambda flat: run(given, eqx.combine(unravel(flat), carried))[0].ravel()
    a = np.asarray(jax.jacfwd(outputs)(flat)) / np.sqrt(N)
    r = np.asarray(outputs(flat) - Y.ravel()) / np.sqrt(N)

    opt = pb.NaturalGradientDescent(given.problem, step=rule)
    moved, _, record = opt.step(given.point, opt.init(given.point), (given.inputs, Y))
    assert bool(record.accepted)
    if isinstance(rule, pb.step.LineSearch):
        direction = np.linalg.pinv(a, rcond=1e-12) @ r
    else:
        size = a.shape[1]
        direction = np.linalg.solve(a.T @ a + float(record.damping) * np.eye(size), a.T @ r)
    expected = np.asarray(flat) - float(record.rate) * direction
    found = ravel_pytree(eqx.filter(moved.params, eqx.is_inexact_array))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    # The new state is that of the point the step started from; trials have seen the old one.
    same(moved.state, run(given, given.point.params)[1], rtol=1e-12)
    z = run(given, moved.params)[0]
    np.testing.assert_allclose(record.loss_after, jnp.mean(half_square(z, Y)), rtol=1e-9)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rejected_step_keeps_the_state(rule):
    given = case("equinox", "both")
    start, _ = ravel_pytree(eqx.filter(given.point.params, eqx.is_inexact_array))

    def wall(point):
        here, _ = ravel_pytree(eqx.filter(point.params, eqx.is_inexact_array))
        return jnp.where(jnp.all(here == start), 0.0, 1e6)

    opt = pb.NaturalGradientDescent(given.problem, step=rule, penalty=wall)
    moved, state, record = opt.step(given.point, opt.init(given.point), (given.inputs, Y))
    assert not bool(record.accepted) and not bool(record.failed)
    assert int(state.count) == 1
    same(moved, given.point)


def scaled(params, state, x):
    new = {"mean": jnp.mean(x, axis=0) * state["factor"], "factor": state["factor"]}
    return x @ params, new


def start(**state):
    return pb.Stateful(jnp.ones((2, 2)), {"mean": np.zeros(2), "factor": 1.0, **state})


PROBLEM = pb.Composite(scaled, half_square, stateful=True)
OPT = pb.NaturalGradientDescent(PROBLEM)


@pytest.mark.parametrize(
    ("factor", "mean"), [(np.nan, 0.0), (np.inf, 0.0), (1e300, np.inf), (1.0, np.nan)]
)
def test_nonfinite_state_fails_the_step(factor, mean):
    x = X * 1e10 if factor == 1e300 else X
    point = start(factor=factor, mean=np.full(2, mean))
    moved, _, record = OPT.step(point, OPT.init(point), (x, Y))
    if (factor, mean) == (1.0, np.nan):
        # The old mean is lost, the new one is fine.
        assert bool(record.accepted)
    elif factor == 1e300:
        # An infinity where there was one already.
        assert bool(record.accepted) and np.all(np.isinf(moved.state["mean"]))
    else:
        assert record.result == pb.RESULTS.nonfinite_state
        assert bool(record.failed) and not bool(record.accepted)
        same(moved, point)


def test_batch_that_is_not_finite_keeps_the_state():
    point = start()
    moved, _, record = OPT.step(point, OPT.init(point), (X.at[0, 0].set(jnp.nan), Y))
    assert record.result == pb.RESULTS.nonfinite_batch
    same(moved, point)


def test_state_is_updated_from_the_batch_of_the_loss():
    point = start()
    moved, *_ = OPT.step(point, OPT.init(point), (X, Y), metric_batch=(X[:3] + 100.0,))
    np.testing.assert_allclose(moved.state["mean"], np.mean(X, axis=0), rtol=1e-12)


def test_step_is_jitted_scanned_and_mapped():
    point = start()
    batches = jnp.stack([X, X + 1, X - 2])

    def body(carry, x):
        point, state = carry
        point, state, record = OPT.step(point, state, (x, Y))
        return (point, state), record.accepted

    (end, _), _ = jax.jit(lambda p: jax.lax.scan(body, (p, OPT.init(p)), batches))(point)
    loop = point, OPT.init(point)
    for x in batches:
        loop, _ = body(loop, x)
    same(end, loop[0], rtol=1e-9, atol=1e-9)
    many = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), point)
    ends = jax.vmap(lambda p: body((p, OPT.init(p)), X)[0][0])(many)
    same(jax.tree.map(lambda x: x[0], ends), body((point, OPT.init(point)), X)[0][0], rtol=1e-9)


def test_half_precision_of_the_state_is_left_alone():
    model = lambda p, s, x: (x @ p, (s + jnp.asarray(1, s.dtype)))
    problem = pb.Composite(model, half_square, stateful=True)
    opt = pb.NaturalGradientDescent(problem)
    point = pb.Stateful(jnp.ones((2, 2)), jnp.zeros(3, jnp.bfloat16))
    moved, *_ = opt.step(point, opt.init(point), (X, Y))
    assert moved.state.dtype == jnp.bfloat16 and float(moved.state[0]) == 1.0
    assert moved.params.dtype == jnp.float64


@pytest.mark.filterwarnings("ignore:the condition number")
def test_half_precision_of_the_parameters_comes_back():
    model = lambda p, s, x: (x.astype(p.dtype) @ p, s + 1)
    problem = pb.Composite(model, lambda z, y: half_square(z, y.astype(z.dtype)), stateful=True)
    opt = pb.NaturalGradientDescent(problem)
    point = pb.Stateful(jnp.ones((2, 2), jnp.bfloat16), 0)
    moved, *_ = opt.step(point, opt.init(point), (X, Y))
    assert moved.params.dtype == jnp.bfloat16 and int(moved.state) == 1


def test_momentum_and_constraints_see_the_point():
    point = start()
    opt = pb.NaturalGradientDescent(
        PROBLEM, momentum=pb.HeavyBall(0.5), constraint=pb.constraint.Clipping(-0.5, 0.5),
        step=0.5,
    )  # fmt: skip
    moved, state, _ = opt.step(pb.Stateful(point.params / 4, point.state), opt.init(point), (X, Y))
    assert state.previous.shape == (4,) and float(jnp.max(jnp.abs(moved.params))) <= 0.5
    np.testing.assert_allclose(moved.state["mean"], np.mean(X, axis=0), rtol=1e-12)


def two_layers(params, state, x):
    z = jnp.tanh(x @ params["w"]) @ params["v"] * state["factor"]
    return z, {"factor": state["factor"], "size": state["size"] * 2}


def test_blocks_of_a_model_with_state():
    weights = {"w": X[:2], "v": X[2:4]}
    point = pb.Stateful(weights, {"factor": 0.5, "size": 0.5})
    problem = pb.Composite(two_layers, half_square, stateful=True)
    frozen = pb.Composite(lambda p, x: two_layers(p, point.state, x)[0], half_square)
    solver = pb.solver.Blocks(lambda path: path)
    found, like = (
        pb.natural_gradient(given, at, (X, Y), inverse=pb.Tikhonov(0.1), solver=solver)
        for given, at in ((problem, point), (frozen, weights))
    )
    same(found.vector.params, like.vector, rtol=1e-10)
    opt, other = (
        pb.BlockDescent(given, lambda path: path, damping=0.1) for given in (problem, frozen)
    )
    moved, state, record = opt.step(point, opt.init(point), (X, Y))
    same(moved.params, other.step(weights, other.init(weights), (X, Y))[0], rtol=1e-10)
    assert bool(record.accepted) and float(moved.state["size"]) == 1.0
    spoilt = pb.Stateful(weights, {"factor": 0.5, "size": 1e308})
    kept, _, record = opt.step(spoilt, state, (X, Y))
    assert record.result == pb.RESULTS.nonfinite_state
    same(kept, spoilt)


def test_optax_face_moves_the_state():
    given = case("linen", "both")
    batch = given.inputs, Y
    opt = pb.NaturalGradientDescent(given.problem, inverse=pb.Tikhonov(0.1), step=0.5)
    tx = pb.as_optax(opt)
    loss = lambda p: given.problem.value(
        given.problem.outputs(p, given.inputs), given.problem.at(batch).batch
    )
    gradient = jax.grad(loss)(given.point)
    expected, *_ = opt.step(given.point, opt.init(given.point), batch)
    for g in (gradient, gradient.params):
        updates, _ = tx.update(g, tx.init(given.point), given.point, batch=batch)
        moved = optax.apply_updates(given.point, updates)
        same(moved, expected, rtol=1e-9, atol=1e-12)


def test_optax_face_refuses_state_that_cannot_be_added():
    point = start(key=jax.random.key(0))
    model = lambda p, s, x: (x @ p, s)
    opt = pb.NaturalGradientDescent(pb.Composite(model, half_square, stateful=True))
    tx = pb.as_optax(opt)
    gradient = jax.tree.map(jnp.ones_like, point.params)
    with pytest.raises(ValueError, match="cannot be moved by adding"):
        tx.update(gradient, tx.init(point), point, batch=(X, Y))
