"""Bad input gets a clear error: the argument, what was given, what to do. Nothing is lost."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import testing

PARAMS = {"w": normal(2, 3), "b": normal(3, seed=1)}
X, Y = normal(4, 2, seed=2), normal(4, 3, seed=3)


def linear(p, x):
    return x @ p["w"] + p["b"][None, :]


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def problem(model=linear, loss=square, metric=None, **kwargs):
    return pb.Composite(model, loss, pb.metric.Euclidean() if metric is None else metric, **kwargs)


def run(p=None, params=PARAMS, batch=(X, Y), **kwargs):
    return pb.natural_gradient(problem() if p is None else p, params, batch, **kwargs)


NAN = PARAMS | {"b": PARAMS["b"].at[1].set(jnp.nan)}
OVERFLOW = lambda p, x: linear(p, x) * jnp.where(x[:, :1] == X[2, 0], jnp.inf, 1.0)
# sqrt has an infinite slope at zero, a finite value.
KINK = lambda p, x: jnp.sqrt(jnp.abs(p["w"][0, 0] - PARAMS["w"][0, 0])) + linear(p, x)

NON_FINITE = {
    "params": (
        {"params": NAN},
        "nonfinite_params",
        r"`params` contains a NaN.*Found in params\['b'\] \(first at index \(1,\)\)",
    ),
    "inputs": (
        {"batch": (X.at[2, 0].set(jnp.inf), Y)},
        "nonfinite_batch",
        r"`batch` contains a NaN.*Found in batch.* \(first at index \(2, 0\)\)",
    ),
    "targets": (
        {"batch": (X, Y.at[1, 2].set(jnp.nan))},
        "nonfinite_batch",
        r"`batch` contains.*\(first at index \(1, 2\)\)",
    ),
    "metric batch": (
        {"metric_batch": (X.at[3, 1].set(jnp.nan),)},
        "nonfinite_batch",
        r"Found in metric_batch.* \(first at index \(3, 1\)\)",
    ),
    "outputs": (
        {"p": problem(OVERFLOW)},
        "nonfinite_outputs",
        r"The model returned a NaN or an infinity.*first at index \(2, 0\)",
    ),
    "loss": (
        {"p": problem(loss=lambda z, y: square(z, y) / 0.0)},
        "nonfinite_loss",
        "The loss, or its differential at the outputs, is not finite",
    ),
    "gradient": (
        {
            "p": problem(
                loss=lambda z, y: jnp.sqrt(jnp.sum((z - jax.lax.stop_gradient(z)) ** 2, axis=1))
            )
        },
        "nonfinite_loss",
        "The loss, or its differential at the outputs, is not finite",
    ),
    "jacobian": (
        {"p": problem(KINK)},
        "nonfinite_jacobian",
        "The gradient Jᵀc is not finite although the outputs",
    ),
    "metric": (
        {
            "p": problem(
                metric=pb.metric.Riemannian(
                    lambda z: jnp.eye(3) / jnp.where(z[0] == linear(PARAMS, X)[1, 0], 0.0, 1.0)
                )
            )
        },
        "bad_metric",
        r"The metric on the outputs is not finite or not positive.*Sample 1: "
        r".*Riemannian\(matrix_fn=\.\.\.\) is not finite",
    ),
}


@pytest.mark.parametrize("name", NON_FINITE)
def test_what_is_not_finite_is_named_with_the_place(name):
    kwargs, code, words = NON_FINITE[name]
    with pytest.raises(RuntimeError, match=words):
        run(**kwargs)
    ng = run(**kwargs, throw=False)
    assert bool(ng.result == getattr(pb.RESULTS, code))


def test_under_jit_a_failure_raises_too():
    go = eqx.filter_jit(
        lambda params, throw: pb.natural_gradient(problem(), params, (X, Y), throw=throw).result
    )
    with pytest.raises(Exception, match="`params` contains a NaN or an infinity"):
        jax.block_until_ready(
            eqx.filter(
                eqx.filter_jit(lambda p: pb.natural_gradient(problem(), p, (X, Y)))(NAN),
                eqx.is_array,
            )
        )
    assert bool(go(NAN, False) == pb.RESULTS.nonfinite_params)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        (
            {
                "batch": (X, Y.astype(complex)),
                "p": problem(loss=lambda z, y: square(z.astype(complex), y)),
            },
            r"loss must return real numbers, got complex128",
        ),
        (
            {
                "p": problem(
                    lambda p, x: linear(p, x).astype(complex),
                    lambda z, y: square(z, y.astype(complex)),
                )
            },
            r"loss must return real numbers, got complex128: e\.g\. jnp\.abs\(z - y\) \*\* 2",
        ),
        (
            {"params": {"w": jnp.ones((2, 3), int), "b": jnp.zeros(3, int)}},
            r"params has no floating array among its leaves \(int64\).*jnp\.asarray\(x, float\)",
        ),
        ({"params": {}}, r"params has no floating array among its leaves \(none at all\)"),
        (
            {"params": {"w": 1.0, "b": 2}},
            r"params has no floating array among its leaves \(float, int\)",
        ),
        ({"batch": (X[:0], Y[:0])}, r"the batch is empty \(0 samples\)"),
        ({"batch": (X, Y[:3])}, r"targets have shape \(3, 3\), but the inputs have 4 samples"),
        (
            {"batch": ({"a": X, "b": X[:3]}, Y), "p": problem(lambda p, x: linear(p, x["a"]))},
            r"the inputs must be arrays with one common leading sample axis",
        ),
        ({"batch": X}, r"batch must be .*\(None, targets\) or None, got one array"),
        (
            {"batch": (X, Y, Y)},
            r"batch must be .* or None, got tuple of length 3",
        ),
        (
            {"batch": (None, Y[:2]), "p": problem(lambda p: p["w"])},
            r"loss must return a scalar, got shape",
        ),
        (
            {"p": problem(lambda p, x: linear(p, x)[0])},
            r"the leading axis of every output must be the sample axis, 4 "
            r"samples, got output shapes \[\(3,\)\].*jax\.vmap",
        ),
        (
            {"p": problem(lambda p, x: linear(p, x)[:2])},
            r"the sample axis, 4 samples, got output shapes \[\(2, 3\)\]",
        ),
        ({"p": problem(lambda p, x: jnp.arange(4))}, r"the model returns no floating array"),
        (
            {"p": problem(measure=pb.Weights(jnp.ones(5)))},
            r"the measure has 5 weights, but the leading axis of the batch has "
            r"4 samples.*pullback\.Weights\(w\) with w of shape \(4,\)",
        ),
        (
            {"p": problem(loss=lambda z, y: (z - y) ** 2)},
            r"loss must return a scalar or one number per sample, shape \(4,\), "
            r"got shape \(4, 3\)\. Sum over the other axes",
        ),
        (
            {"p": problem(loss=lambda z, y: jnp.sum((z - y) ** 2, axis=0))},
            r"loss must return a scalar or one number per sample, shape \(4,\), got shape \(3,\)",
        ),
        (
            {"p": problem(lambda p: p["w"], lambda z: z[0]), "batch": None},
            r"loss must return a scalar, got shape \(3,\)",
        ),
        (
            {"p": problem(metric=pb.metric.Riemannian(lambda z: jnp.eye(2)))},
            r"Riemannian\(matrix_fn=\.\.\.\) must return a real array of shape "
            r"\(3, 3\).*got float64 of shape \(2, 2\)",
        ),
        ({"p": problem(metric=pb.metric.Gaussian(jnp.eye(2)))}, r"Gaussian"),
        (
            {"p": problem(metric=pb.metric.GaussianMeanScale())},
            r"GaussianMeanScale.*takes outputs \{'mean'",
        ),
        (
            {"p": problem(metric=pb.metric.FubiniStudy(), model=lambda p, x: linear(p, x)[:, :1])},
            r"FubiniStudy\(\) takes one array of amplitudes",
        ),
        (
            {"p": problem(metric=pb.metric.Categorical(), model=lambda p, x: linear(p, x)[:, :1])},
            r"Categorical\(\) takes one array of logits with at least 2 classes",
        ),
        (
            {
                "metric_batch": (X,),
                "batch": None,
                "p": problem(lambda p: p["w"][0], lambda z: jnp.sum(z)),
            },
            "metric_batch is for models with data",
        ),
        ({"memory": 0}, "memory must be a positive number of bytes, got 0"),
        (
            {"inverse": 0.1},
            r"inverse must be MoorePenrose\(\), Tikhonov\(damping\), "
            r"TruncatedRank\(k\) or another pullback\.inverse\.AbstractInverse, got 0\.1",
        ),
        (
            {"solver": "svd"},
            r"solver must be one of pullback\.solver, e\.g\. "
            r"solver=pullback\.solver\.SVD\(\), got 'svd'",
        ),
        (
            {"solver": pb.solver.Krylov(), "inverse": pb.TruncatedRank(2)},
            r"Krylov cannot cut off singular values.*solver=pullback\.solver\.SVD\(\)",
        ),
        (
            {"solver": pb.solver.Krylov(), "inverse": pb.MoorePenrose(rtol=0.1)},
            "Krylov cannot cut off singular values",
        ),
        (
            {"p": pb.Composite(linear, None, pb.metric.Gaussian()), "batch": (X,)},
            r"loss was left out, so the batch must have targets: batch=\(inputs, targets\)",
        ),
        (
            {"p": pb.Composite(lambda p: p["w"], None, pb.metric.Gaussian()), "batch": None},
            r"loss was left out, so the batch of a model without data must have targets",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_compiled(kwargs, words):
    with pytest.raises(ValueError, match=words):
        run(**kwargs)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: pb.Weights(jnp.asarray([1.0, -0.5])),
            r"Weights\(values=.*\): values must be finite and >= 0; the weight "
            r"0 leaves a sample out",
        ),
        (lambda: pb.Weights(jnp.asarray([1.0, jnp.nan])), "values must be finite and >= 0"),
        (
            lambda: pb.Weights(jnp.ones((2, 2))),
            r"values must be a floating vector, one weight per sample, not "
            r"float64 of shape \(2, 2\)",
        ),
        (
            lambda: pb.Weights(jnp.ones(2, int)),
            "values must be a floating vector, one weight per sample, not int64",
        ),
        (lambda: pb.Tikhonov(-0.1), r"Tikhonov\(damping=-0\.1\): damping must be finite and >= 0"),
        (
            lambda: pb.Tikhonov(0.0),
            r"Tikhonov\(damping=0\) has no inverse on the kernel; the undamped "
            r"inverse is MoorePenrose\(\)",
        ),
        (lambda: pb.Tikhonov(float("nan")), r"Tikhonov\(damping=nan\): damping must be finite"),
        (
            lambda: pb.MoorePenrose(rtol=-1e-3),
            r"MoorePenrose\(rtol=-0\.001\): rtol must be finite and >= 0",
        ),
        (
            lambda: pb.TruncatedRank(-1),
            r"TruncatedRank\(k=-1\): k must be an integer >= 0, e\.g\. TruncatedRank\(10\)",
        ),
        (lambda: pb.TruncatedRank(2.5), r"TruncatedRank\(k=2\.5\): k must be an integer >= 0"),
        (lambda: pb.solver.Krylov(rtol=2.0), r"Krylov\(rtol=2\.0\): rtol must be between 0 and 1"),
        (
            lambda: pb.solver.Krylov(max_steps=0),
            r"Krylov\(max_steps=0\): max_steps must be at least 1",
        ),
        (
            lambda: pb.Composite(3, square),
            "model must be callable, model\\(params, inputs\\), got int",
        ),
        (
            lambda: pb.Composite(linear, 3),
            "loss must be callable, loss\\(outputs, targets\\), got int",
        ),
        (
            lambda: pb.Composite(linear, square, "fisher"),
            r"metric must be one of pullback\.metric, e\.g\. "
            r"metric=pullback\.metric\.Euclidean\(\), got 'fisher'",
        ),
        (
            lambda: pb.Composite(linear, square, measure=0.5),
            r"measure must be Mean\(\), Sum\(\) or Weights\(w\), got 0\.5",
        ),
        (
            lambda: pb.natural_gradient(pb.Composite(linear), PARAMS, (X, Y)),
            "Euclidean is not a likelihood, so the loss cannot be left out",
        ),
        (
            lambda: pb.natural_gradient(linear, PARAMS, (X, Y)),
            r"problem must be a pullback\.Composite\(model=\.\.\., loss=\.\.\., "
            r"metric=\.\.\.\), or a pullback\.Terms\(\.\.\.\) of several, got function",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (
            lambda z: jnp.asarray([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
            r"Sample 0: Riemannian\(matrix_fn=\.\.\.\) is not symmetric.*max \|M - Mᵀ\| = 0\.5",
        ),
        (
            lambda z: jnp.diag(jnp.asarray([1.0, -0.25, 2.0])),
            r"Sample 0: The matrix of Riemannian.* is not positive "
            r"semi-definite along outputs \[1\] \(1\): its eigenvalues go from -0\.25 to 2",
        ),
    ],
    ids=["not symmetric", "indefinite"],
)
def test_a_matrix_that_is_no_metric(matrix, words):
    bad = problem(metric=pb.metric.Riemannian(matrix))
    with pytest.raises(RuntimeError, match=words):
        run(bad)
    assert bool(run(bad, throw=False).result == pb.RESULTS.bad_metric)


def test_an_indefinite_loss_hessian_is_refused_by_name():
    bad = problem(metric=pb.metric.LossHessian(lambda z, y: jnp.sum(jnp.cos(z) * y)))
    with pytest.raises(
        RuntimeError, match=r"LossHessian\(loss=\.\.\.\).*eigenvalues go from -.*spectrum=Clip\(\)"
    ):
        run(bad)


@pytest.mark.parametrize(
    "gauge", [jnp.asarray(-1.0), jnp.ones((9, 9))], ids=["negative", "singular"]
)
def test_a_gauge_that_is_not_positive_definite(gauge):
    with pytest.raises(
        RuntimeError,
        match=(
            "`gauge` is not positive definite: a weighted Moore-Penrose inverse "
            "needs an inner product"
        ),
    ):
        run(inverse=pb.MoorePenrose(gauge=gauge))


@pytest.mark.parametrize(
    "solver",
    [pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual(), pb.solver.Krylov()],
    ids=lambda s: s.name,
)
def test_rank_zero_is_an_answer(solver):
    flat = problem(lambda p, x: 0.0 * linear(p, x) + 1.0)
    ng = run(flat, solver=solver)
    assert all(bool(jnp.all(x == 0)) for x in jax.tree.leaves(ng.vector))
    if not isinstance(solver, pb.solver.Krylov):
        assert bool(ng.result == pb.RESULTS.rank_zero)
        assert "zero vector" in pb.RESULTS[ng.result]
        assert int(ng.stats.rank) == 0


def test_truncated_to_nothing_is_rank_zero():
    assert bool(run(inverse=pb.TruncatedRank(0)).result == pb.RESULTS.rank_zero)


def single(spectrum):
    p, params, batch = testing.prescribed(3, 6, 5, spectrum)
    return p, *jax.tree.map(lambda x: x.astype(jnp.float32), (params, batch))


def test_float32_beyond_its_condition_warns_once_with_the_line_to_add(recwarn):
    with pytest.warns(pb.PrecisionWarning) as caught:
        pb.natural_gradient(*single([1.0, 0.1, 2e-5]), solver=pb.solver.SVD())
    assert len(caught) == 1
    message = str(caught[0].message)
    assert 'jax.config.update("jax_enable_x64", True)' in message
    assert "condition number of A is 5.0e+04, beyond 1/sqrt(eps) = 2.9e+03 of float32" in message
    assert caught[0].filename == __file__


def test_no_warning_where_there_is_no_reason():
    pb.natural_gradient(*single([1.0, 0.1, 0.01]), solver=pb.solver.SVD())
    pb.natural_gradient(*testing.prescribed(3, 6, 5, [1.0, 0.1, 2e-5]), solver=pb.solver.SVD())


def test_a_matrix_free_solve_that_fell_short_says_so():
    example = testing.prescribed(5, 6, 5, np.geomspace(1.0, 1e-4, 5))
    with pytest.raises(RuntimeError, match="The solver did not reach the solution"):
        pb.natural_gradient(*example, solver=pb.solver.Krylov(max_steps=2))
    ng = pb.natural_gradient(*example, solver=pb.solver.Krylov(max_steps=2), throw=False)
    assert bool(ng.result == pb.RESULTS.unconverged)
    assert float(ng.stats.residual) > 1e-8


def test_nothing_is_lost_without_throw():
    """Whatever happened, everything that was computed is there."""
    ng = run(params=NAN, throw=False)
    assert jax.tree.structure(ng.vector) == jax.tree.structure(PARAMS)
    assert ng.pushforward.shape == (4, 3)
    assert ng.stats.shape == (12, 9)
