"""Vectors and covectors: which may be added, paired or subtracted from parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb

X = normal(3, 2, seed=1)


def test_vectors_and_covectors_know_which_they_are():
    problem = pb.Composite(
        lambda p: jnp.concatenate([p["w"] ** 2, p["w"] * p["b"]]), lambda z: jnp.sum(jnp.sin(z))
    )
    params = {"w": normal(2, seed=1), "b": jnp.asarray([0.7, -0.2])}
    g = pb.differential(problem, params)
    metric = pb.pullback(problem, params, solver=pb.solver.SVD())
    v = metric.sharp(g)
    assert (
        isinstance(g, pb.CotangentVector)
        and isinstance(v, pb.TangentVector)
        and isinstance(metric.flat(v), pb.CotangentVector)
    )
    moved = params - 0.1 * v
    plain = pb.natural_gradient(problem, params)
    assert np.allclose(moved["w"], params["w"] - 0.1 * plain.vector["w"], atol=1e-12)
    assert np.isclose(g @ v, metric.norm(v) ** 2, rtol=1e-10) and np.allclose(
        (g + g - g).tree["w"], plain.covector["w"]
    )
    assert isinstance(metric.sharp(plain.covector), dict)
    for wrong, words in (
        (lambda: params - g, "cannot be subtracted from parameters: sharp is missing"),
        (
            lambda: params["w"] + pb.CotangentVector(1.0),
            "cannot be added to parameters: sharp is missing",
        ),
        (lambda: np.ones(2) + pb.CotangentVector(1.0), "sharp is missing"),
        (
            lambda: metric.flat(metric.flat(v)),
            "flat takes a vector, got a covector: sharp is missing",
        ),
        (lambda: metric.sharp(v), "sharp takes a covector, got a vector: flat is missing"),
        (lambda: v + g, "a covector cannot be added to a vector: sharp is missing"),
        (lambda: g - v, "a vector cannot be subtracted from a covector: flat is missing"),
        (lambda: metric.norm(g), "norm takes a vector"),
        (lambda: g @ g, "a covector is paired with a TangentVector"),
        (lambda: v @ g, "covector @ vector is the pairing"),
    ):
        with pytest.raises(TypeError, match=words):
            wrong()
    # Nothing is left of the wrappers in a compiled program.
    wrapped = jax.make_jaxpr(lambda t: (2.0 * pb.TangentVector(t) + pb.TangentVector(t)).tree)(X)
    assert str(wrapped) == str(jax.make_jaxpr(lambda t: t * 2.0 + t)(X))
