"""Misclassified samples of a saturated model, where the weights of rows do not cancel.

The lifted covector c/√p overflows there, or drowns everything else; Jᵀc does not. References have
60 digits and share no code.
"""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import pullback as pb

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(size=(5, 4)), [[30.0, 0, 0, 0], [0, 25.0, 0, 0]]])
Y = np.array([0.0, 1, 0, 1, 1, 0, 1])
W = np.array([1.0, 1.3, 0.2, -0.4])
SOLVERS = {"SVD": pb.solver.SVD(), "Dual": pb.solver.Dual(), "Primal": pb.solver.Primal()}


def dense(x, w, y, respond):
    """h(G) g of logistic regression; `respond` maps the eigenvalues of G to those of h(G)."""
    with mp.workdps(60):
        n, p = x.shape
        rows = mp.matrix(x.tolist())
        logits = rows * mp.matrix(w.tolist())
        chance = [1 / (1 + mp.e ** (-z)) for z in logits]
        metric = mp.diag([q * (1 - q) / n for q in chance])
        g = rows.T * mp.matrix([(q - mp.mpf(t)) / n for q, t in zip(chance, y, strict=True)])
        values, frame = mp.eigsy(rows.T * metric * rows)
        h = respond([values[i] for i in range(p)])
        answer = frame * (mp.diag(h) * (frame.T * g))
        return np.array([float(v) for v in answer])


def cut(values, kept):
    return [1 / v if keep else mp.mpf(0) for v, keep in zip(values, kept, strict=True)]


INVERSES = {
    "rtol": (
        pb.MoorePenrose(rtol=0.5),
        lambda v: cut(v, [mp.sqrt(x) > mp.mpf(0.5) * mp.sqrt(max(v)) for x in v]),
    ),
    "rank": (pb.TruncatedRank(2), lambda v: cut(v, [x >= sorted(v)[-2] for x in v])),
    "damped": (pb.Tikhonov(1e-8), lambda v: [1 / (x + mp.mpf(1e-8)) for x in v]),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", INVERSES)
def test_saturated_and_wrong(name, solver):
    inverse, respond = INVERSES[name]
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())
    batch = (jnp.asarray(X), jnp.asarray(Y))
    ng = pb.natural_gradient(
        problem, jnp.asarray(W), batch, inverse=inverse, solver=SOLVERS[solver]
    )
    truth = dense(X, W, Y, respond)
    assert np.linalg.norm(ng.vector - truth) < 1e-12 * np.linalg.norm(truth)


FAR = {"float32": 100.0, "float64": 800.0}


def far(dtype):
    """A sample that is wrong by a logit beyond the range of exp, and one that is undecided."""
    problem = pb.Composite(
        lambda p, x: jnp.stack([x @ p, jnp.zeros_like(x @ p)], -1), metric=pb.metric.Categorical()
    )
    x = jnp.eye(2, dtype=dtype)
    return problem, jnp.asarray([FAR[dtype], 0.0], dtype), (x, jnp.asarray([1, 0]))


@pytest.mark.parametrize("solver", [*SOLVERS.values(), pb.solver.Krylov()], ids=repr)
@pytest.mark.parametrize("dtype", FAR)
def test_beyond_the_range_of_exp_a_damped_step_is_finite(dtype, solver):
    problem, params, batch = far(dtype)
    ng = pb.natural_gradient(
        problem, params, batch, inverse=pb.Tikhonov(1e-3), solver=solver, throw=False
    )
    assert ng.result == pb.RESULTS.successful
    # G is 0 for the first parameter, p(1 - p)/2 = 1/8 for the second one.
    truth = np.array([0.5 / 1e-3, -0.25 / (0.125 + 1e-3)])
    np.testing.assert_allclose(ng.vector, truth, rtol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", FAR)
def test_levenberg_marquardt_leaves_such_a_point(dtype):
    problem, params, batch = far(dtype)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    state, first = opt.init(params), None
    for _ in range(6):
        params, state, record = opt.step(params, state, batch)
        first = record.loss if first is None else first
    assert record.loss_after < 0.01 * first


VANISHED = {
    "ExponentialFamily": pb.Composite(
        lambda p, x: x * p[None, :],
        metric=pb.metric.ExponentialFamily(lambda z: jax.nn.softplus(z[0])),
    ),
    "LossHessian": pb.Composite(
        lambda p, x: x * p[None, :],
        lambda z, y: jnp.sum(jax.nn.softplus(z) - y * z, -1),
        pb.metric.LossHessian(lambda z, y: jnp.sum(jax.nn.softplus(z) - y * z)),
    ),
    "Bregman": pb.Composite(
        lambda p, x: x * p[None, :],
        lambda z, y: jnp.sum(jax.nn.softplus(z) - y * z, -1),
        pb.metric.Bregman(lambda z: jnp.sum(jax.nn.softplus(z))),
    ),
}


@pytest.mark.parametrize("solver", [pb.solver.SVD(), pb.solver.Krylov()], ids=repr)
@pytest.mark.parametrize("name", VANISHED)
def test_a_metric_that_rounds_to_zero_is_not_a_zero_gradient(name, solver):
    batch = (jnp.ones((1, 1)), jnp.zeros((1, 1)))
    find = lambda **k: pb.natural_gradient(
        VANISHED[name], jnp.asarray([40.0]), batch, solver=solver, **k
    )
    with pytest.raises(RuntimeError, match="zero in floating point although the gradient is not"):
        find()
    np.testing.assert_allclose(find(inverse=pb.Tikhonov(1e-3)).vector, 1000.0, rtol=1e-12)


def test_the_covector_of_a_right_sample_beside_a_steep_one():
    # 1 - p = 4e-18 of the right sample is zero in c = p - 1; over the damping it is of order one.
    z, w, damping = np.array([40.0, -40.0, 0.3]), np.array([1.0, 1e-10, 1.0]), 1e-20
    model = lambda p, x: jnp.stack([x @ p, jnp.zeros_like(x @ p)], -1)
    measure = pb.Weights(jnp.asarray(w))
    problem = pb.Composite(model, metric=pb.metric.Categorical(), measure=measure)
    ng = pb.natural_gradient(
        problem,
        jnp.asarray(z),
        (jnp.eye(3), jnp.zeros(3, int)),
        inverse=pb.Tikhonov(damping),
        solver=pb.solver.SVD(),
    )
    with mp.workdps(60):
        chance = [1 / (1 + mp.e ** -mp.mpf(v)) for v in z]
        pairs = zip(chance, w, strict=True)
        truth = [(p - 1) * a / (p * (1 - p) * a + mp.mpf(damping)) for p, a in pairs]
        truth = np.array([float(v) for v in truth])
    np.testing.assert_allclose(ng.vector, truth, rtol=1e-12)
