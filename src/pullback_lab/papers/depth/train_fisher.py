r"""Which Fisher matrix is the identity. Section 2.3 averages the Fisher matrix over the training
data; section 4 takes \(F(\beta) = I\) for matrix completion. But the training data are the observed
entries, and averaged over them the Fisher matrix is the *mask*, \(F = \mathrm{diag}(1_\Omega)\),
singular wherever something is left to complete. \(F = I\) is that of all entries, the population
Fisher matrix.

**Corrected.** With the mask, Moore-Penrose and two or more factors, the observed entries follow the
line of `statement_completion` and the unobserved ones *move*: what the metric does not see is
decided by the gauge, the step of least norm in the factors, and so by the depth. From small factors
this completes a matrix of low rank. "Natural gradient fails completely" is a statement on \(F =
I\).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._products import jacobian, product
from .statement_completion import problem

SIZE = 8
OBSERVED = 44


def error(beta: np.ndarray, target: np.ndarray, hidden: np.ndarray) -> float:
    """The relative error on the unobserved entries."""
    return float(np.linalg.norm((beta - target) * hidden) / np.linalg.norm(target * hidden))


def completed(composite: pb.Composite, factors: list[Array]) -> np.ndarray:
    """The product at t = 6 of the natural flow."""
    options = {"t1": 6.0, "ts": np.array([6.0]), "rtol": 1e-6, "atol": 1e-8, "rank": None}
    return np.asarray(product(pb.flow(composite, factors, **options).params))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A matrix of rank one, two factors, small start; both metrics."""
    rng = generator(key)
    masked_errors = []
    full_errors = []
    fits = []
    gauge = []
    for _ in range(budget.seeds):
        target = np.outer(rng.choice([-1.0, 1.0], SIZE), rng.uniform(0.5, 1.5, SIZE))
        seen = (rng.permutation(SIZE**2).reshape(SIZE, SIZE) < OBSERVED) * 1.0
        mask = pb.metric.Masked(pb.metric.Euclidean(), jnp.asarray(seen > 0))
        factors = [jnp.asarray(0.03 * rng.standard_normal((SIZE, SIZE))) for _ in range(2)]
        start = np.asarray(product(factors))
        end = completed(problem(product, target, seen, mask), factors)
        masked_errors.append(error(end, target, 1 - seen))
        full = completed(problem(product, target, seen), factors)
        full_errors.append(error(full, target, 1 - seen))
        fits.append(distance(end * seen, seen * (target + (start - target) * np.exp(-6.0))))
        w = [np.asarray(f) for f in rng.standard_normal((2, SIZE, SIZE))]
        a = seen.ravel()[:, None] * jacobian(w)
        least = np.linalg.pinv(a, rcond=1e-10) @ (seen * (w[0] @ w[1] - target)).ravel()
        ng = pb.natural_gradient(problem(product, target, seen, mask), [jnp.asarray(f) for f in w])
        gauge.append(distance(np.concatenate([np.asarray(v).ravel() for v in ng.vector]), least))
    rows = (
        at_least(
            "training Fisher: error on unobserved entries, relative to that with F = I",
            min(m / f for m, f in zip(masked_errors, full_errors, strict=True)),
            0.99,
        ),
        at_most(
            "training Fisher: mean error on unobserved entries",
            np.mean(masked_errors),
            0.5,
            Role.CORRECTED,
        ),
        at_least("F = I: they stay at their start, error", min(full_errors), 0.95, Role.CORRECTED),
        at_most(
            "training Fisher: observed entries on the line all the same",
            max(fits),
            1e-4,
            Role.CORRECTED,
        ),
        at_most("the step is the one of least norm, NumPy", max(gauge), 1e-9, Role.CONTROL),
    )
    return Measured(rows, {"masked": np.array(masked_errors), "full": np.array(full_errors)})


CLAIM = Claim(
    name="depth-train-fisher",
    source="depth",
    place="section 2.3 against section 4",
    quotation=(
        "In this article we use the empirical distribution of training data ... we can consider "
        "F(β) the identity"
    ),
    statement=(
        "In matrix completion the Fisher matrix, averaged on the training data, can be taken to "
        "be the identity, so that natural gradient does not move unobserved entries."
    ),
    verdict=Verdict.CORRECTED,
    stands=False,
    run=run,
    correction=(
        "The identity is the Fisher matrix of all entries. Averaged on the training data it is "
        "the mask; with it and Moore-Penrose, natural gradient does complete the matrix."
    ),
    key_number="training Fisher: mean error on unobserved entries",
)
