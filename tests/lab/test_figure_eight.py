"""The figure eight of Appendix A.2, corrected: the numbers, and what is wrong with the printed
ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback_lab.papers.invariance.figure_eight import (
    DOMAIN,
    PRINTED_DOMAIN,
    phi,
    preimages,
    psi,
    pushforward,
)


@pytest.mark.parametrize(
    ("curve", "at", "expected"),
    [(phi, 0.0, (0.8, 0.4)), (phi, np.pi, (0.8, -0.4)), (psi, 0.0, (0.8, -0.4))],
)
def test_natural_gradients_in_the_crossing(curve, at, expected):
    np.testing.assert_allclose(
        pushforward(curve, at, np.array([1.0, 0.0])), expected, rtol=0, atol=1e-14
    )


def test_a_reparametrisation_does_not_change_it():
    """θ = π corresponds to ξ = 0: Theorem 2 applies, and the two agree."""
    for differential in np.eye(2):
        np.testing.assert_allclose(
            pushforward(psi, np.pi, differential),
            pushforward(phi, 0.0, differential),
            rtol=0,
            atol=1e-14,
        )


def test_metric_and_tangents_in_the_crossing():
    np.testing.assert_allclose(jax.jacfwd(phi)(jnp.zeros(1)).ravel(), [2.0, 1.0], atol=1e-15)
    np.testing.assert_allclose(jax.jacfwd(psi)(jnp.zeros(1)).ravel(), [-2.0, 1.0], atol=1e-15)
    np.testing.assert_allclose(
        pb.pullback(pb.Composite(phi, loss=jnp.sum), jnp.zeros(1)).matrix(), [[5.0]], rtol=1e-15
    )


def test_preimages_of_the_crossing():
    np.testing.assert_allclose(preimages(DOMAIN), [0.0, np.pi], atol=1e-12)
    np.testing.assert_allclose(preimages(PRINTED_DOMAIN), [0.0], atol=1e-12)
    np.testing.assert_allclose(
        phi(jnp.array([np.pi / 2])), [0.0, 1.0], atol=1e-15
    )  # the printed ξ₂ is elsewhere


def test_the_two_agree_for_no_differential_but_zero(rng):
    for differential in rng.standard_normal((5, 2)):
        gap = pushforward(phi, 0.0, differential) - pushforward(psi, 0.0, differential)
        np.testing.assert_allclose(gap, 0.8 * differential[::-1], rtol=0, atol=1e-13)
    np.testing.assert_array_equal(
        pushforward(phi, 0.0, np.zeros(2)), pushforward(psi, 0.0, np.zeros(2))
    )
