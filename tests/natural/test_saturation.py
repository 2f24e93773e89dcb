"""Saturated models: the natural gradient of a Bernoulli or Categorical model is right when
probabilities underflow, against 900 digits.
"""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import pullback as pb

DIGITS = 900
TOLERANCE = 1e-11


def exact_sum(rows, metric, ambient):
    """G⁻¹ g for G = Σ JᵢᵀMᵢJᵢ, g = Σ JᵢᵀMᵢaᵢ: full column rank."""
    size = rows[0].cols
    total, right = mp.zeros(size), mp.zeros(size, 1)
    for j, m, a in zip(rows, metric, ambient, strict=True):
        total += j.T * m * j
        right += j.T * (m * a)
    return np.array([float(x) for x in mp.lu_solve(total, right)])


def exact_least_norm(rows, right):
    """The δ of least norm with rows δ = right: full row rank."""
    return np.array([float(x) for x in rows.T * mp.lu_solve(rows * rows.T, right)])


def exact_logistic(x, logits, y):
    """Aδ ≈ r with weights φ(s)φ(-s) and ambient gradient (1 - y)/φ(-s) - y/φ(s), in 900 digits."""
    with mp.workdps(DIGITS):
        s = [mp.mpf(float(v)) for v in logits]
        ambient = [
            (1 - mp.mpf(float(t))) * (1 + mp.exp(v)) - mp.mpf(float(t)) * (1 + mp.exp(-v))
            for v, t in zip(s, y, strict=True)
        ]
        rows = mp.matrix(np.asarray(x, float).tolist())
        if x.shape[0] <= x.shape[1]:
            return exact_least_norm(rows, mp.matrix(ambient))
        weights = [1 / ((1 + mp.exp(-v)) * (1 + mp.exp(v))) for v in s]
        return exact_sum(
            [rows[i, :] for i in range(rows.rows)],
            [mp.matrix([[w]]) for w in weights],
            [mp.matrix([a]) for a in ambient],
        )


def data(samples, features, low, high, seed=0, repeated=0, dtype=np.float64):
    """Samples with given logits |s| in [low, high], all on the right side; the first `repeated`
    come twice, at the same logit.
    """
    rng = np.random.default_rng(seed)
    x, y = (
        rng.normal(size=(samples, features)).astype(dtype),
        (rng.random(samples) < 0.5).astype(dtype),
    )
    size = rng.uniform(low, high, samples).astype(dtype)
    x[repeated : 2 * repeated], y[repeated : 2 * repeated] = x[:repeated], y[:repeated]
    size[: 2 * repeated] = low
    return x, y, size * (2 * y - 1)


def relative(found, expected):
    return float(np.linalg.norm(np.asarray(found, float) - expected) / np.linalg.norm(expected))


LOGISTIC = pb.Composite(lambda p, x: x[0] @ p + x[1], metric=pb.metric.Bernoulli())


def logistic_step(x, y, offset, problem=LOGISTIC, **kwargs):
    batch = ((jnp.asarray(x), jnp.asarray(offset)), jnp.asarray(y))
    return pb.natural_gradient(problem, jnp.zeros(x.shape[1], x.dtype), batch, **kwargs)


@pytest.mark.parametrize(("samples", "features"), [(6, 10), (20, 5)], ids=["N<D", "N>D"])
@pytest.mark.parametrize(("low", "high"), [(800, 800), (0, 100), (0, 400), (98, 350), (0, 1400)])
def test_saturation_logistic_direction(samples, features, low, high):
    x, y, offset = data(samples, features, low, high)
    ng = logistic_step(x, y, offset)
    assert relative(ng.vector, exact_logistic(x, offset, y)) < TOLERANCE
    assert bool(ng.result == pb.RESULTS.successful)
    assert int(ng.stats.rank) == min(samples, features)
    assert ng.stats.graded
    assert float(ng.stats.residual) < 1e-11


@pytest.mark.parametrize("repeated", [2, 4, 7])
@pytest.mark.parametrize(("low", "high"), [(5, 100), (5, 400)])
def test_saturation_with_repeated_samples(repeated, low, high):
    """Heavy rows that depend on each other: what the light rows say is far below the rounding of
    the heavy ones.
    """
    x, y, offset = data(20, 8, low, high, repeated=repeated)
    assert relative(logistic_step(x, y, offset).vector, exact_logistic(x, offset, y)) < TOLERANCE


