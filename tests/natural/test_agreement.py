"""Every METRIC x SOLVER x INVERSE x MODEL agrees with the naive dense reference.

Compiling is what takes the time, so one program solves for some (solver, inverse) pairs at one
linearisation. `make test` runs the cases that `sampling.py` takes for its seed. `make test-all`
runs every metric with every model, with pairs in turn, so that every metric and every model meets
every pair. The whole product takes hours of a core, and has its own target, `make test-product`.
"""

import gc
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import INVERSES, METRICS, MODELS, SOLVERS, distance, make_example, quietly, smooth_loss
from sampling import seed, taken

import pullback as pb
from pullback import testing
from pullback._natural.evaluate import evaluate as evaluate_problem
from pullback._natural.factorised import factorise
from pullback._natural.natural_gradient import compute
from pullback._problem.validate import validate
from pullback.solver._strategy import Strategy
from pullback.testing import _reference

TOLERANCE = 1e-9
ITERATIVE = ["krylov"]
FACTORISING = [name for name in SOLVERS if name not in ("krylov", "auto")]
PAIRS = [(solver, inverse) for inverse in INVERSES for solver in FACTORISING]
# Most of the time of compilation goes into optimising what runs for a millisecond.
COMPILER = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def evaluate(example, inverse, solver):
    """The whole of `natural_gradient`, as a pure function."""
    params, batch = validate(*example)
    strategy = Strategy(inverse, solver)
    return compute(example[0], params, batch, strategy, check_samples=True)


def evaluate_many(example, pairs):
    """δ and the rank for many (solver, inverse) at one linearisation."""
    # Nothing is steep in these examples, so that one lift serves every inverse.
    evaluation = evaluate_problem(example[0], *validate(*example), Strategy())
    found = []
    for solver, inverse in pairs:
        factorised = factorise(evaluation.rows, Strategy(inverse, solver))
        vector = factorised.solve(evaluation.lifted, evaluation.outside)
        found.append((evaluation.rows.structure.unravel(vector), factorised.rank))
    return found


def run(function, example):
    arrays, static = eqx.partition(example, eqx.is_array)
    return jax.jit(
        lambda arrays: eqx.filter(function(eqx.combine(arrays, static)), eqx.is_array),
        compiler_options=COMPILER,
    )(arrays)


def accepts(solver, inverse):
    try:
        solver.check(inverse)
    except ValueError:
        return False
    return True


def references(example):
    """The inverses, and what each gives: one dense linearisation serves all."""
    inverses = {name: make(example.params) for name, make in INVERSES.items()}
    _, g, jacobian, metric, unravel = _reference.dense_parts(*example)
    a, expected = _reference.square_root(metric) @ jacobian, {}
    for name, inverse in inverses.items():
        gauge = np.linalg.cholesky(_reference.dense_gauge(inverse.gauge, g.size))
        delta, rank, s = _reference.dense_solve(a, g, inverse, gauge)
        s = s / s[0]
        assert not np.any((s > 1e-12) & (s < 1e-5)), f"no clear gap: {s}"
        assert name != "truncated rank" or s.size < 3 or s[2] < 0.999 * s[1], (
            f"no gap at the truncation: {s}"
        )
        expected[name] = (unravel(jnp.asarray(delta)), rank)
    return inverses, expected


def assert_pairs_agree(example, pairs, whole=None):
    inverses, expected = references(example)
    pairs = [(solver, name) for solver, name in pairs if accepts(SOLVERS[solver], inverses[name])]

    def function(example):
        many = evaluate_many(example, [(SOLVERS[solver], inverses[name]) for solver, name in pairs])
        return many, None if whole is None else evaluate(
            example, inverses[whole[1]], SOLVERS[whole[0]]
        )

    many, ng = run(function, example)
    errors, ranks = {}, {}
    for (solver, name), (vector, rank) in zip(pairs, many, strict=True):
        if not (error := distance(vector, expected[name][0])) < TOLERANCE:
            errors[solver, name] = error
        if int(rank) not in (-1, expected[name][1]):
            ranks[solver, name] = (int(rank), expected[name][1])
    assert (errors, ranks) == ({}, {})
    if whole is not None:
        assert bool(ng.result == pb.RESULTS.successful), pb.RESULTS[ng.result]
        assert distance(ng.vector, expected[whole[1]][0]) < TOLERANCE
        assert float(ng.stats.residual) < 1e-9 or whole[1] == "truncated rank"


