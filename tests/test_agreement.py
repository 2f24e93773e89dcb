"""Every METRIC x SOLVER x INVERSE x MODEL agrees with the naive dense reference.

Compiling is what takes the time here, so the factorising solvers run operation by operation (what is compiled for one metric serves the others), and the
iterative one is compiled once for all its inverses. By default each metric meets one model, each model several metrics; the whole product is `slow`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import INVERSES, METRICS, MODELS, SOLVERS, distance, make_example, quietly, smooth_loss

import pullback as pb
from pullback import testing
from pullback._judge import prepare
from pullback._natural_gradient import compute
from pullback._pullback import MEMORY

TOLERANCE = 1e-9
PAIRS = [(metric, model) for metric in METRICS for model in MODELS]
PLAIN = {(metric, list(MODELS)[i % len(MODELS)]) for i, metric in enumerate(METRICS)}
CASES = [pytest.param(*pair, id=", ".join(pair), marks=() if pair in PLAIN else pytest.mark.slow) for pair in PAIRS]
FACTORISING = [name for name in SOLVERS if name not in ("krylov", "auto")]
ITERATIVE = ["krylov"]


def evaluate(example, inverse, solver, metric_batch=None):
    args = prepare(*example, inverse, solver, metric_batch, MEMORY)
    return compute(*args, MEMORY, check=True)


def accepts(solver, inverse):
    try:
        solver.check(inverse)
    except ValueError:
        return False
    return True


def assert_agrees(ng, reference, what, tolerance=TOLERANCE):
    assert bool(ng.result == pb.RESULTS.successful), f"{what}: {pb.RESULTS[ng.result]}"
    assert int(ng.stats.rank) in (-1, reference.rank), f"{what}: rank {int(ng.stats.rank)}, not {reference.rank}"
    found = {"vector": distance(ng.vector, reference.vector), "covector": distance(ng.covector, reference.covector)}
    found["value"] = abs(float(ng.value) - reference.value) / abs(reference.value)
    assert {name: error for name, error in found.items() if not error < tolerance} == {}, what


def references(example, names=INVERSES):
    inverses = {name: INVERSES[name](example.params) for name in names}
    found = {name: testing.reference_natural_gradient(*example, inverse=inverse) for name, inverse in inverses.items()}
    for name, reference in found.items():
        s = reference.spectrum / reference.spectrum[0]
        assert not np.any((s > 1e-10) & (s < 1e-4)), f"no clear gap: {s}"
        assert name != "truncated rank" or s.size < 3 or s[2] < 0.99 * s[1], f"no gap at the truncation: {s}"
    return inverses, found


@pytest.mark.parametrize(("metric", "model"), CASES)
def test_factorising_solvers_agree(metric, model):
    example = make_example(metric, model)
    inverses, expected = references(example)
    for solver in FACTORISING:
        for name, inverse in inverses.items():
            if accepts(SOLVERS[solver], inverse):
                assert_agrees(evaluate(example, inverse, SOLVERS[solver]), expected[name], f"{solver}, {name}")


@pytest.mark.parametrize(("metric", "model"), CASES)
def test_iterative_solvers_agree(metric, model):
    example = make_example(metric, model)
    inverses, expected = references(example)
    pairs = [(s, name) for s in ITERATIVE for name in inverses if accepts(SOLVERS[s], inverses[name]) and "gauge" not in name]
    run = eqx.filter_jit(lambda example: [evaluate(example, inverses[name], SOLVERS[s]) for s, name in pairs])
    for (solver, name), ng in zip(pairs, run(example), strict=True):
        assert_agrees(ng, expected[name], f"{solver}, {name}")


def test_the_registry_refuses_a_name_given_twice():
    for registry in (METRICS, SOLVERS, INVERSES, MODELS):
        with pytest.raises(KeyError, match="registered already"):
            registry[next(iter(registry))] = None


def test_every_public_solver_and_inverse_is_registered():
    solvers = {x for x in vars(pb.solver).values() if isinstance(x, type) and issubclass(x, pb.solver.AbstractSolver)}
    assert {type(x) for x in SOLVERS.values()} == solvers - {pb.solver.AbstractSolver}
    inverses = {type(make(jnp.ones(2))) for make in INVERSES.values()}
    assert inverses == {x for x in vars(pb).values() if isinstance(x, type) and issubclass(x, pb.AbstractInverse)} - {
        pb.AbstractInverse
    }


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in ITERATIVE else ()) for name in SOLVERS])
def test_solver_conforms(name):
    assert len(testing.check_solver(SOLVERS[name])) >= 6


def test_a_wrong_solver_is_caught():
    class Ungauged(pb.solver.AbstractSolver):
        """Right but for the gauge, which it forgets."""

        def check(self, inverse):
            pass

        def factorise(self, metric, inverse):
            plain = eqx.tree_at(lambda i: i.gauge, inverse, None, is_leaf=lambda x: x is None)
            return pb.solver.SVD().factorise(metric, plain)

    with pytest.raises(AssertionError, match=r"Ungauged, MoorePenrose in a gauge: lifted\(r\): relative error"):
        testing.check_solver(Ungauged())


@pytest.mark.parametrize("inverse", INVERSES)
def test_a_covector_outside_the_range_of_the_metric(inverse):
    """Categorical sees no common shift of the logits; a loss that does has a share outside, which is solved for and reported."""
    function, params = MODELS["overparametrised"](3, jax.random.key(0))
    problem = pb.Composite(function, smooth_loss, pb.metric.Categorical())
    example = testing.Example(problem, params, (jnp.asarray(np.random.default_rng(1).standard_normal((4, 2))),))
    chosen = INVERSES[inverse](params)
    expected = testing.reference_natural_gradient(*example, inverse=chosen)
    for solver in FACTORISING:
        ng = evaluate(example, chosen, SOLVERS[solver])
        assert_agrees(ng, expected, solver)
        assert 0.1 < float(ng.stats.output_share) < 0.9


@pytest.mark.parametrize("metric", ["euclidean", "bernoulli", "categorical", "riemannian", "scores"])
def test_without_data_the_model_is_one_point(metric):
    case = METRICS[metric]
    base = case.make_z()
    theta = jnp.asarray([0.3, -0.5])
    maps = jnp.asarray(np.random.default_rng(3).standard_normal((base.size, 2)))
    problem = pb.Composite(lambda p: base + jnp.sin(maps @ p), lambda z: jnp.sum(jnp.cos(z)), case.metric)
    for name in INVERSES:
        inverse = INVERSES[name](theta)
        expected = testing.reference_natural_gradient(problem, theta, inverse=inverse)
        for solver in FACTORISING:
            assert_agrees(evaluate((problem, theta, None), inverse, SOLVERS[solver]), expected, f"{solver}, {name}")


@pytest.mark.parametrize("solver", FACTORISING)
@pytest.mark.parametrize("shape", [(4, 4, 7), (4, 7, 4), (3, 6, 5)], ids=["over", "under", "deficient"])
def test_float32_agrees_with_the_same_rank(solver, shape):
    rank, rows, size = shape
    problem, params, batch = testing.prescribed(rank, rows, size)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), (params, batch))
    for name in ("moore-penrose", "tikhonov", "truncated rank"):
        inverse = INVERSES[name](params)
        expected = testing.reference_natural_gradient(problem, params, batch, inverse=inverse)
        ng = evaluate((problem, *single), inverse, SOLVERS[solver])
        assert ng.vector.dtype == jnp.float32
        assert_agrees(ng, expected, f"{solver}, {name}", tolerance=1e-4)


@pytest.mark.parametrize("metric", ["categorical", "gaussian mean scale", "wasserstein covariance", "loss hessian"])
def test_float32_metrics_agree_with_the_same_rank(metric):
    problem, params, batch = make_example(metric, "tied weights")
    expected = testing.reference_natural_gradient(problem, params, batch)
    cast = lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x
    ng = quietly(pb.natural_gradient, problem, *jax.tree.map(cast, (params, batch)), solver=pb.solver.SVD())
    assert {x.dtype for x in jax.tree.leaves(ng.vector)} == {jnp.dtype(jnp.float32)}
    assert_agrees(ng, expected, metric, tolerance=1e-4)


def test_krylov_float32():
    problem, params, batch = testing.prescribed(3, 6, 5)
    expected = testing.reference_natural_gradient(problem, params, batch)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), (params, batch))
    assert_agrees(pb.natural_gradient(problem, *single, solver=pb.solver.Krylov()), expected, "krylov", tolerance=1e-4)
