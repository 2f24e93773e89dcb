"""Functions of symmetric matrices, and what a Hessian does with negative eigenvalues."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry_metrics import compiled, normal

from pullback import metric as m
from pullback.metric._roots import ABSOLUTE, CLIP, INVERSE, INVERSE_SQRT, SQRT, spectral


def test_loss_hessian_spectrum_is_a_type():
    loss, y = lambda z, y: jnp.sum(y * z**2) / 2, jnp.array([2.0, -3.0])
    z = normal(2)
    observed = lambda spectrum: m.LossHessian(loss, spectrum).observe(y, jnp.asarray(0))
    np.testing.assert_allclose(
        compiled(observed(m.Clip()).matrix, z), np.diag([2.0, 0.0]), atol=1e-15
    )
    np.testing.assert_allclose(
        compiled(observed(m.Absolute()).matrix, z), np.diag([2.0, 3.0]), atol=1e-15
    )
    assert np.isnan(compiled(observed(m.Refuse()).root, z).factor).any()
    assert (observed(m.Refuse()).has_divergence, observed(m.Clip()).has_divergence) == (True, False)
    with pytest.raises(TypeError, match="without a divergence"):
        observed(m.Absolute()).divergence(z, z)


@pytest.mark.parametrize("function", [SQRT, INVERSE_SQRT, INVERSE, CLIP, ABSOLUTE])
def test_spectral_derivative_where_eigenvalues_coincide(function):
    signs = (1, 1, -1) if function in (CLIP, ABSOLUTE) else (1, 1, 1)
    frame = np.linalg.qr(np.asarray(normal(3, 3)))[0]
    matrix = jnp.asarray(frame @ np.diag(np.multiply((1.0, 1.0 + 1e-9, 3.0), signs)) @ frame.T)
    step = normal(3, 3, seed=1)
    step = step + step.T
    h = 1e-5

    def both(matrix):
        _, slope = jax.jvp(lambda x: spectral(function, x), (matrix,), (step,))
        return slope, (
            spectral(function, matrix + h * step) - spectral(function, matrix - h * step)
        ) / (2 * h)

    slope, difference = compiled(both, matrix)
    np.testing.assert_allclose(slope, difference, atol=1e-7)


def test_spectral_functions_vanish_on_the_kernel_and_know_their_noise():
    a = normal(4, 2)
    matrix = a @ a.T
    np.testing.assert_allclose(
        compiled(lambda x: spectral(INVERSE, x), matrix),
        np.linalg.pinv(matrix, rtol=1e-10),
        rtol=1e-9,
        atol=1e-12,
    )
    inverse = jax.jit(lambda x: spectral(INVERSE, x))
    noisy = matrix - 20 * 4 * jnp.finfo(float).eps * jnp.linalg.norm(matrix, 2) * jnp.eye(4)
    assert (
        np.abs(inverse(noisy)).max() < 10
    )  # a little below zero is noise, and so is as much above it
    assert np.isnan(inverse(matrix - 1e-10 * jnp.eye(4))).all()