def in_turn(count):
    """Some metrics with one model each, others with each seed; the rest of the product is slow."""
    chosen = {
        (metric, list(MODELS)[(i + seed()) % len(MODELS)])
        for i, metric in enumerate(METRICS)
        if taken(i, count, seed())
    }
    every = [(metric, model) for metric in METRICS for model in MODELS]
    return [
        pytest.param(*pair, id=", ".join(pair), marks=() if pair in chosen else pytest.mark.slow)
        for pair in every
    ]


@pytest.fixture
def forget():
    """Compiled programs are not kept: there are hundreds."""
    yield
    jax.clear_caches()
    gc.collect()


class Case(NamedTuple):
    """A metric, a model, and some (solver, inverse) at one linearisation."""

    metric: str
    model: str
    pairs: tuple[tuple[str, str], ...]
    whole: tuple[str, str] | None
    """What is also run through the whole of `natural_gradient`."""


RUNS = len(MODELS)
"""Twice so many consecutive seeds cover every pair of metric, model, solver and inverse."""


def sample(seed: int) -> list[Case]:
    """The cases of one run: half of the metrics, each time with another model and other pairs."""
    cases = []
    for place, metric in enumerate(METRICS):
        if not taken(place, 2, seed // RUNS):
            continue
        turn = (place + seed) % RUNS
        model = list(MODELS)[turn]
        # The step of 5 takes a model to other pairs with every metric.
        first = 2 * ((turn + 5 * place) % RUNS)
        pairs = tuple(PAIRS[(first + k) % len(PAIRS)] for k in range(2))
        whole = PAIRS[(first + 5) % len(PAIRS)] if taken(place, RUNS, seed) else None
        cases.append(Case(metric, model, pairs, whole))
    return cases


def test_a_few_runs_cover_every_pair_of_pieces():
    covered = set()
    for case in itertools.chain.from_iterable(sample(run) for run in range(40, 40 + 2 * RUNS)):
        for solver, inverse in case.pairs:
            pieces = {"metric": case.metric, "model": case.model}
            pieces |= {"solver": solver, "inverse": inverse}
            covered |= set(itertools.combinations(sorted(pieces.items()), 2))
    kinds = {"metric": METRICS, "model": MODELS, "solver": FACTORISING, "inverse": INVERSES}
    pairs = itertools.combinations(sorted(kinds), 2)
    every = {((a, x), (b, y)) for a, b in pairs for x in kinds[a] for y in kinds[b]}
    assert every - covered == set()


@pytest.mark.parametrize("case", sample(seed()), ids=lambda case: f"{case.metric}, {case.model}")
def test_every_metric_agrees(case):
    assert_pairs_agree(make_example(case.metric, case.model), case.pairs, whole=case.whole)


def turn(metric, model, among):
    """Which of several things a metric and a model are run with: all, over metrics or models."""
    return (list(METRICS).index(metric) + list(MODELS).index(model)) % among


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_and_model_agree_with_pairs_in_turn(metric, model, forget):
    first = 2 * turn(metric, model, len(PAIRS) // 2)
    assert_pairs_agree(make_example(metric, model), PAIRS[first : first + 2])


def test_pairs_in_turn_are_met_by_every_metric_and_every_model():
    places = {kind: {} for kind in ("metric", "model")}
    for metric, model in itertools.product(METRICS, MODELS):
        place = turn(metric, model, len(PAIRS) // 2)
        places["metric"].setdefault(metric, set()).add(place)
        places["model"].setdefault(model, set()).add(place)
    met = {frozenset(found) for kind in places.values() for found in kind.values()}
    assert met == {frozenset(range(len(PAIRS) // 2))} and len(PAIRS) % 2 == 0


@pytest.mark.slow
@pytest.mark.product
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_solver_inverse_and_model_agrees(metric, model):
    """Operation by operation: these are compiled once for all cases."""
    with jax.disable_jit():
        assert_pairs_agree(make_example(metric, model), PAIRS)
    if model == list(MODELS)[-1]:
        jax.clear_caches()
        gc.collect()


WITHOUT_GAUGE = [name for name in INVERSES if "gauge" not in name]


@pytest.mark.parametrize(("metric", "model"), in_turn(12))
def test_iterative_solvers_agree(metric, model, forget):
    name = WITHOUT_GAUGE[turn(metric, model, len(WITHOUT_GAUGE))]
    assert_pairs_agree(make_example(metric, model), [(solver, name) for solver in ITERATIVE])


@pytest.mark.slow
@pytest.mark.product
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("metric", METRICS)
def test_iterative_solvers_agree_with_every_inverse(metric, model, forget):
    pairs = [(solver, name) for solver in ITERATIVE for name in WITHOUT_GAUGE]
    assert_pairs_agree(make_example(metric, model), pairs)


def assert_agrees(ng, reference, what, tolerance=TOLERANCE):
    assert bool(ng.result == pb.RESULTS.successful), f"{what}: {pb.RESULTS[ng.result]}"
    assert int(ng.stats.rank) in (-1, reference.rank), (
        f"{what}: rank {int(ng.stats.rank)}, not {reference.rank}"
    )
    found = {
        "vector": distance(ng.vector, reference.vector),
        "covector": distance(ng.covector, reference.covector),
    }
    found["value"] = abs(float(ng.value) - reference.value) / abs(reference.value)
    assert {name: error for name, error in found.items() if not error < tolerance} == {}, what


@pytest.mark.parametrize("inverse", INVERSES)
def test_a_covector_outside_the_range_of_the_metric(inverse):
    """Categorical sees no common shift of the logits; a loss that does has a share outside, which
    is solved for and reported.
    """
    function, params = MODELS["overparametrised"](3, jax.random.key(0))
    problem = pb.Composite(function, smooth_loss, pb.metric.Categorical())
    example = testing.Example(
        problem, params, (jnp.asarray(np.random.default_rng(1).standard_normal((4, 2))),)
    )
    chosen = INVERSES[inverse](params)
    expected = testing.reference_natural_gradient(*example, inverse=chosen)
    for solver in FACTORISING:
        ng = evaluate(example, chosen, SOLVERS[solver])
        assert_agrees(ng, expected, solver)
        assert 0.01 < float(ng.stats.output_share) < 0.9


@pytest.mark.parametrize(
    "metric", ["euclidean", "bernoulli", "categorical", "riemannian", "scores"]
)
def test_without_data_the_model_is_one_point(metric):
    case = METRICS[metric]
    base = case.make_z()
    theta = jnp.asarray([0.3, -0.5])
    maps = jnp.asarray(np.random.default_rng(3).standard_normal((base.size, 2)))
    problem = pb.Composite(
        lambda p: base + jnp.sin(maps @ p), lambda z: jnp.sum(jnp.cos(z)), case.metric
    )
    for name in INVERSES:
        inverse = INVERSES[name](theta)
        expected = testing.reference_natural_gradient(problem, theta, inverse=inverse)
        for solver in FACTORISING:
            assert_agrees(
                evaluate((problem, theta, None), inverse, SOLVERS[solver]),
                expected,
                f"{solver}, {name}",
            )


@pytest.mark.parametrize("solver", FACTORISING)
@pytest.mark.parametrize(
    "shape", [(4, 4, 7), (4, 7, 4), (3, 6, 5)], ids=["over", "under", "deficient"]
)
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


@pytest.mark.parametrize(
    "metric", ["categorical", "gaussian mean scale", "wasserstein covariance", "loss hessian"]
)
def test_float32_metrics_agree_with_the_same_rank(metric):
    problem, params, batch = make_example(metric, "tied weights")
    expected = testing.reference_natural_gradient(problem, params, batch)
    cast = lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x
    ng = quietly(
        pb.natural_gradient, problem, *jax.tree.map(cast, (params, batch)), solver=pb.solver.SVD()
    )
    assert {x.dtype for x in jax.tree.leaves(ng.vector)} == {jnp.dtype(jnp.float32)}
    assert_agrees(ng, expected, metric, tolerance=1e-4)


def test_krylov_float32():
    problem, params, batch = testing.prescribed(3, 6, 5)
    expected = testing.reference_natural_gradient(problem, params, batch)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), (params, batch))
    assert_agrees(
        pb.natural_gradient(problem, *single, solver=pb.solver.Krylov()),
        expected,
        "krylov",
        tolerance=1e-4,
    )
