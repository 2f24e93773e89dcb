"""Reparametrisations and their inverses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb


def test_maps_invert_each_other_and_an_inverse_is_found():
    params = {"a": jnp.asarray([0.7, 1.3]), "n": 3}
    maps = (
        pb.Exponential(),
        pb.Units({"a": jnp.asarray([2.0, 3.0]), "n": None}),
        pb.Cubic(jnp.zeros(2), 0.5),
        pb.random_reparametrisation(params, jax.random.key(0)),
        pb.Reparametrisation(lambda p: {"a": p["a"] + 0.3 * jnp.sin(p["a"]), "n": p["n"]}),
    )
    for f in maps:
        new = f.inverse(params)
        assert np.allclose(f(new)["a"], params["a"], rtol=1e-13) and new["n"] == 3
        dense = f.jacobian(new)
        pushed = f.push(new, {"a": jnp.ones(2), "n": None})["a"]
        assert np.allclose(pushed, np.asarray(dense) @ np.ones(2))
    sinh = pb.Reparametrisation(
        lambda new: jax.tree.map(lambda x: jnp.sinh(x) if eqx.is_inexact_array(x) else x, new)
    )
    assert np.allclose(sinh.inverse(params)["a"], np.arcsinh(params["a"]), rtol=1e-13)
    lost = pb.Reparametrisation(lambda p: {"a": p["a"] ** 2, "n": p["n"]})
    with pytest.raises(ValueError, match=r"Newton's method did not find.*inverse="):
        lost.inverse({"a": jnp.asarray([-1.0, 1.0]), "n": 3})
