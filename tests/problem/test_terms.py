"""Several terms are one stacked problem: against dense formulas, and against flags and weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, gauge_like, normal

import pullback as pb

PARAMS = {"w": normal(2, 6), "b": normal(6, seed=1), "v": normal(6, 2, seed=2)}
X, XB, XC = normal(5, 2, seed=3), normal(3, 2, seed=4), normal(4, 2, seed=5)
YB, LABELS = normal(3, 2, seed=6), jnp.asarray([0, 1, 1, 0])
WEIGHTS = {"inside": 0.7, "boundary": 10.0, "labels": 2.0}
BATCH = {"inside": (X,), "boundary": (XB, YB), "labels": (XC, LABELS)}


def network(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"]


def residual(p, x):
    """A derivative of the first output."""
    slope = jax.jvp(lambda x: network(p, x)[:, 0], (x,), (jnp.ones_like(x),))[1]
    return slope + jnp.sin(x[:, 0])


def square(z, *y):
    """Half of the squared distance from the targets, or from zero."""
    return (jnp.sum((z - y[0]) ** 2, axis=1) if y else z**2) / 2


TERMS = {
    "inside": pb.Composite(residual, square),
    "boundary": pb.Composite(network, square, measure=pb.Sum()),
    "labels": pb.Composite(network, metric=pb.metric.Categorical()),
}


def problem(weights=WEIGHTS):
    return pb.Terms(TERMS, weights=weights)


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def dense(weights=WEIGHTS):
    """L, G, g and the gauge-free rows of `problem`, from formulas on dense matrices."""
    like, unravel = jax.flatten_util.ravel_pytree(PARAMS)

    def at(model, x):
        z = np.asarray(model(PARAMS, x))
        j = np.asarray(jax.jacobian(lambda q: model(unravel(q), x))(like))
        return z, j.reshape(*z.shape, -1)

    value, metric, g = 0.0, 0.0, 0.0
    z, j = at(residual, X)
    w = weights["inside"] / 5
    value += w * np.sum(z**2) / 2
    metric, g = metric + w * j.T @ j, g + w * j.T @ z
    z, j = at(network, XB)
    w, j, c = weights["boundary"], j.reshape(6, -1), (z - np.asarray(YB)).ravel()
    value += w * np.sum(c**2) / 2
    metric, g = metric + w * j.T @ j, g + w * j.T @ c
    z, j = at(network, XC)
    for row, one, label in zip(z, j, np.asarray(LABELS), strict=True):
        p = np.exp(row - row.max()) / np.sum(np.exp(row - row.max()))
        w, c = weights["labels"] / 4, p - np.eye(2)[label]
        value -= w * np.log(p[label])
        metric, g = metric + w * one.T @ (np.diag(p) - np.outer(p, p)) @ one, g + w * one.T @ c
    return value, metric, g


SOLVERS = [
    pb.solver.SVD(),
    pb.solver.Dual(),
    pb.solver.Primal(),
    pb.solver.Krylov(),
    pb.solver.Krylov(preconditioner=pb.solver.Kronecker()),
    pb.solver.Krylov(preconditioner=pb.solver.SampleBlocks()),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_every_solver_gives_the_dense_damped_solution(solver):
    value, metric, g = dense()
    ng = pb.natural_gradient(problem(), PARAMS, BATCH, inverse=pb.Tikhonov(0.1), solver=solver)
    assert abs(float(ng.value) - value) < 1e-12 * value
    assert np.linalg.norm(flat(ng.covector) - g) < 1e-12 * np.linalg.norm(g)
    expected = np.linalg.solve(metric + 0.1 * np.eye(g.size), g)
    assert np.linalg.norm(flat(ng.vector) - expected) < 1e-12 * np.linalg.norm(expected)


@pytest.mark.parametrize("solver", SOLVERS[:4], ids=repr)
def test_every_solver_gives_the_dense_pseudo_inverse(solver):
    _, metric, g = dense()
    ng = pb.natural_gradient(problem(), PARAMS, BATCH, solver=solver)
    expected = np.linalg.pinv(metric, rcond=1e-10, hermitian=True) @ g
    assert np.linalg.norm(flat(ng.vector) - expected) < 1e-9 * np.linalg.norm(expected)
    assert ng.pushforward["boundary"].shape == (3, 2)


def test_blocks_are_those_of_the_sum():
    _, metric, g = dense()
    solver = pb.solver.Blocks(lambda path: path)
    ng = pb.natural_gradient(problem(), PARAMS, BATCH, inverse=pb.Tikhonov(0.1), solver=solver)
    expected, start = [], 0
    for size in (6, 12, 12):
        part = slice(start, start + size)
        expected.append(np.linalg.solve(metric[part, part] + 0.1 * np.eye(size), g[part]))
        start += size
    assert np.linalg.norm(flat(ng.vector) - np.concatenate(expected)) < 1e-12


def test_the_loss_of_each_term_and_its_weight_are_reported():
    ng = pb.natural_gradient(problem(), PARAMS, BATCH)
    alone = pb.natural_gradient(TERMS["boundary"], PARAMS, BATCH["boundary"])
    assert abs(float(ng.losses["boundary"] - alone.value)) < 1e-14
    total = sum(float(ng.losses[k] * ng.weights[k]) for k in WEIGHTS)
    assert abs(float(ng.value) - total) < 1e-13
    assert "weight 10" in str(ng)
    assert pb.natural_gradient(TERMS["boundary"], PARAMS, BATCH["boundary"]).losses is None


def stacked():
    """Two terms of `problem` as one composite with flags and weights, and its batch."""

    def model(p, inputs):
        x, inside = inputs
        return jnp.where(inside[:, None], residual(p, x)[:, None], network(p, x)[:, :1])

    weights = jnp.concatenate([jnp.full(5, 0.7 / 5), jnp.full(3, 10.0)])
    one = pb.Composite(model, square, measure=pb.Weights(weights))
    flags = jnp.arange(8) < 5
    targets = jnp.concatenate([jnp.zeros((5, 1)), YB[:, :1]])
    return one, ((jnp.concatenate([X, XB]), flags), targets)


def first(p, x):
    return network(p, x)[:, :1]


TWO = pb.Terms(
    (TERMS["inside"], pb.Composite(first, square, measure=pb.Sum())), weights=(0.7, 10.0)
)
TWO_BATCH = ((X,), (XB, YB[:, :1]))


@pytest.mark.parametrize("solver", SOLVERS[:3], ids=repr)
def test_terms_equal_the_stacked_problem(solver):
    one, batch = stacked()
    for memory in (2**30, 2000):
        expected = pb.natural_gradient(one, PARAMS, batch, solver=solver, memory=memory)
        ng = pb.natural_gradient(TWO, PARAMS, TWO_BATCH, solver=solver, memory=memory)
        assert distance(ng.vector, expected.vector) < 1e-12
        assert abs(float(ng.value - expected.value)) < 1e-13
        assert int(ng.stats.rank) == int(expected.stats.rank) == 8


def test_the_order_of_the_terms_and_terms_of_weight_zero_change_nothing():
    ng = pb.natural_gradient(TWO, PARAMS, TWO_BATCH)
    turned = pb.Terms(TWO.terms[::-1], weights=(10.0, 0.7))
    other = pb.natural_gradient(turned, PARAMS, TWO_BATCH[::-1])
    assert distance(other.vector, ng.vector) < 1e-12
    more = pb.Terms((*TWO.terms, TERMS["labels"]), weights=(0.7, 10.0, 0.0))
    for labels in (BATCH["labels"], (XC.at[0, 0].set(jnp.nan), LABELS)):
        for solver in SOLVERS[:3]:
            there = pb.natural_gradient(more, PARAMS, (*TWO_BATCH, labels), solver=solver)
            assert distance(there.vector, ng.vector) < 1e-12


def test_an_absent_term_of_scores_may_be_a_nan():
    scores = pb.Composite(residual, lambda z: z, pb.metric.Scores())
    more = pb.Terms((*TWO.terms, scores), weights=(0.7, 10.0, 0.0))
    damped = pb.Tikhonov(1e-2)
    ng = pb.natural_gradient(TWO, PARAMS, TWO_BATCH, inverse=damped)
    batch = (*TWO_BATCH, (jnp.full_like(X, jnp.nan),))
    there = pb.natural_gradient(more, PARAMS, batch, inverse=damped)
    assert distance(there.vector, ng.vector) < 1e-12


def test_other_weights_compile_nothing(caplog):
    made = problem()
    pb.natural_gradient(made, PARAMS, BATCH)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        other = made.with_weights({"inside": 2.0, "boundary": 0.0, "labels": 1.0})
        value = pb.natural_gradient(other, PARAMS, BATCH).value
    assert not [r for r in caplog.records if "compute" in r.getMessage()]
    assert abs(float(value) - dense({"inside": 2.0, "boundary": 0.0, "labels": 1.0})[0]) < 1e-12


def test_products_blocks_and_kernels():
    _, metric, _ = dense()
    found = pb.pullback(problem(), PARAMS, BATCH)
    assert np.linalg.norm(found.matrix() - metric) < 1e-12 * np.linalg.norm(metric)
    a = np.asarray(found.jacobian())
    assert np.linalg.norm(a.T @ a - metric) < 1e-12 * np.linalg.norm(metric)
    assert found.whitened.shape == (5 + 6 + 4, 30)
    assert np.allclose(found.flat(PARAMS)["b"], (metric @ flat(PARAMS))[:6])
    kernel = pb.ntk(TWO, PARAMS, TWO_BATCH)
    assert kernel.matrix().shape == (8, 8)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"inside": (X,)}, "lacks 'boundary', 'labels'"),
        ({**BATCH, "data": (X,)}, "has 'data', no term"),
        ({**BATCH, "inside": (X[:0],)}, r"term 'inside': the batch is empty \(0 samples\)"),
        ({**BATCH, "boundary": (XB, YB[:2])}, "term 'boundary': targets have shape"),
        ({**BATCH, "inside": None}, "term 'inside': the model must take"),
        ((*BATCH.values(),), "must be a dictionary with the names of the terms"),
        ({**BATCH, "inside": X}, "term 'inside': batch must be"),
    ],
)
def test_batches_that_do_not_fit_are_named(batch, words):
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(problem(), PARAMS, batch)


def test_terms_that_are_none_are_refused():
    inside = TERMS["inside"]
    for make, words in [
        (lambda: pb.Terms(), "at least one term"),
        (lambda: pb.Terms(()), "at least one term"),
        (lambda: pb.Terms(a=problem()), "not nested"),
        (lambda: pb.Terms(a=network), "must be a pullback.Composite"),
        (lambda: pb.Terms(inside), "must be a tuple of composites"),
        (lambda: pb.Terms((inside,), b=inside), "by name"),
        (lambda: pb.Terms(a=pb.Composite(network, square, stateful=True)), "stateful=True"),
        (lambda: pb.Terms(a=inside, weights={"a": -1.0}), "finite and >= 0"),
        (lambda: pb.Terms((inside,), weights=(jnp.nan,)), "finite and >= 0"),
        (lambda: pb.Terms(a=inside, weights={"b": 1.0}), "lacks 'a' and has 'b', no term"),
        (lambda: pb.Terms((inside, inside), weights=(1.0,)), "one entry for each of the 2 terms"),
        (lambda: pb.NaturalGradientDescent(pb.Terms(a=pb.Composite(network))), "term 'a'"),
    ]:
        with pytest.raises(ValueError, match=words):
            make()


def test_a_failure_names_its_term():
    batch = {**BATCH, "boundary": (XB.at[1, 0].set(jnp.inf), YB)}
    with pytest.raises(RuntimeError, match=r"Term 'boundary': Found in batch.inputs .* \(1, 0\)"):
        pb.natural_gradient(problem(), PARAMS, batch)
    with pytest.raises(RuntimeError, match="Term 'labels': Sample 1"):
        pb.natural_gradient(problem(), PARAMS, {**BATCH, "labels": (XC, LABELS.at[1].set(7))})


def test_a_term_whose_rows_vanish_adds_nothing():
    still = pb.Composite(lambda p, x: 0.0 * network(p, x), square)
    moving = pb.Composite(network, square)
    both = pb.Terms(a=moving, b=still)
    expected = pb.natural_gradient(moving, PARAMS, (XB, YB))
    ng = pb.natural_gradient(both, PARAMS, {"a": (XB, YB), "b": (X, normal(5, 2))})
    assert distance(ng.vector, expected.vector) < 1e-12


def test_the_shortest_dtype_decides():
    short = pb.Composite(lambda p, x: network(p, x).astype(jnp.float32), square)
    both = pb.Terms(a=pb.Composite(network, square), b=short)
    batch = {"a": (XB, YB), "b": (XC, normal(4, 2, dtype="float32"))}
    ng = pb.natural_gradient(both, PARAMS, batch, inverse=pb.Tikhonov(0.1))
    assert ng.stats.largest.dtype == jnp.float32
    assert ng.value.dtype == jnp.float64
    wide = pb.solver.Mixed(pb.solver.Dual())
    other = pb.natural_gradient(both, PARAMS, batch, inverse=pb.Tikhonov(0.1), solver=wide)
    assert distance(other.vector, ng.vector) < 1e-5


@pytest.mark.parametrize("solver", SOLVERS[:3], ids=repr)
def test_a_term_without_data_and_one_that_couples_samples(solver):
    prior = pb.Composite(lambda p: p["w"], lambda z: jnp.sum(z**2) / 2)
    score = pb.Composite(lambda p, x: network(p, x)[:, 0], lambda z: z**2, pb.metric.Scores())
    both = pb.Terms(prior=prior, score=score, weights={"prior": 0.3, "score": 2.0})
    batch = {"prior": None, "score": (X,)}
    inverse = pb.Tikhonov(0.1)
    ng = pb.natural_gradient(both, PARAMS, batch, inverse=inverse, solver=solver)
    like, unravel = jax.flatten_util.ravel_pytree(PARAMS)
    j = np.asarray(jax.jacobian(lambda q: network(unravel(q), X)[:, 0])(like))
    centred = j - j.mean(axis=0)
    eye = np.zeros((30, 30))
    eye[range(18, 30), range(18, 30)] = 1.0
    metric = 0.3 * eye + 2.0 * centred.T @ centred / 5
    z = np.asarray(network(PARAMS, X)[:, 0])
    g = 0.3 * eye @ np.asarray(like) + 2.0 * j.T @ (2 * z) / 5
    expected = np.linalg.solve(metric + 0.1 * np.eye(30), g)
    assert np.linalg.norm(flat(ng.vector) - expected) < 1e-9 * np.linalg.norm(expected)


def test_another_batch_for_the_metric_has_the_same_form():
    other = {"inside": (XB,), "boundary": (X,), "labels": (X,)}
    ng = pb.natural_gradient(problem(), PARAMS, BATCH, metric_batch=other, inverse=pb.Tikhonov(0.1))
    metric = pb.pullback(problem(), PARAMS, other).matrix()
    g = dense()[2]
    expected = np.linalg.solve(np.asarray(metric) + 0.1 * np.eye(30), g)
    assert np.linalg.norm(flat(ng.vector) - expected) < 1e-11 * np.linalg.norm(expected)
    with pytest.raises(ValueError, match="lacks 'boundary', 'labels'"):
        pb.natural_gradient(problem(), PARAMS, BATCH, metric_batch={"inside": (X,)})


def test_one_term_is_the_composite():
    # The metric does not see a change of both logits by the same amount.
    alone = pb.Composite(network, lambda z: z[:, 0], pb.metric.Categorical())
    expected = pb.natural_gradient(alone, PARAMS, (X,))
    assert 0 < float(expected.stats.output_share) < 1
    for solver in SOLVERS[:3]:
        ng = pb.natural_gradient(pb.Terms(a=alone), PARAMS, {"a": (X,)}, solver=solver)
        assert distance(ng.vector, expected.vector) < 1e-9
        assert abs(float(ng.stats.output_share - expected.stats.output_share)) < 1e-12


def test_the_reference_of_the_library_knows_terms():
    inverse = pb.Tikhonov(0.1, gauge=gauge_like(PARAMS))
    expected = pb.testing.reference_natural_gradient(problem(), PARAMS, BATCH, inverse=inverse)
    value, metric, _ = dense()
    assert abs(expected.value - value) < 1e-13 * value
    assert np.linalg.norm(expected.matrix - metric) < 1e-13 * np.linalg.norm(metric)
    ng = pb.natural_gradient(problem(), PARAMS, BATCH, inverse=inverse)
    assert distance(ng.vector, expected.vector) < 1e-11


def test_the_derivative_by_a_weight():
    def size(w):
        made = TWO.with_weights((w, 10.0))
        ng = pb.natural_gradient(made, PARAMS, TWO_BATCH, inverse=pb.Tikhonov(0.1), throw=False)
        return jnp.sum(ng.vector["w"] ** 2)

    h = 1e-5
    slope = (size(0.7 + h) - size(0.7 - h)) / (2 * h)
    assert abs(jax.grad(size)(0.7) - slope) < 1e-6 * abs(slope)


def test_a_plan_counts_all_terms():
    plan = pb.plan(problem(), PARAMS, BATCH)
    assert plan.shape == (15, 30)
    assert plan.samples == 12
    assert "labels: " in str(plan)
