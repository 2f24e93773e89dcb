"""Logistic regression in closed form, against dense references, integrated flows, many digits."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.integrate
from linear_data import data, dense, relative, separable, sigmoid

from pullback import linear

LOGISTIC = linear.Logistic()


def test_loss_gradient_and_fisher(rng):
    x, y = data(rng, 7, 4)
    beta = rng.standard_normal(4)
    u = y * (x @ beta)
    assert np.isclose(LOGISTIC.loss(beta, x, y), np.sum(np.log1p(np.exp(-u))))
    g, f = dense(x, y, beta)
    assert relative(LOGISTIC.gradient(beta, x, y), g) < 1e-14
    assert relative(LOGISTIC.fisher(beta, x), f) < 1e-14
    assert relative(jax.grad(LOGISTIC.loss)(jnp.asarray(beta), x, y), g) < 1e-13


@pytest.mark.parametrize(
    ("n", "d", "rank"), [(4, 9, None), (9, 4, None), (5, 5, None), (9, 6, 3), (5, 9, 3), (6, 6, 2)]
)
def test_natural_gradient_is_the_moore_penrose_one(rng, n, d, rank):
    x, y = data(rng, n, d, rank)
    beta = rng.standard_normal(d) / 2
    g, f = dense(x, y, beta)
    expected = np.linalg.pinv(f, rcond=1e-10) @ g
    assert relative(LOGISTIC.natural_gradient(beta, x, y), expected) < 1e-9
    assert relative(jax.jit(LOGISTIC.natural_gradient)(beta, x, y), expected) < 1e-9


def exact_natural_gradient(x, y, u):
    """Normal equations in two thousand digits, at given margins u; rows of full column rank, or of
    full row rank.
    """
    with mpmath.workdps(4000):
        signed = mpmath.matrix((y[:, None] * x).tolist())
        w = [
            1 / ((1 + mpmath.exp(-mpmath.mpf(float(v)))) * (1 + mpmath.exp(mpmath.mpf(float(v)))))
            for v in u
        ]
        b = mpmath.matrix([-(1 + mpmath.exp(-mpmath.mpf(float(v)))) for v in u])
        if x.shape[0] <= x.shape[1]:
            d = signed.T * mpmath.lu_solve(signed * signed.T, b)
        else:
            weighted = signed.T * mpmath.diag(w)
            d = mpmath.lu_solve(weighted * signed, weighted * b)
        return np.array([float(v) for v in d])


SPREADS = {
    "offset": (720, 725),
    "wide": (98, 350),
    "very wide": (30, 1200),
    "past the exponents": (0, 6000),
    "both signs": (-40, 300),
}


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize(("n", "d"), [(9, 4), (3, 7)])
def test_natural_gradient_at_any_spread_of_the_logits(rng, n, d, spread):
    from pullback.linear._population import log_fisher
    from pullback.linear._weighted import least_squares

    x, y = data(rng, n, d)
    u = np.sort(rng.uniform(*spread, n))
    ours = least_squares(
        y[:, None] * x, log_fisher(jnp.asarray(u)), jax.nn.softplus(-jnp.asarray(u)), -jnp.ones(n)
    )
    assert relative(ours, exact_natural_gradient(x, y, u)) < 1e-13


def test_a_large_coefficient_vector(rng):
    """The same through the public call: logits of some hundreds, of which the normal equations keep
    nothing.
    """
    x, y = separable(rng, 12, 3)
    v = np.asarray(linear.l2_margin(x, y))
    beta = 200 * v
    u = y * (x @ beta)
    assert relative(LOGISTIC.natural_gradient(beta, x, y), exact_natural_gradient(x, y, u)) < 1e-11
    g, f = dense(x, y, beta)
    assert not relative(np.linalg.pinv(f) @ g, exact_natural_gradient(x, y, u)) < 0.1


def integrated(x, y, beta, t):
    def field(_, b):
        g, f = dense(x, y, b)
        return -np.linalg.pinv(f, rcond=1e-11) @ g

    return scipy.integrate.solve_ivp(field, (0, t), beta, rtol=1e-11, atol=1e-12).y[:, -1]


@pytest.mark.parametrize(("n", "d"), [(4, 7), (9, 4)])
def test_flow_against_an_integrated_flow(rng, n, d):
    x, y = separable(rng, n, d)
    beta = rng.standard_normal(d) / 3
    assert relative(LOGISTIC.flow(beta, x, y, 2.5), integrated(x, y, beta, 2.5)) < 1e-8
    assert relative(LOGISTIC.flow(beta, x, y, 0.0), beta) < 1e-13


@pytest.mark.parametrize("t", [1.0, 15.0, 120.0])
@pytest.mark.parametrize("separates", [True, False])
def test_the_gradient_decays_exponentially_along_the_flow(rng, t, separates):
    x, y = separable(rng, 15, 4)
    if not separates:
        y = y * rng.choice([-1, 1], 15)
    beta = rng.standard_normal(4)
    there = LOGISTIC.flow(beta, x, y, t)
    gradient = np.asarray(LOGISTIC.gradient(there, x, y)) * np.exp(t)
    # Not separable: the gradient is a difference of numbers of order one, known to rounding only.
    bound = 1e-9 if separates else 1e-9 + 1e-14 * np.exp(t)
    assert relative(gradient, np.asarray(LOGISTIC.gradient(beta, x, y))) < bound


def test_flow_transforms_with_the_data(rng):
    x, y = separable(rng, 12, 4)
    a, beta = rng.standard_normal((4, 4)), rng.standard_normal(4)
    there = LOGISTIC.flow(beta, x, y, 9.0)
    moved = LOGISTIC.flow(np.linalg.solve(a.T, beta), x @ a.T, y, 9.0)
    assert relative(a.T @ np.asarray(moved), np.asarray(there)) < 1e-9


def test_limit_direction_with_independent_rows_is_least_squares(rng):
    x, y = separable(rng, 5, 9)
    expected = np.linalg.pinv(x) @ y
    assert relative(LOGISTIC.limit_direction(x, y), expected) < 1e-12
    there = np.asarray(LOGISTIC.flow(np.zeros(9), x, y, 200.0))
    assert relative(there / np.linalg.norm(there), expected / np.linalg.norm(expected)) < 1e-12
    assert relative(there / (200 + np.log(2)), expected) < 1e-12


def test_limit_direction_is_the_linear_program(rng):
    x, y = separable(rng, 14, 3)
    beta = rng.standard_normal(3)
    v = np.asarray(LOGISTIC.limit_direction(x, y, beta))
    assert np.min(y * (x @ v)) > 1 - 1e-9
    errors = [
        relative(np.asarray(LOGISTIC.flow(beta, x, y, t)) / t, v) for t in (50.0, 100.0, 200.0)
    ]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(orders - 1) < 0.05), errors


def test_no_limit_direction_without_separation(rng):
    x, y = data(rng, 40, 2)
    with pytest.raises(ValueError, match="separates"):
        LOGISTIC.limit_direction(x, y)


@pytest.mark.parametrize("norm", [0.0, 0.3, 3.0, 50.0, 4e3])
def test_population_fisher_of_standard_normal_inputs(norm):
    beta = norm * np.array([0.6, 0.0, -0.8])
    density = lambda z: (
        sigmoid(norm * z) * sigmoid(-norm * z) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    )
    near = 40 / max(norm, 1)
    integral = lambda f: (
        2
        * sum(
            scipy.integrate.quad(f, *ends, epsabs=0, epsrel=1e-12)[0]
            for ends in ((0, near), (near, near + 20))
        )
    )
    a, c = integral(density), integral(lambda z: z * z * density(z))
    b = np.array([0.6, 0.0, -0.8])
    expected = a * np.eye(3) + (c - a) * (np.outer(b, b) if norm else 0)
    assert relative(LOGISTIC.population_fisher(beta), expected) < 1e-11


def test_population_natural_gradient(rng):
    x, y = data(rng, 5, 3)
    beta, inputs = rng.standard_normal(3), rng.standard_normal((400_000, 3))
    exact = np.asarray(LOGISTIC.population_natural_gradient(beta, x, y))
    g, _ = dense(x, y, beta)
    assert relative(5 * np.asarray(LOGISTIC.population_fisher(beta)) @ exact, g) < 1e-12
    sampled = LOGISTIC.population_natural_gradient(beta, x, y, inputs)
    assert relative(sampled, exact) < 0.01
    _, f = dense(inputs, np.ones(len(inputs)), beta)
    assert relative(sampled, np.linalg.solve(f * 5 / len(inputs), g)) < 1e-11
