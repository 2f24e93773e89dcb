"""A metric taken on other samples than the loss (`metric_batch=`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, make_example, normal

import pullback as pb
from pullback import testing

WEIGHTS = jnp.asarray([0.5, 2.0, 0.25, 1.0])


def with_measure(example, measure, loss="keep"):
    problem, params, batch = example
    loss = problem.loss if loss == "keep" else loss
    return testing.Example(
        pb.Composite(problem.model, loss, problem.metric, measure), params, batch
    )


@pytest.mark.parametrize(
    "solver", [pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()], ids=lambda s: s.name
)
def test_metric_batch_equal_to_the_batch_gives_the_same(solver):
    example = make_example("gaussian", "tied weights")
    plain = pb.natural_gradient(*example, solver=solver)
    other = pb.natural_gradient(*example, solver=solver, metric_batch=example.batch)
    assert distance(other.vector, plain.vector) < 1e-9
    assert abs(float(other.stats.covector_share) - 1) < 1e-9


@pytest.mark.parametrize("metric", ["gaussian", "categorical"])
@pytest.mark.parametrize(
    "inverse", [pb.MoorePenrose(), pb.Tikhonov(0.1)], ids=["moore-penrose", "tikhonov"]
)
def test_metric_batch_unlabelled_and_larger(metric, inverse):
    example = make_example(metric, "tied weights")
    more = (normal(11, 2, seed=9),)
    expected = testing.reference_natural_gradient(*example, inverse=inverse, metric_batch=more)
    for solver in (pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()):
        ng = pb.natural_gradient(*example, inverse=inverse, solver=solver, metric_batch=more)
        assert distance(ng.vector, expected.vector) < 1e-9
        assert abs(float(ng.value) - expected.value) < 1e-12


def test_metric_batch_smaller_reports_the_share_outside():
    example = make_example("gaussian", "overparametrised")
    one = (example.batch[0][:1],)
    expected = testing.reference_natural_gradient(*example, metric_batch=one)
    ng = pb.natural_gradient(*example, metric_batch=one)
    assert distance(ng.vector, expected.vector) < 1e-9
    values, vectors = np.linalg.eigh(expected.matrix)
    frame = vectors[:, values > 1e-10 * values[-1]]
    g = np.concatenate([np.ravel(x) for x in jax.tree.leaves(expected.covector)])
    share = np.linalg.norm(frame.T @ g) / np.linalg.norm(g)
    assert 0.05 < share < 0.95
    assert abs(float(ng.stats.covector_share) - share) < 1e-9


def test_weights_belong_to_one_batch():
    example = with_measure(make_example("categorical", "tied weights"), pb.Weights(WEIGHTS))
    with pytest.raises(
        ValueError,
        match="the measure has 4 weights, but the leading axis of the batch has 6 samples",
    ):
        pb.natural_gradient(*example, metric_batch=(normal(6, 2),))
