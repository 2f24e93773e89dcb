"""Diagonal networks in closed form, against the pseudo-inverse and the hyperbolic entropy."""

import numpy as np
import pytest
import scipy.integrate
from linear_data import data, dense, relative

from pullback import linear

LOGISTIC = linear.Logistic()


def jacobian(weights):
    """∂β/∂w for weights (L, D), flattened layer by layer."""
    layers = [np.diag(np.prod(np.delete(weights, l, axis=0), axis=0)) for l in range(len(weights))]
    return np.hstack(layers)


ZEROS = {"regular": (), "one zero": ((0, 1),), "two zeros": ((0, 1), (1, 1))}


@pytest.mark.parametrize("zeros", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("n", "d"), [(3, 6), (8, 4)])
def test_diagonal_natural_gradient_is_the_moore_penrose_one(rng, depth, n, d, zeros):
    x, y = data(rng, n, d)
    weights = rng.standard_normal((depth, d))
    for place in zeros:
        if place[0] < depth:
            weights[place] = 0.0
    network, j = linear.Diagonal(depth), jacobian(weights)
    g, f = dense(x, y, np.prod(weights, axis=0))
    expected = np.linalg.pinv(j.T @ f @ j, rcond=1e-11) @ (j.T @ g)
    assert relative(np.ravel(network.natural_gradient(weights, x, y)), expected) < 1e-8
    assert relative(np.ravel(network.gradient(weights, x, y)), j.T @ g) < 1e-12


def test_the_lift_is_the_closed_form_where_the_fisher_matrix_is_regular(rng):
    x, y = data(rng, 9, 4)
    weights = rng.standard_normal((3, 4))
    network = linear.Diagonal(3)
    d_beta = LOGISTIC.natural_gradient(network.product(weights), x, y)
    assert (
        relative(network.lift(weights, d_beta), np.asarray(network.natural_gradient(weights, x, y)))
        < 1e-10
    )
    vector = rng.standard_normal(4)
    assert (
        relative(
            np.ravel(network.lift(weights, vector)), np.linalg.pinv(jacobian(weights)) @ vector
        )
        < 1e-13
    )
    tiny = network.lift(1e-120 * weights, vector)
    assert (
        relative(
            np.sum(np.asarray(network.cofactors(1e-120 * weights)) * np.asarray(tiny), axis=0),
            vector,
        )
        < 1e-12
    )


def test_flow_of_depth_2_is_a_projection_in_the_hyperbolic_entropy(rng):
    x, y = data(rng, 3, 6)
    weights = 0.4 * rng.standard_normal((2, 6))

    def field(_, flat):
        w = flat.reshape(2, 6)
        g, f = dense(x, y, np.prod(w, axis=0))
        j = jacobian(w)
        return -np.linalg.pinv(j.T @ f @ j, rcond=1e-12) @ (j.T @ g)

    end = (
        scipy.integrate.solve_ivp(field, (0, 4.0), weights.ravel(), rtol=1e-10, atol=1e-12)
        .y[:, -1]
        .reshape(2, 6)
    )
    ours = linear.Diagonal(2).flow(weights, x, y, 4.0)
    assert relative(ours, np.prod(end, axis=0)) < 1e-6
    assert relative(ours, np.asarray(LOGISTIC.flow(np.prod(weights, axis=0), x, y, 4.0))) > 0.05


def test_from_small_weights_depth_2_tends_to_the_least_l1_interpolant(rng):
    x, y = data(rng, 4, 12)
    least = np.asarray(linear.l1_interpolant(x, y))
    assert np.allclose(x @ least, y)
    assert np.count_nonzero(np.abs(least) > 1e-9) <= 4
    cosine = lambda a: float(a @ least / np.linalg.norm(a) / np.linalg.norm(least))
    found = [
        cosine(np.asarray(linear.hyperbolic_projection(x, 40 * y, np.zeros(12), np.full(12, k))))
        for k in (1e-1, 1e-4, 1e-30)
    ]
    assert found == sorted(found)
    assert found[-1] > 1 - 1e-6
    assert cosine(np.asarray(linear.l2_interpolant(x, y))) < 0.95


def test_small_layers_in_single_precision(rng):
    """The squares of cofactors of 1e-21 underflow; their norms do not."""
    x, y = data(rng, 8, 2)
    weights = np.full((8, 2), 1e-3)
    expected = np.asarray(linear.Diagonal(8).natural_gradient(weights, x, y))
    found = linear.Diagonal(8).natural_gradient(*(a.astype(np.float32) for a in (weights, x, y)))
    assert relative(found, expected) < 1e-5


def test_a_projection_on_the_kernel_and_in_single_precision(rng):
    x, beta, kappa = np.array([[1.0, 1.0]]), np.array([1.0, 0.5]), np.ones(2)
    found = np.asarray(linear.hyperbolic_projection(x, np.zeros(1), beta, kappa))
    # Opposite entries, whose gradients of the entropy differ as those of beta do.
    gradient = lambda b: np.arcsinh(2 * b / kappa) / 2
    assert abs(np.sum(found)) < 1e-9
    assert np.ptp(gradient(found) - gradient(beta)) < 1e-9
    assert not np.any(linear.hyperbolic_projection(x, np.zeros(1), np.zeros(2), kappa))
    for _ in range(5):
        x, target = rng.standard_normal((3, 6)), 3 * rng.standard_normal(3)
        beta, kappa = rng.standard_normal(6), rng.uniform(0.1, 2.0, 6)
        expected = np.asarray(linear.hyperbolic_projection(x, target, beta, kappa))
        single = (a.astype(np.float32) for a in (x, target, beta, kappa))
        assert relative(linear.hyperbolic_projection(*single), expected) < 1e-4


def test_more_rows_than_columns_raise(rng):
    x, y = data(rng, 5, 2)
    with pytest.raises(ValueError, match=r"Diagonal\.flow.*N <= D, not \(5, 2\)"):
        linear.Diagonal(2).flow(rng.standard_normal((2, 2)), x, y, 1.0)
    with pytest.raises(ValueError, match=r"x must be of shape \(N, D\) with N <= D, not \(5, 2\)"):
        linear.hyperbolic_projection(x, y, np.zeros(2), np.ones(2))
