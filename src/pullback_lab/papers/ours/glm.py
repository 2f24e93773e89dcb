r"""Iteratively reweighted least squares is natural gradient descent. For a generalised linear model
with canonical link, \(\eta = X\beta\), one undamped step of length 1,

\[ \beta - (X^\top W X)^+ X^\top(\mu - y), \qquad W = \mathrm{diag}(\mathrm{Var}_\mu(y)), \]

is the weighted regression of the working response \(\eta + W^{-1}(y - \mu)\) on \(X\), and it is
Newton's step. If the columns of \(X\) are dependent the step of least norm is taken, and the fitted
values move as if the superfluous columns were not there.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._numbers import distance


class Family(NamedTuple):
    """A family with canonical link: its metric here, its mean and variance for IRLS."""

    metric: pb.metric.AbstractLikelihood
    mean: Callable[[np.ndarray], np.ndarray]
    variance: Callable[[np.ndarray], np.ndarray]


SMALL = 1e-3
"""The unit of the last column in `_scaled`: about the least singular value of the design."""
FAMILIES = {
    "logistic": Family(
        pb.metric.Bernoulli(), lambda eta: 1 / (1 + np.exp(-eta)), lambda mu: mu * (1 - mu)
    ),
    "poisson": Family(pb.metric.Poisson(), np.exp, lambda mu: mu),
}


def linear(beta: Float[Array, " d"], x: Float[Array, "N d"]) -> Float[Array, " N"]:
    """The linear predictor."""
    return x @ beta


def data(
    name: str, samples: int = 40, columns: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A design with a constant column, responses, and a point that is not the maximum."""
    rng = np.random.default_rng(10)
    x = np.concatenate([np.ones((samples, 1)), rng.standard_normal((samples, columns - 1))], axis=1)
    mean = FAMILIES[name].mean(x @ rng.uniform(-0.8, 0.8, columns))
    y = rng.binomial(1, mean) if name == "logistic" else rng.poisson(mean)
    return x, y.astype(float), rng.uniform(-0.3, 0.3, columns)


def irls_step(
    family: Family,
    x: np.ndarray,
    y: np.ndarray,
    beta: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """One step of IRLS, as a textbook has it: weighted least squares on the working response."""
    eta = x @ beta
    mu = family.mean(eta)
    w = family.variance(mu) * (1.0 if weights is None else weights)
    working = eta + (y - mu) / family.variance(mu)
    return np.linalg.solve(x.T @ (w[:, None] * x), x.T @ (w * working))


def natural_step(
    family: Family,
    x: np.ndarray,
    y: np.ndarray,
    beta: np.ndarray,
    measure: pb.AbstractMeasure | None = None,
) -> np.ndarray:
    """One natural gradient step of length 1."""
    problem = pb.Composite(linear, metric=family.metric, measure=measure)
    return beta - np.asarray(
        pb.natural_gradient(problem, jnp.asarray(beta), (jnp.asarray(x), jnp.asarray(y))).vector
    )


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Both families."""
    return Measured(tuple(_rows()))


def _rows() -> Iterator[Row]:
    for name, family in FAMILIES.items():
        x, y, beta = data(name)
        step = natural_step(family, x, y, beta)
        yield at_most(
            f"{name}: one step is the IRLS step: relative error",
            distance(step, irls_step(family, x, y, beta)),
            1e-12,
        )
        yield at_most(
            f"{name}: and Newton's step", distance(step, _newton(family, x, y, beta)), 1e-12
        )
        natural = irls = np.zeros_like(beta)
        for _ in range(6):
            natural = natural_step(family, x, y, natural)
            irls = irls_step(family, x, y, irls)
        yield at_most(
            f"{name}: after six steps from zero, the same coefficients",
            distance(natural, irls),
            1e-11,
        )
        yield at_most(
            f"{name}: which are the maximum of the likelihood: gradient",
            np.abs(x.T @ (family.mean(x @ natural) - y)).max(),
            1e-9,
        )
        yield from _dependent(name, family, x, y, beta)
        yield _scaled(name, family, x, y, beta)

    x, y, beta = data("logistic")
    weights = np.random.default_rng(11).integers(0, 4, len(y)).astype(float)
    weighted = natural_step(FAMILIES["logistic"], x, y, beta, pb.Weights(weights))
    expected = irls_step(FAMILIES["logistic"], x, y, beta, weights)
    yield at_most(
        "logistic: with prior weights 0 to 3, one step is that of IRLS",
        distance(weighted, expected),
        1e-12,
    )


def _dependent(
    name: str, family: Family, x: np.ndarray, y: np.ndarray, beta: np.ndarray
) -> Iterator[Row]:
    """The design with two superfluous columns, which IRLS cannot solve for."""
    wide = np.concatenate([x, x[:, :1] - x[:, 1:2], 2 * x[:, 2:3]], axis=1)
    moved = natural_step(family, wide, y, np.concatenate([beta, np.zeros(2)])) - np.concatenate(
        [beta, np.zeros(2)]
    )
    expected = irls_step(family, x, y, beta) - beta
    w = family.variance(family.mean(x @ beta))
    condition = np.linalg.cond(wide.T @ (w[:, None] * wide))
    yield at_least(
        f"{name}: condition number with two dependent columns", condition, 1e14, Role.CONTROL
    )
    yield at_most(
        f"{name}: fitted values move as without them", distance(wide @ moved, x @ expected), 1e-12
    )
    yield at_most(
        f"{name}: by the step of least norm",
        distance(moved, np.linalg.pinv(wide) @ (x @ expected)),
        1e-12,
    )


def _scaled(name: str, family: Family, x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> Row:
    """The last column in other units, which makes it small, and repeated: the rank has to be found.
    IRLS takes the step in the old units and without the repetition.
    """
    units = np.append(np.ones(len(beta) - 1), SMALL)
    small = np.concatenate([x * units, x[:, 1:2]], axis=1)
    start = np.append(beta / units, 0.0)
    moved = natural_step(family, small, y, start) - start
    return at_most(
        f"{name}: a column a thousand times smaller, another repeated: fitted values move alike",
        distance(small @ moved, x @ (irls_step(family, x, y, beta) - beta)),
        1e-9,
    )


def _newton(family: Family, x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> np.ndarray:
    likelihood = lambda b: jnp.sum(
        jax.vmap(family.metric.negative_log_likelihood)(jnp.asarray(x) @ b, jnp.asarray(y))
    )
    gradient, hessian = jax.jit(lambda b: (jax.grad(likelihood)(b), jax.hessian(likelihood)(b)))(
        jnp.asarray(beta)
    )
    return beta - np.linalg.solve(np.asarray(hessian), np.asarray(gradient))


CLAIM = Claim(
    name="glm-irls",
    source="ours",
    place="Classical (McCullagh and Nelder)",
    statement=(
        "One undamped natural gradient step on a generalised linear model with canonical link is "
        "one step of iteratively reweighted least squares, and of Newton's method; with "
        "dependent columns, where IRLS breaks down, the fitted values still move as they should."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
