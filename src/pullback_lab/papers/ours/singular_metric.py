r"""What a metric does not see is gauge. Let \(M\) be singular on the outputs: logits up to a common
shift, entries that are masked. Then the motion \(J\delta\) of the outputs is no longer unique:
\(\{1\}\)-inverses and parametrisations agree on \(S^\top J\delta\), \(M = SS^\top\), and on nothing
else.

\[ G = J^\top M J, \quad \mathrm{d}L \in \mathrm{range}(M) \quad\Longrightarrow\quad M\,J\,X\,\nabla
L \text{ is the same for every } X \text{ with } GXG = G, \text{ and for every parametrisation.} \]

If \(\mathrm{d}L\) has a part outside the range of \(M\) (a loss on masked entries), that part has
no natural gradient; its fraction is reported.
"""

from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most, equals
from .._inverses import random_inverse
from .._numbers import distance
from ..invariance._curved import phi, point

INVERSES = 20
OBSERVED = np.array([True, False, True, False, False])


def logits(xi: Float[Array, " 6"]) -> Float[Array, " 5"]:
    """A model of rank 4 on five logits: it can shift them all, which changes no probability."""
    return phi(xi) + xi[0] * xi[5] + jnp.sin(xi[2])


def bent(model: Callable) -> Callable:
    """The model in the parameters η, ξ = sinh(η) + a shear."""
    return lambda eta: model(_bend(eta))


def _bend(eta):
    return jnp.sinh(eta) + jnp.roll(eta, 1).at[0].set(0.0) / 2


def _unbend(xi: np.ndarray) -> np.ndarray:
    eta = np.zeros_like(xi)
    for i, value in enumerate(xi):
        eta[i] = np.arcsinh(value - (eta[i - 1] / 2 if i else 0.0))
    return eta


def cross_entropy(z: Float[Array, " 5"]) -> Float[Array, ""]:
    """That of the second class."""
    return -jax.nn.log_softmax(z)[1]


def error(weights: Float[Array, " 5"], z: Float[Array, " 5"]) -> Float[Array, ""]:
    """Half the weighted squared distance from ones."""
    return jnp.sum(weights * (z - 1.0) ** 2) / 2


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Logits in the Fisher metric, then masked entries."""
    return Measured(tuple(_rows()))


def _rows() -> Iterator[Row]:
    masked = pb.metric.Masked(pb.metric.Euclidean(), jnp.asarray(OBSERVED))
    yield from _both(
        "logits", logits, cross_entropy, pb.metric.Categorical(), np.asarray(_fisher(logits))
    )
    yield from _both(
        "masked",
        phi,
        eqx.Partial(error, jnp.asarray(OBSERVED * 1.0)),
        masked,
        np.diag(OBSERVED * 1.0),
    )

    ng = pb.natural_gradient(
        pb.Composite(phi, loss=eqx.Partial(error, jnp.ones(OBSERVED.size)), metric=masked),
        jnp.asarray(_point()),
    )
    c = np.asarray(phi(jnp.asarray(_point()))) - 1.0
    fraction = np.linalg.norm(c[OBSERVED]) / np.linalg.norm(c)
    yield at_least(
        "a loss on all entries: fraction of dL that the mask hides", 1 - fraction, 0.1, Role.CONTROL
    )
    yield at_most(
        "the fraction inside is reported (stats.output_share), off by",
        abs(float(ng.stats.output_share) - fraction),
        1e-12,
    )


def _point() -> np.ndarray:
    return point(np.random.default_rng(5))


def _fisher(model: Callable) -> Array:
    p = jax.nn.softmax(model(jnp.asarray(_point())))
    return jnp.diag(p) - jnp.outer(p, p)


def _both(
    name: str, model: Callable, loss: Callable, metric: pb.metric.AbstractMetric, m: np.ndarray
) -> Iterator[Row]:
    """Random inverses at a point, and another parametrisation; m is M at that point, and its range
    contains dL.
    """
    xi = _point()
    rng = np.random.default_rng(6)
    j, c = (
        np.asarray(x)
        for x in jax.jit(lambda xi: (jax.jacfwd(model)(xi), jax.grad(loss)(model(xi))))(
            jnp.asarray(xi)
        )
    )
    old = pb.natural_gradient(pb.Composite(model, loss=loss, metric=metric), jnp.asarray(xi))
    new = pb.natural_gradient(
        pb.Composite(bent(model), loss=loss, metric=metric), jnp.asarray(_unbend(xi))
    )
    seen = m @ np.asarray(old.pushforward)
    motion = np.asarray(old.pushforward)
    g = j.T @ m @ j
    motions = [j @ (random_inverse(rng, g) @ (j.T @ c)) for _ in range(INVERSES)]
    yield equals(
        f"{name}: rank of the metric on the parameters below that of J, by",
        np.linalg.matrix_rank(j) - int(old.stats.rank),
        1,
    )
    yield at_most(
        f"{name}: what the metric sees, {INVERSES} random inverses: largest difference",
        max(distance(m @ v, seen) for v in motions),
        1e-11,
    )
    yield at_most(
        f"{name}: what the metric sees, other parameters",
        distance(m @ np.asarray(new.pushforward), seen),
        1e-12,
    )
    yield at_least(
        f"{name}: the motion of the outputs differs, other parameters",
        distance(new.pushforward, motion),
        0.01,
    )


CLAIM = Claim(
    name="singular-metric",
    source="ours",
    place="Theorems 1 and 2 for a metric that is singular on the outputs",
    statement=(
        "Where the metric does not see everything (logits up to a shift, masked entries), what "
        "it sees of the step is still unique; the rest of the motion depends on the "
        "parametrisation, even with the Moore-Penrose inverse."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
