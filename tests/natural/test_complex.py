"""Complex parameters and outputs are pairs of real ones: against dense references, and each form of
one function against the others.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from complex_models import (
    BATCH,
    COMPLEX,
    FORMS,
    PAIRED,
    X,
    Y,
    complex_normal,
    distance,
    flat,
    jacobian,
    loss,
    loss_in_pairs,
    model,
    model_in_pairs,
    normal,
    paired,
    residual,
    unflat,
)
from helpers import SOLVERS
from registry_metrics import dense, positive_definite

import pullback as pb
from pullback import testing

PROBLEM = pb.Composite(model, loss)
INVERSES = {"moore-penrose": pb.MoorePenrose(), "tikhonov": pb.Tikhonov(0.1)}
TOTAL = lambda p: jnp.mean(loss(model(p, X), Y))


def solved(a, r, inverse):
    """δ for the whitened Jacobian and residual."""
    if inverse.damping is None:
        return np.linalg.pinv(a) @ r
    return np.linalg.solve(a.T @ a + float(inverse.damping) * np.eye(a.shape[1]), a.T @ r)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("solver", ["svd", "primal", "dual", "krylov"])
def test_every_form_moves_as_the_dense_reference(form, inverse, solver):
    ng = pb.natural_gradient(
        PROBLEM, FORMS[form], BATCH, inverse=INVERSES[inverse], solver=SOLVERS[solver]
    )
    a, r = jacobian() / np.sqrt(5), residual() / np.sqrt(5)
    expected = solved(a, r, INVERSES[inverse])
    assert np.max(np.abs(flat(ng.vector) - expected)) < 1e-12 * np.max(np.abs(expected))
    assert all(ng.vector[k].dtype == x.dtype for k, x in FORMS[form].items())
    assert ng.pushforward.dtype == complex
    np.testing.assert_allclose(flat(ng.pushforward), jacobian() @ expected, rtol=1e-10, atol=1e-12)


def curved(z):
    return jnp.eye(2, dtype=z.dtype) + z[:, None] * z[None, :]


half_square = lambda u, z=None: jnp.sum((u if z is None else u - z) ** 2) / 2
METRICS = {
    "euclidean": pb.metric.Euclidean(2.5),
    "gaussian": pb.metric.Gaussian(0.25),
    "gaussian, correlated parts": pb.metric.Gaussian(positive_definite(2)),
    "riemannian": pb.metric.Riemannian(curved),
    "divergence": pb.metric.Divergence(half_square),
    "bregman": pb.metric.Bregman(lambda z: jnp.sum(jnp.cosh(z))),
    "exponential family": pb.metric.ExponentialFamily(lambda z: jnp.sum(jax.nn.softplus(z))),
    "bernoulli": pb.metric.Bernoulli(),
    "poisson": pb.metric.Poisson(),
    "categorical": pb.metric.Categorical(),
    "loss hessian": pb.metric.LossHessian(lambda z, y: jnp.sum((z - y) ** 4)),
    "sum": pb.metric.Sum((pb.metric.Euclidean(), pb.metric.Riemannian(curved))),
    "empirical fisher": pb.metric.EmpiricalFisher(pb.metric.Gaussian()),
    "masked": pb.metric.Masked(pb.metric.Euclidean(), jnp.asarray([True, False])),
    "scores": pb.metric.Scores(),
    "fubini-study": pb.metric.FubiniStudy(),
}


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_receives_pairs(metric):
    """A trailing axis of two in the place of a complex number; so are targets."""
    metric = METRICS[metric]
    z, y = model_in_pairs(COMPLEX, X), paired(Y)
    complex_one = pb.Composite(model, loss, metric)
    real_one = pb.Composite(model_in_pairs, loss_in_pairs, metric)
    inverse = pb.Tikhonov(0.1)
    ng = pb.natural_gradient(complex_one, COMPLEX, BATCH, inverse=inverse)
    other = pb.natural_gradient(real_one, PAIRED, (X, y), inverse=inverse)
    if metric.couples_samples:
        m = dense(metric.weigh(jnp.full(5, 0.2)), z)
    else:
        m = np.zeros((10, 10))
        for i in range(5):
            part = slice(2 * i, 2 * i + 2)
            m[part, part] = dense(metric.observe(y[i], jnp.asarray(i)), z[i]) / 5
    j, g = jacobian(), flat(jax.tree.map(jnp.conj, jax.grad(TOTAL)(COMPLEX)))
    expected = np.linalg.solve(j.T @ m @ j + 0.1 * np.eye(j.shape[1]), g)
    assert distance(ng.vector, other.vector) < 1e-12
    assert np.max(np.abs(flat(ng.vector) - expected)) < 1e-10


def test_a_likelihood_of_complex_targets_is_the_loss():
    own = pb.Composite(model, None, pb.metric.Gaussian(0.5))
    given = pb.Composite(model, lambda z, y: loss(z, y) / 0.5, pb.metric.Gaussian(0.5))
    found = [pb.natural_gradient(p, COMPLEX, BATCH) for p in (own, given)]
    assert distance(found[0].vector, found[1].vector) < 1e-12
    value = own.value(model(COMPLEX, X), own.at(BATCH).batch)
    assert float(value) == pytest.approx(float(found[0].value), rel=1e-14)
    trained = pb.NaturalGradientDescent(own, step=pb.step.TrustRegion(radius=0.1))
    _, _, record = trained.step(COMPLEX, trained.init(COMPLEX), BATCH)
    assert bool(record.accepted) and 0 < float(record.divergence) < 0.1


def test_the_covector_is_that_of_jax_and_the_pairing_is_real():
    ng = pb.natural_gradient(PROBLEM, COMPLEX, BATCH)
    gradient = jax.grad(TOTAL)(COMPLEX)
    assert distance(ng.covector, gradient) < 1e-14
    covector = pb.differential(PROBLEM, COMPLEX, BATCH)
    assert distance(covector.tree, gradient) < 1e-14
    slope = jax.jvp(TOTAL, (COMPLEX,), (ng.vector,))[1]
    assert float(covector @ pb.TangentVector(ng.vector)) == pytest.approx(float(slope), rel=1e-12)
    moved = COMPLEX - 0.01 * pb.TangentVector(ng.vector)
    assert float(TOTAL(moved)) < float(TOTAL(COMPLEX))


def test_the_pullback_metric_in_complex_numbers():
    metric = pb.pullback(PROBLEM, COMPLEX, BATCH)
    j, gradient = jacobian(), jax.grad(TOTAL)(COMPLEX)
    g = j.T @ j / 5
    v, w = (complex_like(seed) for seed in (20, 30))
    np.testing.assert_allclose(metric.matrix(), g, atol=1e-13)
    np.testing.assert_allclose(metric.inner(v, w), flat(v) @ g @ flat(w), rtol=1e-12)
    pushed = jax.jvp(lambda p: model(p, X), (COMPLEX,), (v,))[1]
    assert distance(metric.pushforward(v), pushed) < 1e-13
    c = jax.grad(lambda z: jnp.mean(loss(z, Y)))(model(COMPLEX, X))
    assert distance(metric.pull(c), gradient) < 1e-13
    assert distance(metric.outputs, model(COMPLEX, X)) < 1e-15
    covector = jax.tree.map(jnp.conj, metric.flat(v))
    np.testing.assert_allclose(flat(covector), g @ flat(v), atol=1e-12)
    sharp = metric.sharp(gradient)
    assert distance(sharp, pb.natural_gradient(PROBLEM, COMPLEX, BATCH).vector) < 1e-11
    assert distance(metric.project(pushed), pushed) < 1e-12


def complex_like(seed):
    return {
        k: complex_normal(*x.shape, seed=seed) if jnp.iscomplexobj(x) else normal(*x.shape)
        for k, x in COMPLEX.items()
    }


GAUGES = {
    "number": 2.0,
    "prefix": {"w": 2.0, "b": 3.0, "v": 0.5, "s": 1.0},
    "real": {k: 1 + jnp.abs(x) for k, x in COMPLEX.items()},
    "both parts": {
        k: jax.lax.complex(jnp.abs(x.real) + 1, jnp.abs(x.imag) + 2) if k != "s" else jnp.abs(x) + 1
        for k, x in COMPLEX.items()
    },
    "matrix": positive_definite(22, seed=7),
}


@pytest.mark.parametrize("name", GAUGES)
def test_gauges(name):
    gauge = GAUGES[name]
    ng = pb.natural_gradient(PROBLEM, COMPLEX, BATCH, inverse=pb.MoorePenrose(gauge=gauge))
    if name == "matrix":
        w = np.asarray(gauge)
    else:
        one = lambda w, x: np.broadcast_to(w * (1 + 1j) if np.isrealobj(w) else w, x.shape)
        parts = [
            np.broadcast_to(np.real(w), x.shape) if np.isrealobj(x) else one(np.asarray(w), x)
            for w, x in (
                (gauge if name == "number" else gauge[k], np.asarray(COMPLEX[k]))
                for k in sorted(COMPLEX)
            )
        ]
        w = np.diag(flat(parts))
    root = np.linalg.cholesky(w).T
    inverse = np.linalg.inv(root)
    expected = inverse @ np.linalg.pinv(jacobian() @ inverse) @ residual()
    assert np.max(np.abs(flat(ng.vector) - expected)) < 1e-12
    if name != "prefix":
        reference = testing.reference_natural_gradient(
            PROBLEM, COMPLEX, BATCH, pb.MoorePenrose(gauge=gauge)
        )
        if name != "number":
            assert distance(ng.vector, reference.vector) < 1e-11


def test_the_reference_of_the_library_knows_complex_numbers():
    reference = testing.reference_natural_gradient(PROBLEM, COMPLEX, BATCH)
    np.testing.assert_allclose(reference.jacobian, jacobian(), atol=1e-13)
    ng = pb.natural_gradient(PROBLEM, COMPLEX, BATCH)
    assert distance(ng.vector, reference.vector) < 1e-11
    assert distance(ng.covector, reference.covector) < 1e-13


def test_single_and_mixed_precision():
    """complex64 beside float64: the linear algebra has the digits of the shorter one."""
    expected = np.linalg.pinv(jacobian()) @ residual()
    cast = lambda p, x: model(
        {k: v.astype(complex if k != "s" else float) for k, v in p.items()}, x
    )
    given = pb.Composite(cast, loss)
    short = {k: v.astype(jnp.complex64 if k != "s" else jnp.float32) for k, v in COMPLEX.items()}
    for params in (short, short | {"s": COMPLEX["s"]}):
        ng = pb.natural_gradient(given, params, BATCH)
        assert ng.stats.largest.dtype == jnp.float32
        assert all(ng.vector[k].dtype == v.dtype for k, v in params.items())
        assert np.max(np.abs(flat(ng.vector) - expected)) < 2e-4 * np.max(np.abs(expected))


def test_chunks_weights_and_another_batch_of_the_metric():
    weights = jnp.asarray([0.1, 0.0, 0.5, 1.0, 0.2])
    given = pb.Composite(model, loss, measure=pb.Weights(weights))
    bad = (X.at[1].set(jnp.nan), Y.at[1].set(jnp.nan))
    root = np.sqrt(np.repeat(np.asarray(weights), 2))
    for memory in (1, 2**30):
        ng = pb.natural_gradient(given, COMPLEX, bad, solver=SOLVERS["dual"], memory=memory)
        expected = np.linalg.pinv(root[:, None] * jacobian()) @ (root * residual())
        assert np.max(np.abs(flat(ng.vector) - expected)) < 1e-11
    other = normal(9, 3, seed=40)
    ng = pb.natural_gradient(PROBLEM, COMPLEX, BATCH, metric_batch=(other,))
    j = jacobian(other)
    expected = np.linalg.pinv(j.T @ j / 9, rcond=1e-12) @ (jacobian().T @ residual() / 5)
    assert np.max(np.abs(flat(ng.vector) - expected)) < 1e-8


def test_complex_and_real_outputs_side_by_side():
    """A tree with both, and without data."""

    def both(p, x):
        z = model(p, x)
        return {"z": z, "r": jnp.abs(z), "n": jnp.arange(x.shape[0])}

    def misfit(out, y):
        return loss(out["z"], y) + (out["r"] - 1) ** 2 / 2

    ng = pb.natural_gradient(pb.Composite(both, misfit), COMPLEX, BATCH)
    rows = lambda p: jnp.concatenate([jnp.abs(model(p, X)), paired(model(p, X)).ravel()])
    j = np.asarray(jax.jacfwd(lambda v: rows(unflat(v)))(jnp.asarray(flat(COMPLEX))))
    r = np.concatenate([np.abs(np.asarray(model(COMPLEX, X))) - 1, residual()])
    assert np.max(np.abs(flat(ng.vector) - np.linalg.pinv(j) @ r)) < 1e-11
    assert ng.pushforward["z"].dtype == complex and ng.pushforward["r"].dtype == float
    assert ng.pushforward["n"] is None
    alone = pb.Composite(lambda p: model(p, X)[0], lambda z: jnp.abs(z) ** 2 / 2)
    ng = pb.natural_gradient(alone, COMPLEX)
    z = np.asarray(model(COMPLEX, X)[0])
    expected = np.linalg.pinv(jacobian()[:2]) @ np.array([z.real, z.imag])
    assert np.max(np.abs(flat(ng.vector) - expected)) < 1e-12


def test_under_jit_vmap_and_grad():
    go = lambda s: pb.natural_gradient(PROBLEM, COMPLEX | {"s": s}, BATCH, inverse=pb.Tikhonov(0.1))
    size = lambda s: jnp.sum(jnp.abs(go(s).vector["w"]) ** 2)
    s = COMPLEX["s"]
    direction = jnp.asarray([0.3, -0.7])
    slope = jax.jvp(size, (s,), (direction,))[1]
    assert float(jax.grad(size)(s) @ direction) == pytest.approx(float(slope), rel=1e-10)
    step = 1e-5
    difference = (size(s + step * direction) - size(s - step * direction)) / (2 * step)
    assert float(slope) == pytest.approx(float(difference), rel=1e-6)
    mapped = jax.vmap(lambda s: go(s).vector["w"])(jnp.stack([s, 2 * s]))
    assert distance(mapped[0], eqx.filter_jit(go)(s).vector["w"]) < 1e-12


def test_inputs_may_be_complex():
    x = complex_normal(5, 3, seed=50)
    linear = lambda p, x: x @ p
    given = pb.Composite(linear, loss)
    ng = pb.natural_gradient(given, COMPLEX["b"][:1] * jnp.ones(3, complex), (x, Y))
    j = np.asarray(x)
    expected = np.linalg.pinv(j) @ (j @ np.full(3, complex(COMPLEX["b"][0])) - np.asarray(Y))
    np.testing.assert_allclose(ng.vector, expected, atol=1e-12)
    real = pb.natural_gradient(pb.Composite(lambda p, x: jnp.abs(x @ p.astype(complex)),
                                            lambda z, y: (z - jnp.abs(y)) ** 2 / 2),
                               jnp.ones(3), (x, Y))  # fmt: skip
    assert real.vector.dtype == float


def test_a_broadcasting_loss_is_found_among_complex_outputs():
    column = pb.Composite(lambda p, x: model(p, x)[:, None], loss)
    words = r"outputs of shape \(5, 1\) and targets of shape \(5,\)"
    with jax.numpy_rank_promotion("allow"), pytest.raises(ValueError, match=words):
        pb.natural_gradient(column, COMPLEX, (X, Y))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"loss": lambda z, y: (z - y) ** 2}, r"loss must return real numbers, got complex128"),
        ({"metric": pb.metric.GaussianMeanScale()}, "takes outputs"),
        (
            {"inverse": pb.MoorePenrose(gauge={"w": 1j, "b": 1.0, "v": 1.0, "s": 1j})},
            "a positive number, a pytree like the parameters",
        ),
        ({"params": {"w": jnp.ones(3, int), "b": True}}, "no floating array"),
    ],
)
def test_bad_input(kwargs, words):
    given = {"loss": loss, "metric": None, "params": COMPLEX, "inverse": None} | kwargs
    problem = pb.Composite(model, given["loss"], given["metric"])
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(problem, given["params"], BATCH, inverse=given["inverse"])


@pytest.mark.parametrize(
    ("where", "words"),
    [("params", r"params\['w'\] \(first at index \(0, 1\)\)"), ("batch", "targets"),
     ("outputs", r"outputs.*\(first at index \(2,\)\)")],
)  # fmt: skip
def test_what_is_not_finite_is_named(where, words):
    params, batch, given = COMPLEX, BATCH, PROBLEM
    if where == "params":
        params = COMPLEX | {"w": COMPLEX["w"].at[0, 1].set(complex(0, np.nan))}
    elif where == "batch":
        batch = (X, Y.at[1].set(np.inf))
    else:
        spoil = jnp.asarray([1, 1, np.nan, 1, 1], complex)
        given = pb.Composite(lambda p, x: model(p, x) * spoil[: x.shape[0]], loss, coupled=True)
    with pytest.raises(RuntimeError, match=words):
        pb.natural_gradient(given, params, batch)
