r"""What Figures 4 and 6 have in common: sparse classification, and the flows that are compared on
it.

Inputs are standard normal in D dimensions, labels the signs of the sum of the first S coordinates.
For such inputs the fraction of test points classified rightly is \(1 - \mathrm{angle}(\beta,
\beta_\star)/\pi\), exactly.

*Euclidean flow* of a diagonal network of depth L on the summed logistic loss, up to \(t =
2\cdot10^5\) (2 million steps of length 0.1), in \(s = \log(1 + t)\): \(dw/ds = -e^{s}\,\nabla L\),
which stays of order one where the loss falls as 1/t. The number of evaluations is bounded; where
the bound cuts a run, the time reached is kept.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.integrate import LSODA, RK23
from scipy.special import expit

from pullback.linear import Logistic

LATE = 2e5
"""The time at which Euclidean flow is stopped."""
SPREAD = 0.1
"""Standard deviation of the initial weights of every layer."""


class Task(NamedTuple):
    """Data and the classifier that made them."""

    x: np.ndarray
    y: np.ndarray
    truth: np.ndarray


class Run(NamedTuple):
    """Where a Euclidean flow came to."""

    beta: np.ndarray
    log_time: float
    """log(1 + t) reached."""
    evaluations: int


def sample_task(rng: np.random.Generator, samples: int, dimension: int, support: int) -> Task:
    """A task."""
    truth = np.where(np.arange(dimension) < support, 1.0, 0.0)
    x = rng.standard_normal((samples, dimension))
    return Task(x, np.sign(x @ truth), truth)


def accuracy(beta: np.ndarray, truth: np.ndarray) -> float:
    """The fraction of test points on the right side."""
    cosine = beta @ truth / max(np.linalg.norm(beta) * np.linalg.norm(truth), 1e-300)
    return float(1 - np.arccos(np.clip(cosine, -1, 1)) / np.pi)


def cofactors(w: np.ndarray) -> np.ndarray:
    """The products of the other layers, without division."""
    one = np.ones_like(w[:1])
    before = np.cumprod(np.vstack([one, w[:-1]]), axis=0)
    return before * np.cumprod(np.vstack([one, w[:0:-1]]), axis=0)[::-1]


def euclidean_flow(
    task: Task,
    weights: np.ndarray,
    until: float = LATE,
    most: int = 20000,
    stiff: bool = True,
    rtol: float = 1e-4,
) -> Run:
    """Euclidean flow of a diagonal network."""
    signed = task.y[:, None] * task.x
    count = [0]

    def field(s, flat):
        count[0] += 1
        w = flat.reshape(weights.shape)
        u = signed @ np.prod(w, axis=0)
        pull = signed.T @ expit(-u) * np.exp(s)
        return (cofactors(w) * pull).ravel()

    def jacobian(s, flat):
        w = flat.reshape(weights.shape)
        c = cofactors(w)
        u = signed @ np.prod(w, axis=0)
        pull = signed.T @ expit(-u)
        curvature = (signed.T * (expit(u) * expit(-u))) @ signed
        blocks = [
            [
                -c[l][:, None] * curvature * c[k] + np.diag(_without(w, l, k) * pull)
                for k in range(len(w))
            ]
            for l in range(len(w))
        ]
        return np.exp(s) * np.block(blocks)

    end = float(np.log1p(until))
    start = weights.ravel()
    if stiff:
        solver = LSODA(field, 0.0, start, end, first_step=1e-6, rtol=rtol, atol=1e-8, jac=jacobian)
    else:
        solver = RK23(field, 0.0, start, end, first_step=1e-6, rtol=rtol, atol=1e-8)
    while solver.status == "running" and count[0] < most:
        solver.step()
    return Run(np.prod(solver.y.reshape(weights.shape), axis=0), float(solver.t), count[0])


def _without(w, l, k):
    """∂c_l/∂w_k: the product of the layers but two; zero for l = k."""
    return np.zeros(w.shape[1]) if l == k else np.prod(np.delete(w, (l, k), axis=0), axis=0)


def stepped(task: Task, weights: np.ndarray, rate: float, steps: int) -> np.ndarray:
    """Plain gradient descent, for comparison."""
    signed = task.y[:, None] * task.x
    w = weights.copy()
    for _ in range(steps):
        w = w + rate * cofactors(w) * (signed.T @ expit(-(signed @ np.prod(w, axis=0))))
    return np.prod(w, axis=0)


def natural_flow(task: Task, t: float, start: np.ndarray | None = None) -> np.ndarray:
    """Natural gradient flow at depth 1, Fisher matrix of the training inputs, Moore-Penrose."""
    start = np.zeros(task.x.shape[1]) if start is None else start
    return np.asarray(
        Logistic().flow(
            jnp.asarray(start), jnp.asarray(task.x), jnp.asarray(task.y), t, tolerance=1e-9
        )
    )


def population_descent(task: Task, steps: int, move: float = 0.1) -> np.ndarray:
    """Natural gradient descent from zero with the Fisher matrix of the population, the length of
    each step limited in the norm of β relative to itself (at least one).
    """
    return np.asarray(_population_descent(jnp.asarray(task.x), jnp.asarray(task.y), steps, move))


@jax.jit
def _population_descent(x: Array, y: Array, steps: int, move: float) -> Array:
    """The same, compiled once for each shape."""

    def advance(_, beta):
        step = Logistic().population_natural_gradient(beta, x, y)
        allowed = move * jnp.maximum(1.0, jnp.linalg.norm(beta)) / jnp.linalg.norm(step)
        return beta - step * jnp.minimum(1.0, allowed)

    return jax.lax.fori_loop(0, steps, advance, jnp.zeros(x.shape[1]))


NODES = np.linspace(-1.0, 1.0, 401)


def population_solve(beta: np.ndarray, covector: np.ndarray) -> np.ndarray:
    """(aI + (c - a)bbᵀ)⁻¹ covector, in NumPy: what the library's step is compared with."""
    norm = float(np.linalg.norm(beta))
    reach = min(12.0, 40.0 / max(norm, 1e-3))
    z = reach * NODES
    weights = (
        np.exp(-(z**2) / 2)
        * expit(norm * z)
        * expit(-norm * z)
        * (reach / 200 / np.sqrt(2 * np.pi))
    )
    a = np.sum(weights)
    c = np.sum(z**2 * weights)
    b = beta / norm if norm else beta
    along = b @ covector
    return (covector - along * b) / a + along / c * b