def test_saturation_with_more_confident_samples_than_features():
    x, y, offset = data(24, 4, 2, 400, seed=3)
    offset[:9] = np.sign(offset[:9]) * np.linspace(2, 4, 9)
    assert relative(logistic_step(x, y, offset).vector, exact_logistic(x, offset, y)) < TOLERANCE


@pytest.mark.parametrize(("low", "high"), [(800, 800), (0, 100), (0, 400)])
def test_saturation_dual_the_weights_cancel(low, high):
    x, y, offset = data(6, 10, low, high, seed=1)
    assert (
        relative(
            logistic_step(x, y, offset, solver=pb.solver.Dual()).vector,
            exact_logistic(x, offset, y),
        )
        < TOLERANCE
    )


def test_saturation_follows_the_parameters():
    """Logits from the parameters themselves, not an offset, with soft labels "
    "and unequal weights.
    """
    rng = np.random.default_rng(4)
    x, theta = rng.normal(size=(12, 3)), np.array([300.0, -200.0, 250.0])
    y = (x @ theta > 0).astype(float)
    problem = pb.Composite(
        lambda p, x: x @ p, metric=pb.metric.Bernoulli(), measure=pb.Weights(jnp.full(12, 0.7))
    )
    ng = pb.natural_gradient(problem, jnp.asarray(theta), (jnp.asarray(x), jnp.asarray(y)))
    assert (
        relative(ng.vector, exact_logistic(x, np.asarray(jnp.asarray(x) @ jnp.asarray(theta)), y))
        < TOLERANCE
    )


@pytest.mark.parametrize(("samples", "features"), [(6, 10), (20, 5)], ids=["N<D", "N>D"])
@pytest.mark.parametrize(("low", "high"), [(800, 800), (0, 100), (0, 400)])
def test_saturation_float32(samples, features, low, high):
    x, y, offset = data(samples, features, low, high, dtype=np.float32)
    ng = logistic_step(x, y, offset)
    assert ng.vector.dtype == jnp.float32
    assert bool(jnp.all(jnp.isfinite(ng.vector)))
    assert relative(ng.vector, exact_logistic(x, offset, y)) < 1e-4


SOFTMAX = pb.Composite(
    lambda p, x: jnp.einsum("ncp,p->nc", x[0], p) + x[1], metric=pb.metric.Categorical()
)


def exact_categorical(maps, logits, y):
    """maps: (N, C, P). With full row rank the ambient gradient is reached; else G is summed and
    solved. 900 digits.
    """
    count, classes, size = maps.shape
    with mp.workdps(DIGITS):
        rows, metrics, ambient, differences, right = [], [], [], [], []
        for i in range(count):
            top = [mp.exp(mp.mpf(float(v))) for v in logits[i]]
            p = [t / mp.fsum(top) for t in top]
            a = [1 - (1 / p[j] if j == y[i] else 0) for j in range(classes)]
            rows.append(mp.matrix(maps[i].tolist()))
            metrics.append(mp.matrix(classes, classes))
            for j in range(classes):
                for k in range(classes):
                    metrics[-1][j, k] = (p[j] if j == k else 0) - p[j] * p[k]
            ambient.append(mp.matrix(a))
            for j in range(1, classes):
                differences.append([rows[-1][j, k] - rows[-1][0, k] for k in range(size)])
            right += [a[j] - a[0] for j in range(1, classes)]
        if count * (classes - 1) <= size:
            return exact_least_norm(mp.matrix(differences), mp.matrix(right))
        return exact_sum(rows, metrics, ambient)


@pytest.mark.parametrize(("samples", "size"), [(3, 11), (8, 5)], ids=["over", "under"])
@pytest.mark.parametrize("spread", [10, 100, 400, 800])
def test_saturation_categorical(samples, size, spread):
    rng = np.random.default_rng(2)
    maps, offset = (
        rng.normal(size=(samples, 4, size)),
        rng.uniform(-spread, spread, size=(samples, 4)),
    )
    y = offset.argmax(axis=1)
    ng = pb.natural_gradient(
        SOFTMAX, jnp.zeros(size), ((jnp.asarray(maps), jnp.asarray(offset)), jnp.asarray(y))
    )
    assert relative(ng.vector, exact_categorical(maps, offset, y)) < TOLERANCE
    assert bool(ng.result == pb.RESULTS.successful)


