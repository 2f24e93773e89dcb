r"""Definition 2, (3) and (4). A generalised inverse is any \(X\) with \(GXG = G\); \(GX\) is then
the identity on the range of \(G\), and every \(X\) leads to the same vector on the model.

How a user hands in one of their own:

- an inverse that is a function of \(G\): a subclass of `AbstractInverse` with a `filter` and a
  `kernel`. Here \(h(s) = 1/s^2\) and \(h_0 = 3\): \(X = G^+ + 3\,(I - G^+G)\), symmetric,
  invertible, and not the Moore-Penrose inverse. `sharp` applies it to any covector;
- any other \(X\), symmetric or not, by the gauge that it amounts to on a covector \(g \ne 0\) in
  the range. \(y = Xg\) solves \(Gy = g\), so it is not in \(\ker G\); an inner product \(W\) in
  which \(y\) is orthogonal to \(\ker G\) makes \(y\) the solution of least norm. Hence
  `MoorePenrose(gauge=W)` returns \(Xg\).

For \(W\): with \(N\) an orthonormal basis of the kernel and \(P = I - NN^\top\), take \(W = (I -
\ell\,y^\top P)^\top(I - \ell\,y^\top P)\) with \(\ell = NN^\top y/\|Py\|^2\), the Euclidean inner
product after the part of \(y\) in the kernel is sheared away.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._inverses import asymmetry, projector, random_inverse
from .._numbers import distance, generator
from ._curved import METRIC, PARAMETERS, loss, matrix, phi
from .theorem_1 import points

POINTS = 4
INVERSES = 5
KERNEL = 3.0


class Own(pb.inverse.AbstractInverse):
    """A user's own: 1/s² on the range, a number on the kernel."""

    gauge: None = None
    value: float = KERNEL
    truncates: ClassVar[bool] = False

    def filter(self, s, cutoff):
        """h(s)."""
        return jnp.where(s > cutoff, 1 / jnp.where(s > cutoff, s, 1.0) ** 2, self.value)

    @property
    def kernel(self):
        """h₀."""
        return self.value


class Halved(Own):
    """No generalised inverse: 1/s² with a factor of a half."""

    def filter(self, s, cutoff):
        """h(s)."""
        return super().filter(s, cutoff) / 2


def gauge_of(g: np.ndarray, y: np.ndarray, rank: int) -> np.ndarray:
    """An inner product in which y is orthogonal to the kernel of g."""
    kernel = np.linalg.eigh(g)[1][:, : len(g) - rank]
    inside = kernel @ (kernel.T @ y)
    seen = y - inside
    shear = np.eye(len(y)) - np.outer(inside, seen) / (seen @ seen)
    return shear.T @ shear


_jacobian = jax.jit(jax.jacfwd(phi))
_differential = jax.jit(jax.grad(loss))


@eqx.filter_jit
def applied(inverse: pb.inverse.AbstractInverse, xi: jax.Array) -> jax.Array:
    """X as the library applies it, one column for each coordinate covector."""
    metric = pb.pullback(pb.Composite(phi, loss=loss, metric=METRIC), xi, solver=pb.solver.SVD())
    column = lambda row: metric.sharp(row, inverse=inverse, throw=False)
    return jax.lax.map(column, jnp.eye(PARAMETERS)).T


def at_point(rng: np.random.Generator, xi: np.ndarray, rank: int) -> dict[str, float]:
    """A user's own filter and random X at one point, and what they lead to."""
    problem = pb.Composite(phi, loss=loss, metric=METRIC)
    z = phi(jnp.asarray(xi))
    j, m, c = (np.asarray(x) for x in (_jacobian(xi), matrix(z), _differential(z)))
    g, covector = j.T @ m @ j, j.T @ c
    expected = projector(j, m, rank) @ np.linalg.solve(m, c)
    x = np.asarray(applied(Own(), jnp.asarray(xi)))
    ng = pb.natural_gradient(problem, jnp.asarray(xi), inverse=Own(), solver=pb.solver.SVD())
    wrong = pb.natural_gradient(
        problem, jnp.asarray(xi), inverse=Halved(), solver=pb.solver.SVD(), throw=False
    )
    image = g @ rng.standard_normal(PARAMETERS)
    worst = dict.fromkeys(("vector", "pushforward"), 0.0)
    least = dict.fromkeys(("asymmetry", "other"), np.inf)
    for _ in range(INVERSES):
        own = random_inverse(rng, g)
        y = own @ covector
        inverse = pb.MoorePenrose(gauge=jnp.asarray(gauge_of(g, y, rank)))
        found = pb.natural_gradient(problem, jnp.asarray(xi), inverse=inverse)
        worst["vector"] = max(worst["vector"], distance(found.vector, y))
        worst["pushforward"] = max(worst["pushforward"], distance(found.pushforward, expected))
        least["asymmetry"] = min(least["asymmetry"], asymmetry(own))
        least["other"] = min(least["other"], distance(y, np.linalg.pinv(g, rcond=1e-12) @ covector))
    return {
        "inverse": distance(g @ x @ g, g),
        "identity": distance(g @ (x @ image), image),
        "invertible": float(np.linalg.svd(x, compute_uv=False)[-1]),
        "own": distance(ng.pushforward, expected),
        "wrong": distance(wrong.pushforward, expected),
        **worst,
        **least,
    }


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Points of rank 3 and one of rank 2."""
    rng = generator(key)
    found = [at_point(rng, xi, rank) for xi, rank in points(rng, POINTS * budget.seeds)]
    worst = lambda name: max(one[name] for one in found)
    least = lambda name: min(one[name] for one in found)
    return Measured(
        (
            at_most(
                "(3) for a filter of one's own: G X G = G, largest error", worst("inverse"), 1e-11
            ),
            at_most("(4): G X w = w for w in the range of G", worst("identity"), 1e-11),
            at_most("with it the pushforward is the projection", worst("own"), 1e-11),
            at_most(
                f"{INVERSES} random X at each point, handed in as gauges: the vector is X g",
                worst("vector"),
                1e-8,
            ),
            at_most("and the pushforward is the projection", worst("pushforward"), 1e-9),
            at_least(
                "the filter's X is invertible, so no Moore-Penrose inverse: least singular value",
                least("invertible"),
                1e-6,
                Role.CONTROL,
            ),
            at_least(
                "random X are not symmetric, smallest", least("asymmetry"), 0.05, Role.CONTROL
            ),
            at_least("X g differs from G⁺g by, smallest", least("other"), 0.01, Role.CONTROL),
            at_least(
                "a filter that is no generalised inverse misses the projection by, smallest",
                least("wrong"),
                0.4,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="generalised-inverse",
    source="invariance",
    place="Definition 2, (3) and (4)",
    quotation="This shows that AA⁺ is the identity operator on the image of A.",
    statement=(
        "Any X with G X G = G is a generalised inverse; G X is the identity on the range of G. "
        "Whichever a user takes, the vector on the model is the same."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
