"""A penalty: its value and differential, and where an optimiser takes it."""

import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb

BOX = pb.constraint.Clipping(0.0, 1.0)
PROBLEM = pb.Composite(lambda p: p["w"], lambda z: jnp.sum(z**2) / 2)


def test_a_penalty_is_a_function_of_the_parameters():
    penalty = pb.constraint.Penalty(BOX, 10.0)
    params = {"w": jnp.asarray([1.5, 0.25, -0.2]), "n": 3}
    assert np.isclose(penalty(params), 10 * 0.5**2 / 2)
    covector = penalty.covector(params)
    assert np.allclose(covector["w"], [5.0, 0.0, 0.0]) and covector["n"] is None
    inside = {"w": jnp.asarray([0.0, 0.5, 1.0]), "n": 3}
    assert float(penalty(inside)) == 0 and not np.any(penalty.covector(inside)["w"])
    # The strength takes the dtype of the parameters, also where promotion is an error.
    single = pb.constraint.Penalty(BOX, jnp.asarray(2.0))(jnp.asarray([2.0], jnp.float32))
    assert single.dtype == jnp.float32 and float(single) == 1.0


def test_what_is_no_penalty_and_no_constraint():
    with pytest.raises(ValueError, match=r"Penalty\(strength=0.0\): strength must be positive"):
        pb.constraint.Penalty(BOX, 0.0)
    with pytest.raises(ValueError, match=r"Penalty\(constraint=.*a set of pullback.constraint"):
        pb.constraint.Penalty(lambda p: p, 1.0)
    penalty = pb.constraint.Penalty(BOX, 1.0)
    with pytest.raises(ValueError, match=r"NaturalGradientDescent\(penalty=\.\.\.\)"):
        pb.NaturalGradientDescent(PROBLEM, constraint=penalty)
    with pytest.raises(ValueError, match=r"NaturalGradientDescent\(constraint=\.\.\.\)"):
        pb.NaturalGradientDescent(PROBLEM, penalty=BOX)
