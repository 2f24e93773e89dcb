"""Weights of any spread where heavy rows depend on each other, and columns of any units."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from linear_data import data, relative, separable

from pullback import linear

LOGISTIC = linear.Logistic()


def exact(x, y, beta, covector=None):
    """The summed Fisher matrix, inverted in many digits; of the gradient, or of a covector."""
    with mpmath.workdps(3000):
        rows = mpmath.matrix((y[:, None] * x).tolist())
        u = rows * mpmath.matrix(beta.tolist())
        p = [1 / (1 + mpmath.exp(v)) for v in u]
        weighted = rows.T * mpmath.diag([a * (1 - a) for a in p])
        g = -rows.T * mpmath.matrix(p) if covector is None else mpmath.matrix(covector.tolist())
        return np.array([float(v) for v in mpmath.lu_solve(weighted * rows, g)])


def repeated(rng, d, logit):
    """d - 1 points given twice on the boundary, and one point far from it, which decides."""
    points = rng.standard_normal((d, d))
    normal = np.linalg.svd(points[:-1])[2][-1]
    x = np.concatenate([points[:-1], points[:-1], points])
    return x, np.ones(len(x)), normal * logit / (points[-1] @ normal)


@pytest.mark.parametrize("logit", [30.0, 80.0, 600.0])
@pytest.mark.parametrize("d", [2, 4])
def test_a_light_row_decides_what_repeated_rows_leave_open(rng, d, logit):
    x, y, beta = repeated(rng, d, logit)
    assert relative(LOGISTIC.natural_gradient(beta, x, y), exact(x, y, beta)) < 1e-11
    # The same in five dimensions, of which the data see d.
    turn = np.linalg.qr(rng.standard_normal((5, 5)))[0][:d]
    found = LOGISTIC.natural_gradient(beta @ turn, x @ turn, y)
    assert relative(found, exact(x, y, beta) @ turn) < 1e-11


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_chain_of_parallel_rows_does_not_underflow(dtype):
    x = np.array([[100.0 * i, 0.0] for i in range(1, 22)] + [[2200.0, 1.0]])
    y, beta = np.ones(22), np.array([1.0, 0.0])
    found = LOGISTIC.natural_gradient(*(a.astype(dtype) for a in (beta, x, y)))
    assert relative(found, exact(x, y, beta)) < 100 * np.finfo(dtype).eps


FAR_ON_THE_WRONG_SIDE = {
    "light rows decide": [[1, 0], [0, 1], [0, 2]],
    "a light row beside another": [[1, 0], [0, 1], [0, 2.5]],
    "light beside heavy ones that span": [[1, 0], [0, 1 / 1024], [3, 1 / 2], [0, 2.5]],
}


@pytest.mark.parametrize("dtype, logit", [(np.float32, 60), (np.float64, 300), (np.float64, 550)])
@pytest.mark.parametrize("rows", FAR_ON_THE_WRONG_SIDE)
def test_a_target_that_overflows_does_not_where_its_weight_makes_up_for_it(rows, dtype, logit):
    x = np.array(FAR_ON_THE_WRONG_SIDE[rows], dtype)
    y, beta = np.ones(len(x), dtype), np.array([0, -logit], dtype)
    found = LOGISTIC.natural_gradient(beta, x, y)
    expected = exact(x, y, beta)
    np.testing.assert_allclose(found, expected, rtol=1000 * np.finfo(dtype).eps)


def test_columns_of_any_units(rng):
    x, y = separable(rng, 9, 3)
    beta, units = rng.standard_normal(3), np.array([1.0, 1e-18, 1e25])
    for far in (1.0, 100.0):
        found = LOGISTIC.natural_gradient(far * beta / units, x * units, y) * units
        assert relative(found, LOGISTIC.natural_gradient(far * beta, x, y)) < 1e-10
    flow = LOGISTIC.flow(beta / units, x * units, y, 2.0) * units
    assert relative(flow, LOGISTIC.flow(beta, x, y, 2.0)) < 1e-10
    limit = LOGISTIC.limit_direction(x * units, y, beta / units) * units
    assert relative(limit, LOGISTIC.limit_direction(x, y, beta)) < 1e-10


@pytest.mark.parametrize("order", [1, -1])
def test_population_whose_light_inputs_decide(rng, order):
    x, y = data(rng, 5, 2)
    beta = np.array([1.0, 0.0])
    inputs = np.array([[300.0, -500.0], [1.0, 0.3], [1.0, 0.3], [400.0, 0.7]])[::order]
    gradient = np.asarray(LOGISTIC.gradient(beta, x, y))
    expected = exact(inputs, np.ones(4), beta, gradient) * len(inputs) / len(x)
    found = LOGISTIC.population_natural_gradient(beta, x, y, inputs)
    assert relative(found, expected) < 1e-11


def test_dependent_inputs_of_a_population_raise(rng):
    x, y = data(rng, 5, 2)
    beta, inputs = rng.standard_normal(2), rng.standard_normal((40, 1)) * np.ones(2)
    with pytest.raises(ValueError, match="inputs must be rows of rank 2"):
        LOGISTIC.population_natural_gradient(beta, x, y, inputs)
    traced = jax.jit(LOGISTIC.population_natural_gradient)
    assert np.all(np.isnan(traced(beta, x, y, jnp.asarray(inputs))))


def test_no_direction_without_inputs():
    with pytest.raises(ValueError, match="no homogeneous linear classifier"):
        LOGISTIC.limit_direction(np.zeros((3, 2)), np.ones(3))
