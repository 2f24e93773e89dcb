"""A problem: models that couple samples, and inputs that are trees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, normal

import pullback as pb
from pullback import testing

MODEL = testing.tanh_mlp(3, 2, 4, jax.random.key(0))


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def make(samples, coupled=False, function=MODEL.function, metric=None):
    problem = pb.Composite(
        function, square, pb.metric.Gaussian() if metric is None else metric, coupled=coupled
    )
    return testing.Example(problem, MODEL.params, (normal(samples, 3), normal(samples, 2, seed=1)))


def normalised(params, x):
    z = MODEL.function(params, x)
    return z - jnp.mean(z, axis=0, keepdims=True)


def test_a_coupled_model_that_is_declared():
    example = make(5, coupled=True, function=normalised)
    expected = testing.reference_natural_gradient(*example)
    assert distance(pb.pullback(*example).matrix(), expected.matrix) < 1e-13
    for solver in (pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()):
        ng = pb.natural_gradient(*example, solver=solver)
        assert distance(ng.vector, expected.vector) < 1e-9
        assert int(ng.stats.rank) == expected.rank


def test_a_coupled_model_that_is_not_declared_is_named():
    with pytest.raises(
        RuntimeError, match=r"the model mixes samples.*Composite\(\.\.\., coupled=True\)"
    ):
        pb.natural_gradient(*make(5, function=normalised))
    ng = pb.natural_gradient(*make(5, function=normalised), throw=False)
    assert bool(ng.result == pb.RESULTS.coupled_samples)


def test_the_metric_of_a_coupled_model_that_is_not_declared_is_refused():
    with pytest.raises(RuntimeError, match="the model mixes samples"):
        pb.pullback(*make(5, function=normalised))


def test_a_coupled_model_that_starts_at_zero_is_seen():
    problem = pb.Composite(
        lambda p, x: (jnp.tanh(x @ p["w"]) - jnp.mean(jnp.tanh(x @ p["w"]), axis=0)[None]) @ p["v"],
        square,
    )
    params, batch = {"w": normal(3, 4), "v": jnp.zeros((4, 2))}, (normal(5, 3), normal(5, 2))
    ng = pb.natural_gradient(problem, params, batch, throw=False)
    assert bool(ng.result == pb.RESULTS.coupled_samples)
    for opt in (pb.NaturalGradientDescent(problem), pb.BlockDescent(problem, lambda path: path)):
        assert opt.step(params, opt.init(params), batch)[2].result == pb.RESULTS.coupled_samples
    # Declared, or with nothing mixed, zero outputs are as good as any.
    declared = pb.Composite(problem.model, square, coupled=True)
    assert int(pb.natural_gradient(declared, params, batch).stats.rank) > 0
    plain = pb.Composite(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], square)
    assert int(pb.natural_gradient(plain, params, batch).stats.rank) > 0
    # Where the model is undefined nearby, nothing is said.
    edge = pb.Composite(lambda p, x: x * jnp.where(p > 0, jnp.nan, p), lambda z, y: (z - y) ** 2)
    ng = pb.natural_gradient(edge, jnp.zeros(()), (normal(5), normal(5)), throw=False)
    assert not bool(ng.result == pb.RESULTS.coupled_samples)


@pytest.mark.parametrize("last", (0.0, 0.5))
@pytest.mark.parametrize(
    "make",
    (
        pb.NaturalGradientDescent,
        lambda problem: pb.NaturalGradientDescent(problem, pb.Tikhonov(1e-2), pb.solver.Dual()),
        lambda problem: pb.NaturalGradientDescent(problem, pb.Tikhonov(1e-2), pb.solver.Primal()),
        lambda problem: pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt()),
        lambda problem: pb.BlockDescent(problem, lambda path: path),
    ),
)
def test_a_coupled_model_is_seen_after_a_first_step_that_failed(make, last):
    centred = lambda h: h - jnp.mean(h, axis=0)[None]
    problem = pb.Composite(lambda p, x: centred(jnp.tanh(x @ p["w"])) @ p["v"], square)
    params, (x, y) = {"w": normal(3, 4), "v": last * normal(4, 2)}, (normal(9, 3), normal(9, 2))
    opt = make(problem)
    moved, state, record = opt.step(params, opt.init(params), (x.at[0, 0].set(jnp.nan), y))
    assert record.result == pb.RESULTS.nonfinite_batch
    for _ in range(2):
        moved, state, record = opt.step(moved, state, (x, y))
        assert record.result == pb.RESULTS.coupled_samples and not bool(record.accepted)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, moved, params))


def test_inputs_may_be_a_tree_with_carried_leaves():
    inputs = {"x": normal(4, 3), "kind": "plain", "index": jnp.arange(4)}

    def function(p, x):
        assert x["kind"] == "plain"
        return MODEL.function(p, x["x"]) * (1.0 + x["index"].astype(float))[:, None]

    problem = pb.Composite(function, square, pb.metric.Gaussian())
    plain = pb.Composite(
        lambda p, x: MODEL.function(p, x) * (1 + jnp.arange(4.0))[:, None],
        square,
        pb.metric.Gaussian(),
        coupled=True,
    )
    targets = normal(4, 2, seed=1)
    found = pb.natural_gradient(problem, MODEL.params, (inputs, targets))
    expected = testing.reference_natural_gradient(plain, MODEL.params, (inputs["x"], targets))
    assert distance(found.vector, expected.vector) < 1e-9


def test_a_problem_on_a_batch_evaluates_as_the_parts_do():
    problem, params, (x, y) = make(5)
    objective = problem.at((x, y))
    assert objective.count == 5 and objective.has_data and objective.by_sample
    z = MODEL.function(params, x)
    assert distance(objective.outputs(params), z) == 0
    value, slope = objective.differential(params)
    mean = lambda p: jnp.mean(square(MODEL.function(p, x), y))
    assert abs(float(value - mean(params))) < 1e-15 and value == objective.value(params)
    assert distance(slope, jax.grad(mean)(params)) < 1e-14


def test_the_divergence_is_averaged_as_the_metric_is():
    weights = jnp.asarray([0.5, 0.0, 2.0])
    problem = pb.Composite(MODEL.function, square, pb.metric.Gaussian(), pb.Weights(weights))
    x, z, u = normal(3, 3), normal(3, 2, seed=1), normal(3, 2, seed=2)
    objective = problem.at((x, z))
    assert objective.has_divergence
    each = jnp.sum((u - z) ** 2, axis=1) / 2
    found = objective.divergence(u.at[1].set(jnp.nan), z)
    assert abs(float(found - (0.5 * each[0] + 2.0 * each[2]))) < 1e-14
    scores = pb.Composite(lambda p, x: x[:, 0], lambda z: z, pb.metric.Scores(), problem.measure)
    objective = scores.at((x,))
    assert objective.has_divergence, "one form on the whole batch has one for all"
    found = objective.divergence(u[:, 0].at[1].set(jnp.nan), z[:, 0])
    gap, share = np.asarray(u - z)[[0, 2], 0], np.asarray([0.2, 0.8])
    moved = share * np.exp(gap) / np.sum(share * np.exp(gap))
    assert abs(float(found) - 2.5 * np.sum(moved * np.log(moved / share))) < 1e-14


def test_a_model_without_data_is_one_sample():
    problem = pb.Composite(lambda p: p**2, lambda z: jnp.sum(z))
    objective = problem.at(None)
    assert objective.count == 1 and not objective.has_data and not objective.by_sample
    p = jnp.asarray([1.0, -2.0])
    assert float(objective.value(p)) == 5 and objective.differential(p)[1].tolist() == [2.0, -4.0]
    assert float(objective.divergence(p, p + 1.0)) == 1.0


@pytest.mark.parametrize(
    ("model", "loss", "batch", "words"),
    [
        (lambda p: p, None, (normal(4, 2),), r"must take model\(params, inputs\), because"),
        (lambda p, x: x @ p, None, (None, normal(4)), r"must take model\(params\), because"),
        (lambda p, x: x @ p, lambda z: z, (normal(4, 2), normal(4)), r"loss\(outputs, targets\)"),
        (lambda p, x: x @ p, square, (normal(4, 2),), r"must take loss\(outputs\), because"),
    ],
)
def test_a_call_with_other_arguments_than_a_function_takes_is_explained(model, loss, batch, words):
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(pb.Composite(model, loss or square), normal(2), batch)


def test_a_bad_target_is_shown_as_a_plain_number():
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())
    with pytest.raises(RuntimeError, match=r"Sample 1: -1\.0; Bernoulli admits"):
        pb.natural_gradient(problem, normal(2), (normal(2, 2), jnp.asarray([1.0, -1.0])))
