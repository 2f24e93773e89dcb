r"""Section 4. A step may leave a constrained parameter space; back-projection, weight clipping or a
penalty are to avoid that.

Back-projection and clipping do, and so does a penalty that is a barrier, \(-\mu\log\theta\). The
usual quadratic penalty \(\tfrac s2\,\mathrm{dist}(\theta, C)^2\) does not: for \(L =
\tfrac12(\theta + 1)^2\) on \(\theta \ge 0\) natural gradient descent with it comes to rest where
\(\theta + 1 + s\theta = 0\), at \(\theta = -1/(1 + s)\), outside for every strength \(s\). An exact
penalty, \(s\,\mathrm{dist}(\theta, C)\), lies between: above the multiplier of the constraint, here
1, it comes to rest on the border, and on its way goes outside by a step at most; below, it comes to
rest outside, at \(s - 1\).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._numbers import distance, generator

STRENGTHS = (10.0, 100.0, 1000.0)
BARRIER = 0.1
EXACT = 2.0
"""The strength of the exact penalty: the multiplier is 1."""
STEPS = 300


def rate(count):
    """Steps that shrink, so that a penalty with a kink can come to rest."""
    return 0.5 / (1 + count / 10)


def covariance(p, x):
    """The same Gaussian for every sample."""
    count = x.shape[0]
    return {"mean": jnp.zeros((count, 2)), "covariance": jnp.broadcast_to(p, (count, 2, 2))}


def at_rest(strength: float) -> float:
    """Where natural gradient descent with a penalty comes to rest."""
    problem = pb.Composite(lambda p: p, loss=lambda z: jnp.sum((z + 1) ** 2) / 2)
    penalty = pb.constraint.Penalty(pb.constraint.Clipping(0.0, 1e6), strength)
    p = jnp.array([0.5])
    for _ in range(6):  # outside, 1/(1 + s) is the step of Newton
        p = pb.constrained_step(
            problem, p, step=1 / (1 + strength) if float(p[0]) < 0 else 0.5, constraint=penalty
        ).params
    return float(p[0])


def with_barrier() -> tuple[float, float]:
    """Natural gradient descent with the barrier: the least θ on the way, and the last one."""
    loss = lambda z: jnp.sum((z + 1) ** 2 / 2 - BARRIER * jnp.log(z))
    problem = pb.Composite(lambda p: p, loss=loss)
    p = jnp.array([0.5])
    path = []
    for _ in range(60):
        p = p - 0.05 * pb.natural_gradient(problem, p).vector
        path.append(float(p[0]))
    return min(path), path[-1]


def with_kink(strength: float) -> np.ndarray:
    """Natural gradient descent with an exact penalty: its path."""
    problem = pb.Composite(lambda p: p, loss=lambda z: jnp.sum((z + 1) ** 2) / 2)
    box = pb.constraint.Clipping(0.0, 1e6)
    optimiser = pb.NaturalGradientDescent(
        problem, step=pb.step.Fixed(rate), penalty=lambda p: strength * box.violation(p)
    )
    start = jnp.array([0.5])
    walk = lambda carry, _: (optimiser.step(*carry)[:2], carry[0][0])
    (last, _), path = jax.lax.scan(walk, (start, optimiser.init(start)), None, length=STEPS)
    return np.append(np.asarray(path), float(last[0]))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A covariance matrix with a long step, then a half line with a penalty."""
    y = jnp.asarray(generator(key).standard_normal((40, 2)) @ np.array([[0.3, 0.1], [0.0, 0.2]]))
    sigma = jnp.asarray([[2.0, 0.1], [0.1, 0.1]])
    x = jnp.zeros((40, 1))
    problem = pb.Composite(covariance, metric=pb.metric.GaussianMeanCovariance())
    matrices = pb.constraint.PositiveDefinite(0.01)
    back = pb.constrained_step(problem, sigma, (x, y), step=1.2, constraint=matrices)
    inside = pb.constrained_step(problem, sigma, (x, y), step=0.5, constraint=matrices)
    box = pb.constraint.Clipping(0.0, 1.0)
    line = pb.Composite(lambda p: p, loss=lambda z: jnp.sum((z + 1) ** 2) / 2)
    clipped = pb.constrained_step(line, jnp.array([0.5]), step=1.0, constraint=box)
    # By NumPy, not by what the library says of itself.
    eigenvalues = [np.linalg.eigvalsh(np.asarray(m)).min() - 0.01 for m in (back.free, back.params)]
    values, vectors = np.linalg.eigh(np.asarray(back.free))
    nearest = (vectors * np.maximum(values, 0.01)) @ vectors.T
    least, end = with_barrier()
    ends = [at_rest(strength) for strength in STRENGTHS]
    order = np.log(ends[-1] / ends[-2]) / np.log(STRENGTHS[-1] / STRENGTHS[-2])
    return Measured(
        (
            at_most(
                "a step of 1.2 leaves the covariance matrices: least eigenvalue beyond the bound",
                eigenvalues[0],
                -1e-3,
            ),
            at_least("back-projection: the same after it", eigenvalues[1], -1e-14),
            at_most(
                "back-projection is to the nearest of these matrices, off by",
                distance(back.params, nearest),
                1e-13,
                Role.CONTROL,
            ),
            at_least("clipping to [0, 1]: the value, which would be -1", clipped.params[0], 0.0),
            at_least("a penalty that is a barrier: how far inside, all steps", least, 1e-3),
            at_most(
                "it comes to rest where θ² + θ = μ, off by",
                abs(end**2 + end - BARRIER),
                1e-6,
                Role.CONTROL,
            ),
            at_most(
                "a quadratic penalty of strength s comes to rest outside, at -1/(1 + s), off by",
                max(abs(end + 1 / (1 + s)) for end, s in zip(ends, STRENGTHS, strict=True)),
                1e-9,
                Role.CONTROL,
            ),
            at_most(
                "so its violation falls like 1/s, |order + 1|", abs(order + 1), 0.02, Role.CONTROL
            ),
            *_exact_rows(with_kink(EXACT), with_kink(EXACT / 4)),
            at_most(
                "a step of 0.5 stays inside and is moved by the rounding of its symmetry at most",
                inside.correction,
                1e-15,
                Role.CONTROL,
            ),
        )
    )


