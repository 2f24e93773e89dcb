"""Constraints: the nearest point of each set, the slack and the violation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb


def test_constraints_project_on_the_nearest_point():
    simplex, cone = pb.constraint.Simplex(), pb.constraint.PositiveDefinite(0.1)
    q = normal(3, 4, seed=1)
    p = simplex(q)
    assert (
        np.allclose(jnp.sum(p, axis=1), 1)
        and float(jnp.min(p)) >= 0
        and np.allclose(simplex(p), p, atol=1e-15)
    )
    # The projection condition <q - p, r - p> <= 0 for every r of the set.
    for r in jax.nn.softmax(normal(20, 4, seed=2)):
        assert np.all(np.asarray(jnp.sum((q - p) * (r[None] - p), axis=1)) <= 1e-12)
    matrix = normal(3, 3, seed=3)
    inside = cone(matrix)
    assert (
        np.isclose(np.linalg.eigvalsh(inside).min(), 0.1)
        and float(cone.slack(matrix)) < 0
        and abs(float(cone.slack(inside))) < 1e-12
    )
    safe = inside + inside.T + jnp.eye(3)
    assert np.array_equal(cone(safe), safe) and np.array_equal(
        simplex(jnp.asarray([0.2, 0.3, 0.5])), [0.2, 0.3, 0.5]
    )
    at = pb.constraint.At(lambda t: t["cov"], cone)
    tree = at({"cov": matrix, "mean": jnp.ones(3)})
    assert np.allclose(tree["cov"], inside) and np.all(np.asarray(tree["mean"]) == 1)
    clip = pb.constraint.Clipping(-0.5, 0.5)
    assert (
        np.abs(clip({"a": q, "n": 3})["a"]).max() == 0.5
        and float(clip.violation(q)) == np.abs(q).max() - 0.5
    )
    with pytest.raises(ValueError, match="lower must not exceed upper"):
        pb.constraint.Clipping(1.0, 0.0)
