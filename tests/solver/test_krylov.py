"""Conjugate gradients: scales, true residuals, a start that is given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance
from zoo import small

import pullback as pb
from pullback.solver._iterations import conjugate_gradients


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("size", [1.0, 0.0, 1e-200, 1e200, np.nan])
def test_conjugate_gradients_are_blind_to_the_size_of_the_right_hand_side(size):
    rng = np.random.default_rng(7)
    matrix = rng.standard_normal((12, 12))
    matrix = matrix @ matrix.T + np.eye(12)
    # One sample is saturated: its residual never gets small beside its own component.
    b = rng.standard_normal(12) * 10.0 ** np.where(np.arange(12) == 3, -40, 0)
    found, steps = conjugate_gradients(
        lambda y: matrix @ y, lambda y: y, jnp.asarray(size * b), 1e-13, 1000
    )
    np.testing.assert_allclose(found, size * np.linalg.solve(matrix, b), rtol=1e-10)
    assert int(steps) < 30


def test_the_residual_that_is_met_is_the_true_one():
    """Over eight decades the residual of the recurrence falls below the tolerance where the true
    one has not.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        vectors = np.linalg.qr(rng.standard_normal((80, 80)))[0]
        matrix = (vectors * 10.0 ** np.linspace(0, -8, 80)) @ vectors.T
        b = rng.standard_normal(80)
        found = conjugate_gradients(
            lambda y, matrix=matrix: matrix @ y, lambda y: y, jnp.asarray(b), 1e-8, 10_000
        )[0]
        assert np.linalg.norm(b - matrix @ found) < 1.01e-8 * np.linalg.norm(b), seed


def test_a_good_start_saves_products():
    problem, params, batch, inverse = small(1e-4)
    exact = pb.natural_gradient(
        problem, params, batch, inverse=inverse, solver=pb.solver.SVD()
    ).vector
    again = pb.natural_gradient(
        problem, params, batch, inverse=inverse, solver=pb.solver.Krylov(start=exact)
    )
    assert distance(again.vector, exact) < 1e-12
