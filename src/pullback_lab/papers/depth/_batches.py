r"""Descent on a logistic model in batches, drawn anew for every step, and what it averages to.

The batch enters through the gradient, and through the Fisher matrix if that is the batch's own. In
small steps a run follows the flow of the *mean* of its field over batches B,

\[ \dot\beta = -\mathbb E_B\,\nabla L_B, \qquad -F^+\,\mathbb E_B\nabla L_B, \qquad -\mathbb
E_B\,F_B^+\nabla L_B, \]

at a distance of the order of the root of the step. The first two means are the fields of all data.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.integrate import solve_ivp

import pullback as pb
from pullback.linear import Logistic

from ._logistic import LINEAR, gradient, interpolating_logits

SAMPLES, COLUMNS, BATCH = 8, 12, 2
STEPS = (32, 256)
"""Numbers of steps to t = 1."""
RUNS = 48


def drawn(key: PRNGKeyArray, step: Array, samples: int, size: int) -> Int[Array, " size"]:
    """The batch of a step, without replacement."""
    return jax.random.choice(jax.random.fold_in(key, step), samples, (size,), replace=False)


def euclidean(beta: Array, x: Array, y: Array, which: Array) -> Float[Array, " D"]:
    """The gradient of the mean loss of the batch."""
    return Logistic().gradient(beta, x[which], y[which]) / which.size


def all_data(beta: Array, x: Array, y: Array, which: Array) -> Float[Array, " D"]:
    """The same, with the Fisher matrix of all data."""
    return pb.natural_gradient(
        LINEAR,
        beta,
        (x[which], (y[which] + 1) / 2),
        metric_batch=(x,),
        solver=pb.solver.SVD(),
        throw=False,
    ).vector


def own(beta: Array, x: Array, y: Array, which: Array) -> Float[Array, " D"]:
    """The same, with the Fisher matrix of the batch."""
    return Logistic().natural_gradient(beta, x[which], y[which])


FIELDS = {"Euclidean": euclidean, "Fisher of all data": all_data, "Fisher of the batch": own}


@functools.partial(jax.jit, static_argnames=("kind", "steps", "size"))
def descend(
    kind: str, x: Array, y: Array, keys: PRNGKeyArray, until: float, steps: int, size: int
) -> Float[Array, "runs D"]:
    """β at a time, from zero, one run per key and data set (x and y have a leading axis)."""

    def run(x, y, key):
        def step(beta, i):
            which = drawn(key, i, x.shape[0], size)
            return beta - until / steps * FIELDS[kind](beta, x, y, which), None

        return jax.lax.scan(step, jnp.zeros(x.shape[1]), jnp.arange(steps))[0]

    return jax.vmap(run)(x, y, keys)


def deviations(
    kind: str, x: np.ndarray, y: np.ndarray, key: PRNGKeyArray, end: np.ndarray
) -> np.ndarray:
    """Root mean squares of the distances from `end` at t = 1, relative to it; one for each number
    of steps.
    """
    many = lambda a: jnp.broadcast_to(jnp.asarray(a), (RUNS, *a.shape))
    keys = jax.random.split(key, RUNS)
    found = [
        np.asarray(descend(kind, many(x), many(y), keys, 1.0, steps, BATCH)) for steps in STEPS
    ]
    squares = [np.mean(np.sum((beta - end) ** 2, axis=1)) for beta in found]
    return np.sqrt(squares) / np.linalg.norm(end)


def order(deviation: np.ndarray) -> float:
    """The order in the step, from the first and the last number of steps."""
    return float(np.log(deviation[0] / deviation[-1]) / np.log(STEPS[-1] / STEPS[0]))


def mean_inverse(signed: np.ndarray, size: int) -> np.ndarray:
    """The mean over all batches of the pseudo-inverses of their rows, zero in other columns."""
    samples, columns = signed.shape
    total = np.zeros((columns, samples))
    sets = [list(some) for some in itertools.combinations(range(samples), size)]
    for some in sets:
        total[:, some] += np.linalg.pinv(signed[some])
    return total / len(sets)


def batch_flow(signed: np.ndarray, size: int, times: np.ndarray) -> np.ndarray:
    """The flow of the mean over batches of the natural gradients, from zero, at some times."""
    inverse = mean_inverse(signed, size)
    field = lambda _, beta: inverse @ (1 + np.exp(-(signed @ beta)))
    start = np.zeros(signed.shape[1])
    options = {"method": "LSODA", "rtol": 1e-10, "atol": 1e-10, "t_eval": times}
    return solve_ivp(field, (0.0, times[-1]), start, **options).y.T


def natural_end(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The natural flow of all data from zero at t = 1, by its closed form (independent rows)."""
    return np.linalg.pinv(x) @ interpolating_logits(np.zeros(len(y)), y, 1.0)


def euclidean_end(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The Euclidean flow of the mean loss from zero at t = 1."""
    field = lambda _, beta: -gradient(x, y, beta) / len(y)
    return solve_ivp(field, (0.0, 1.0), np.zeros(x.shape[1]), rtol=1e-10, atol=1e-12).y[:, -1]