@pytest.mark.parametrize(
    "solver", [pb.solver.Primal(), pb.solver.Dual(), pb.solver.Krylov()], ids=lambda s: s.name
)
def test_saturation_beyond_what_a_solver_resolves_is_named(solver):
    """Repeated samples among saturated ones: the weights do not cancel, and only the graded
    decomposition keeps the light rows.
    """
    x, y, offset = data(12, 16, 5, 100, repeated=3)
    ng = logistic_step(x, y, offset, solver=solver, throw=False)
    assert relative(ng.vector, np.asarray(logistic_step(x, y, offset).vector)) > 0.1
    assert bool(ng.result == pb.RESULTS.unresolved)
    with pytest.raises(
        RuntimeError,
        match=(
            r"their rows of A lie below what this solver "
            r"resolves.*solver=pullback\.solver\.SVD\(\)"
        ),
    ):
        logistic_step(x, y, offset, solver=solver)


def softplus_loss(z, y):
    return (1 - y) * jax.nn.softplus(z) + y * jax.nn.softplus(-z)


BY_FUNCTION = pb.Composite(LOGISTIC.model, softplus_loss, pb.metric.Bernoulli())


@pytest.mark.parametrize(("low", "high"), [(800, 800), (0, 1400)])
def test_saturation_of_a_loss_given_as_a_function_is_named(low, high):
    """The differential underflows and is lost: it is said, with what to do."""
    x, y, offset = data(6, 10, low, high)
    with pytest.raises(
        RuntimeError, match=r"saturated beyond the range.*Leave `loss` out of `Composite\(\.\.\.\)`"
    ):
        logistic_step(x, y, offset, BY_FUNCTION)
    assert bool(
        logistic_step(x, y, offset, BY_FUNCTION, throw=False).result == pb.RESULTS.saturated
    )
    damped = logistic_step(x, y, offset, BY_FUNCTION, inverse=pb.Tikhonov(0.1))
    assert bool(damped.result == pb.RESULTS.successful)


def test_saturation_of_a_loss_given_as_a_function_within_range():
    """While the differential does not underflow, a loss given as a function is as exact as the
    closed form.
    """
    x, y, offset = data(6, 10, 0, 300)
    assert (
        relative(logistic_step(x, y, offset, BY_FUNCTION).vector, exact_logistic(x, offset, y))
        < TOLERANCE
    )


def cross_entropy(z, y):
    return jax.nn.logsumexp(z) - z[y]


VANISHING = {
    "LossHessian": (pb.metric.LossHessian(cross_entropy), jax.vmap(cross_entropy)),
    "Bregman": (pb.metric.Bregman(jax.nn.logsumexp), jax.vmap(cross_entropy)),
    "ExponentialFamily": (pb.metric.ExponentialFamily(jax.nn.logsumexp), None),
}


@pytest.mark.parametrize("name", VANISHING)
def test_a_metric_that_rounds_to_zero_fails_undamped_and_keeps_the_gradient_damped(name):
    """Every sample is wrong at a logit of 800: p(1 - p) underflows, the gradient is one."""
    metric, loss = VANISHING[name]
    labels = jnp.asarray([1, 2])
    y = labels if loss else jax.nn.one_hot(labels, 3, dtype=float)
    problem = pb.Composite(lambda p, x: x @ p, loss, metric)
    params, batch = jnp.zeros((2, 3)).at[:, 0].set(800.0), (jnp.eye(2), y)
    undamped = pb.natural_gradient(problem, params, batch, throw=False)
    assert undamped.result == pb.RESULTS.vanished
    with pytest.raises(RuntimeError, match="zero in floating point"):
        pb.natural_gradient(problem, params, batch)
    damped = pb.natural_gradient(problem, params, batch, inverse=pb.Tikhonov(1e-3))
    truth = np.asarray([[500.0, -500.0, 0.0], [500.0, 0.0, -500.0]])
    np.testing.assert_allclose(damped.vector, truth, rtol=1e-12)