def _exact_rows(strong: np.ndarray, weak: np.ndarray) -> tuple[Row, ...]:
    """The rows on exact penalties, above and below the multiplier."""
    last = float(rate(STEPS))
    return (
        at_most(
            "an exact penalty, s = 2: how far from the border in the end, in steps",
            np.abs(strong[-20:]).max() / last,
            1.5,
            Role.CONTROL,
        ),
        at_least(
            "on the way it goes outside, by",
            -strong.min(),
            1e-3,
            Role.CONTROL,
        ),
        at_most(
            "an exact penalty below the multiplier, s = 1/2, comes to rest at s - 1, off by",
            abs(weak[-1] + 1 - EXACT / 4),
            1e-6,
            Role.CONTROL,
        ),
    )


CLAIM = Claim(
    name="constraints",
    source="invariance",
    place="Section 4, practical considerations",
    quotation=(
        "One can use backprojection, addition of a penalty, and weight clipping to avoid these "
        "violations."
    ),
    statement=(
        "In a constrained parameter space a step may lead outside; back-projection, a penalty "
        "(here a barrier) and weight clipping avoid it."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    remark=(
        "The penalty must be chosen for it: a quadratic one limits the violation, in inverse "
        "proportion to its strength, and does not avoid it. An exact penalty, proportional to the "
        "distance, ends on the border if it is stronger than the multiplier of the constraint, "
        "with steps outside on the way."
    ),
    key_number="a penalty that is a barrier: how far inside, all steps",
)
