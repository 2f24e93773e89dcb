"""One measure for the loss and the metric; a sample of weight zero is absent, exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, make_example

import pullback as pb
from pullback import testing

WEIGHTS = jnp.asarray([0.5, 2.0, 0.25, 1.0])
MEASURES = {"mean": pb.Mean(), "sum": pb.Sum(), "weights": pb.Weights(WEIGHTS)}


def with_measure(example, measure, loss="keep"):
    problem, params, batch = example
    loss = problem.loss if loss == "keep" else loss
    return testing.Example(
        pb.Composite(problem.model, loss, problem.metric, measure), params, batch
    )


@pytest.mark.parametrize("metric", ["categorical", "loss hessian", "scores", "sampled fisher"])
@pytest.mark.parametrize("name", MEASURES)
def test_measure_agrees_with_the_dense_reference(name, metric):
    example = with_measure(make_example(metric, "tied weights"), MEASURES[name])
    expected = testing.reference_natural_gradient(*example)
    matrix = pb.pullback(*example).matrix()
    assert distance(matrix, expected.matrix) < 1e-12
    if metric == "categorical" or (metric, name) == ("loss hessian", "weights"):
        ng = pb.natural_gradient(*example)
        assert distance(ng.vector, expected.vector) < 1e-9
        assert abs(float(ng.value) - expected.value) < 1e-12
        assert abs(float(ng.stats.output_share) - 1) < 1e-9


def test_the_factor_n_cannot_come_apart():
    """The undamped direction is the same under every multiple of the measure."""
    example = make_example("categorical", "overparametrised")
    vectors = [
        pb.natural_gradient(*with_measure(example, m)).vector
        for m in (pb.Mean(), pb.Sum(), pb.Weights(jnp.full(4, 0.1)))
    ]
    assert distance(vectors[0], vectors[1]) < 1e-12
    assert distance(vectors[0], vectors[2]) < 1e-12


def test_a_scalar_loss_is_taken_as_it_is():
    example = make_example("loss hessian", "overparametrised")
    total = lambda z, y: jnp.sum((z - y) ** 2)
    ng = pb.natural_gradient(*with_measure(example, pb.Mean(), total))
    single = pb.natural_gradient(
        *with_measure(example, pb.Mean(), lambda z, y: jnp.sum((z - y) ** 2, axis=1))
    )
    assert abs(float(ng.value) / float(single.value) - 4) < 1e-12
    assert distance(ng.vector, jax.tree.map(lambda x: 4 * x, single.vector)) < 1e-10


ABSENT = [0, 2]
KEPT = np.asarray([1, 3])


def poison(tree):
    """NaN in every sample that is absent, a wild label where there is no NaN."""

    def one(x):
        return x.at[np.asarray(ABSENT)].set(
            jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 2**30
        )

    return jax.tree.map(one, tree)


@pytest.mark.parametrize(
    "solver", [pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()], ids=lambda s: s.name
)
@pytest.mark.parametrize("metric", ["categorical", "loss hessian", "scores"])
def test_weight_zero_is_absent_whatever_the_sample_contains(metric, solver):
    full = make_example(metric, "tied weights", seed=2)
    weights = WEIGHTS.at[np.asarray(ABSENT)].set(0.0)
    take = jax.tree.map(lambda x: x[KEPT], full.batch)
    base = full.problem
    if metric == "scores":
        # One output for the whole batch: the problem of the kept samples has its own base point.
        base = pb.Composite(
            lambda p, x: jnp.tanh(x @ p[:2] + p[2]), lambda z: jnp.sin(z), pb.metric.Scores()
        )
        full = testing.Example(base, jnp.asarray([0.3, -0.7, 0.2]), (full.batch[0],))
        take = (full.batch[0][KEPT],)
    dropped = testing.Example(
        pb.Composite(base.model, base.loss, base.metric, pb.Weights(weights[KEPT])),
        full.params,
        take,
    )
    padded = testing.Example(
        pb.Composite(base.model, base.loss, base.metric, pb.Weights(weights)),
        full.params,
        poison(full.batch),
    )
    expected = pb.natural_gradient(*dropped, solver=solver)
    found = pb.natural_gradient(*padded, solver=solver)
    assert distance(found.vector, expected.vector) < 1e-12
    assert distance(found.covector, expected.covector) < 1e-14
    assert abs(float(found.value - expected.value)) < 1e-15
    assert int(found.stats.rank) == int(expected.stats.rank)
    assert abs(float(found.stats.output_share - expected.stats.output_share)) < 1e-12
    assert distance(pb.pullback(*padded).matrix(), pb.pullback(*dropped).matrix()) < 1e-14


def test_weight_zero_in_a_saturating_family_and_matrix_free():
    full = make_example("bernoulli", "overparametrised")
    weights = WEIGHTS.at[np.asarray(ABSENT)].set(0.0)
    problem, params, batch = full
    dropped = pb.Composite(problem.model, None, problem.metric, pb.Weights(weights[KEPT]))
    padded = pb.Composite(problem.model, None, problem.metric, pb.Weights(weights))
    expected = pb.natural_gradient(dropped, params, jax.tree.map(lambda x: x[KEPT], batch))
    for solver in (pb.solver.SVD(), pb.solver.Krylov()):
        assert (
            distance(
                pb.natural_gradient(padded, params, poison(batch), solver=solver).vector,
                expected.vector,
            )
            < 1e-11
        )


def test_all_samples_absent_is_rank_zero():
    example = with_measure(
        make_example("categorical", "overparametrised"), pb.Weights(jnp.zeros(4))
    )
    ng = pb.natural_gradient(*example)
    assert bool(ng.result == pb.RESULTS.rank_zero)
    assert all(bool(jnp.all(x == 0)) for x in jax.tree.leaves(ng.vector))


REFUSED = {
    "matrix": (jnp.ones((2, 2)), r"a floating vector, one weight per sample, not float64 of shape"),
    "integers": (jnp.arange(3), r"a floating vector, one weight per sample, not int64"),
    "negative": (jnp.asarray([1.0, -1.0]), r"finite and >= 0; the weight 0 leaves a sample out"),
    "infinite": (jnp.asarray([1.0, jnp.inf]), r"finite and >= 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_that_are_no_measure_are_refused(name):
    values, message = REFUSED[name]
    with pytest.raises(ValueError, match=rf"Weights\(values=.*\): values must be {message}"):
        pb.Weights(values)


def test_the_number_of_weights_is_that_of_the_samples():
    example = with_measure(make_example("categorical", "tied weights"), pb.Weights(jnp.ones(3)))
    with pytest.raises(ValueError, match=r"has 3 weights, but .* 4 samples.*w of shape \(4,\)"):
        pb.natural_gradient(*example)


@pytest.mark.parametrize("name", MEASURES)
def test_a_total_is_the_weighted_sum_and_ignores_what_is_absent(name):
    values = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    weights = np.asarray(MEASURES[name].weights(4, jnp.float64))
    expected = {"mean": 0.25, "sum": 1.0, "weights": np.asarray(WEIGHTS)}[name]
    assert np.all(weights == expected)
    assert float(MEASURES[name].total(values)) == np.sum(weights * np.asarray(values))
    absent = pb.Weights(WEIGHTS.at[1].set(0.0))
    slope = jax.grad(absent.total)(values.at[1].set(jnp.nan))
    assert slope.tolist() == [0.5, 0.0, 0.25, 1.0]
