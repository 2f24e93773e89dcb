"""What parameters and batches may be: empty leaves, half precision, nothing at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb

SOLVERS = [pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal(), pb.solver.Krylov()]
SQUARES = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
X = np.random.default_rng(0).normal(size=(5, 3))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("inverse", [pb.MoorePenrose(), pb.Tikhonov(0.25)], ids=str)
def test_half_precision_is_computed_in_float32(dtype, solver, inverse):
    x, y = jnp.asarray(X, dtype), jnp.ones(5, dtype)
    params = jnp.asarray([0.5, -1.0, 2.0], dtype)
    ng = pb.natural_gradient(SQUARES, params, (x, y), solver=solver, inverse=inverse)
    a = np.asarray(x, float)
    damping = 0.0 if inverse.damping is None else 0.25
    g = a.T @ (a @ np.asarray(params, float) - 1) / 5
    truth = np.linalg.solve(a.T @ a / 5 + damping * np.eye(3), g)
    assert ng.vector.dtype == dtype
    np.testing.assert_allclose(
        np.asarray(ng.vector, float), truth, atol=2 * float(jnp.finfo(dtype).eps)
    )


def test_a_step_keeps_half_precision():
    params = {"w": jnp.ones(3, jnp.bfloat16), "n": jnp.arange(2)}
    problem = pb.Composite(lambda p, x: x @ p["w"], lambda z, y: (z - y) ** 2 / 2)
    opt = pb.NaturalGradientDescent(problem)
    batch = (jnp.asarray(X, jnp.bfloat16), jnp.zeros(5, jnp.bfloat16))
    moved, state, record = opt.step(params, opt.init(params), batch)
    moved, _, _ = opt.step(moved, state, batch)
    assert record.accepted and moved["w"].dtype == jnp.bfloat16
    assert float(jnp.max(jnp.abs(moved["w"]))) < 1e-2


def test_what_overflows_in_half_precision_is_not_returned():
    """A million in float32, and infinite in float16."""
    x, y = jnp.full((2, 1), 1e-3, jnp.float16), jnp.full(2, 1e3, jnp.float16)
    params, problem = jnp.ones(1, jnp.float16), SQUARES
    ng = pb.natural_gradient(problem, params, (x, y), throw=False)
    assert ng.result == pb.RESULTS.nonfinite_vector
    with pytest.raises(RuntimeError, match="overflowed"):
        pb.natural_gradient(problem, params, (x, y))
    opt = pb.NaturalGradientDescent(problem, step=1.0)
    moved, _, record = opt.step(params, opt.init(params), (x, y))
    assert not record.accepted and moved[0] == 1
    # A line search finds a length that float16 has a number for.
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LineSearch())
    moved, _, record = opt.step(params, opt.init(params), (x, y))
    assert record.accepted and 1 < moved[0] < jnp.inf and record.loss_after < record.loss
    wide = params.astype(jnp.bfloat16), (x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))
    assert pb.natural_gradient(problem, *wide).result == pb.RESULTS.successful


def test_outputs_in_half_precision_are_refused_by_name():
    problem = pb.Composite(lambda p, x: (x @ p).astype(jnp.float16), lambda z, y: (z - y) ** 2 / 2)
    batch = (jnp.asarray(X), jnp.zeros(5, jnp.float16))
    with pytest.raises(ValueError, match="outputs of the model are float16"):
        pb.natural_gradient(problem, jnp.ones(3), batch)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_empty_leaves_have_empty_answers(solver):
    params = {"empty": jnp.zeros((0, 3)), "unused": jnp.ones(2), "w": jnp.ones(3)}
    problem = pb.Composite(lambda p, x: x @ p["w"], lambda z, y: (z - y) ** 2 / 2)
    ng = pb.natural_gradient(problem, params, (jnp.asarray(X), jnp.zeros(5)), solver=solver)
    assert ng.vector["empty"].shape == (0, 3)
    np.testing.assert_allclose(ng.vector["unused"], 0.0, atol=1e-14)
    np.testing.assert_allclose(ng.vector["w"], 1.0, rtol=1e-10)
    constant = pb.Composite(lambda p, x: x[:, 0] * jnp.sum(p["empty"]), problem.loss)
    ng = pb.natural_gradient(constant, params, (jnp.asarray(X), jnp.zeros(5)), solver=solver)
    assert jnp.all(ng.vector["w"] == 0)


def test_no_parameters_at_all_are_refused():
    problem = pb.Composite(lambda p, x: x[:, 0], lambda z, y: (z - y) ** 2 / 2)
    with pytest.raises(ValueError, match="params has no parameters: its floating arrays are empty"):
        pb.natural_gradient(problem, {"a": jnp.zeros((0, 3))}, (jnp.asarray(X), jnp.zeros(5)))


def test_an_explicit_mesh_gives_the_answer_of_no_mesh():
    explicit = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    sharding = jax.sharding.NamedSharding(explicit, jax.sharding.PartitionSpec("data"))
    batch = (jnp.asarray(X), jnp.zeros(5))
    expected = pb.natural_gradient(SQUARES, jnp.ones(3), batch)
    found = pb.natural_gradient(
        SQUARES, jnp.ones(3), (jax.device_put(batch[0], sharding), batch[1])
    )
    assert jnp.allclose(found.vector, expected.vector, rtol=1e-13)


def test_constants_in_half_precision_under_strict_promotion_are_explained():
    model = lambda p, x: x @ p + jnp.ones((), jnp.bfloat16)
    problem = pb.Composite(model, lambda z, y: (z - y) ** 2 / 2)
    params, batch = jnp.ones(3, jnp.bfloat16), (jnp.asarray(X, jnp.bfloat16), jnp.zeros(5))
    opt = pb.NaturalGradientDescent(problem)
    for call in (
        lambda: pb.natural_gradient(problem, params, batch),
        lambda: opt.step(params, opt.init(params), batch),
        lambda: pb.fit(opt, params, batch, 1),
    ):
        with pytest.raises(ValueError, match="computed with in float32, and the model combines"):
            call()
    with pytest.raises(jax.dtypes.TypePromotionError):
        pb.natural_gradient(problem, jnp.ones(3), (jnp.asarray(X), jnp.zeros(5)))
