"""A small curved problem for step rules, momenta and the optimiser, and its A and r by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import normal

import pullback as pb
from pullback._base.tree import structure
from pullback._natural.subproblem import subproblem
from pullback._problem.validate import validate


def curved(params, x):
    """Two outputs per sample, ten parameters."""
    return jnp.tanh(x @ params["w"]) @ params["v"] + params["b"][None, :]


PARAMS = {"b": normal(2, seed=3), "v": normal(2, 2, seed=4), "w": normal(2, 2, seed=5)[:, :2]}
X, Y = normal(3, 2, seed=6), normal(3, 2, seed=7)


def half_square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


PROBLEM = pb.Composite(curved, half_square)


def dense(problem=PROBLEM, params=PARAMS, batch=(X, Y)):
    """A and r with the Euclidean metric and `Mean()`, by NumPy."""
    like = structure(params)
    f = lambda flat: problem.model(like.unravel(flat), batch[0])
    point = like.ravel(params)
    n = batch[0].shape[0]
    a = np.asarray(jax.jacobian(lambda v: f(v).ravel())(point)) / np.sqrt(n)
    return a, np.asarray((f(point) - batch[1]).ravel()) / np.sqrt(n), np.asarray(point)


def flat(params):
    return np.asarray(structure(params).ravel(params))


def close(a, b, tolerance=1e-9):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def near(solver, inverse=None, rule=None):
    """The subproblem that a step rule receives."""
    opt = pb.NaturalGradientDescent(PROBLEM, inverse=inverse, solver=solver, step=rule)
    return subproblem(PROBLEM, *validate(PROBLEM, PARAMS, (X, Y)), opt.strategy)
