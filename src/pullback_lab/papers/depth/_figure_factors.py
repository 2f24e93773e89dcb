r"""Matrix completion by products of matrices: the task, and Euclidean flow in the factors.

The matrix to complete has rank R and \(\lVert\beta_\star\rVert_F = D\); the entries of the initial
product have standard deviation \(\varepsilon\) at every depth. The loss is
\(\tfrac12\sum_\Omega(\beta - \beta_\star)^2\). A flow is followed until its error on the observed
entries is a thousandth, or a bound on the evaluations is reached.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import RK45


class Completion(NamedTuple):
    """A matrix and where it is observed."""

    truth: np.ndarray
    mask: np.ndarray


class Completed(NamedTuple):
    """The end of a flow."""

    beta: np.ndarray
    fit: float
    """Error on the observed entries, relative."""
    evaluations: int


def sample_task(rng: np.random.Generator, size: int, rank: int, observed: int) -> Completion:
    """A task."""
    truth = rng.standard_normal((size, rank)) @ rng.standard_normal((rank, size))
    mask = np.zeros(size * size, bool)
    mask[rng.choice(size * size, observed, replace=False)] = True
    return Completion(truth * size / np.linalg.norm(truth), mask.reshape(size, size))


def initial(
    rng: np.random.Generator, size: int, depth: int, scale: float = 1e-3, inside: int = 1
) -> list[np.ndarray]:
    """Factors whose product has entries of given standard deviation; each factor may itself be a
    product of several ("collapsed").
    """
    total = depth * inside
    deviation = (scale * size ** (-(total - 1) / 2)) ** (1 / total)
    draws = [
        [deviation * rng.standard_normal((size, size)) for _ in range(inside)] for _ in range(depth)
    ]
    return [np.linalg.multi_dot(group) if inside > 1 else group[0] for group in draws]


def product(factors: np.ndarray | list[np.ndarray]) -> np.ndarray:
    """From left to right."""
    result = factors[0]
    for w in factors[1:]:
        result = result @ w
    return result


def error(beta: np.ndarray, task: Completion) -> float:
    """On the entries that are not observed, relative."""
    hidden = ~task.mask
    return float(np.linalg.norm((beta - task.truth)[hidden]) / np.linalg.norm(task.truth[hidden]))


def euclidean_flow(
    task: Completion, factors: list[np.ndarray], most: int, goal: float = 1e-3, rtol: float = 1e-3
) -> Completed:
    """Euclidean flow in the factors."""
    shape = np.shape(factors)
    seen = np.linalg.norm(task.truth[task.mask])
    count = [0]

    def field(_, flat):
        count[0] += 1
        w = flat.reshape(shape)
        left = [np.where(task.mask, task.truth - product(w), 0.0)]
        for factor in w[:-1]:
            left.append(factor.T @ left[-1])
        after = None
        result = [left[-1]]
        for l in range(len(w) - 2, -1, -1):
            after = w[l + 1] if after is None else w[l + 1] @ after
            result.append(left[l] @ after.T)
        return np.concatenate([part.ravel() for part in result[::-1]])

    solver = RK45(field, 0.0, np.ravel(factors), np.inf, rtol=rtol, atol=1e-6, first_step=1e-4)
    fit = np.inf
    # A trial step that is too long may overflow; the integrator rejects it.
    with np.errstate(over="ignore", invalid="ignore"):
        while solver.status == "running" and count[0] < most and fit > goal:
            solver.step()
            fit = float(
                np.linalg.norm((product(solver.y.reshape(shape)) - task.truth)[task.mask]) / seen
            )
    return Completed(product(solver.y.reshape(shape)), fit, count[0])
