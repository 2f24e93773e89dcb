r"""Products with the pullback metric and with the Gauss-Newton Hessian, as programs: one `jvp`, one
Hessian-vector product on the outputs, one `vjp`. They are the same if \(G_z = H_z\): squared error
with the Euclidean metric, and \(\varphi = L\) in a Bregman divergence. The first of the two, with
any divergence, is what `metric.Divergence(rho)` computes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import jvp, vjp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._problem import LABELS, PARAMS, X, logits

COUNT = X.shape[0]


def hvp(function: Callable, at: Array, v: Array) -> Array:
    """The product of a Hessian with a vector."""
    return jvp(jax.grad(function), (at,), (v,))[1]


# The two listings of the lecture, to the letter.


def pullback_mvp(f, rho, w, v):
    """The lecture's product with the pullback metric."""
    z0, R_z = jvp(f, (w,), (v,))
    rho_z0 = lambda z: rho(z, z0)
    R_gz = hvp(rho_z0, z0, R_z)
    _, f_vjp = vjp(f, w)
    return f_vjp(R_gz)[0]


def gnhvp(f, L, w, v):
    """The lecture's product with the Gauss-Newton Hessian."""
    z, R_z = jvp(f, (w,), (v,))
    R_gz = hvp(L, z, R_z)
    _, f_vjp = vjp(f, w)
    return f_vjp(R_gz)[0]


def skewed(z: Array, z0: Array) -> Array:
    """A divergence of one sample that is neither symmetric nor of a family: (z - z0)² times a
    positive function of both.
    """
    return jnp.sum((z - z0) ** 2 * jnp.exp(jnp.sin(z0) + (z - z0) / 3)) / 2


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A logistic network, and the same with squared error."""
    w, unravel = ravel_pytree(PARAMS)
    f = lambda w: logits(unravel(w), X)
    half = lambda z, z0: jnp.sum((z - z0) ** 2) / 2 / COUNT
    squared = lambda z: half(z, LABELS)
    entropy = lambda z: jnp.mean(jax.nn.softplus(z) - LABELS * z)
    bregman = lambda z, z0: entropy(z) - entropy(z0) - jnp.vdot(jax.grad(entropy)(z0), z - z0)
    problem = pb.Composite(lambda p, x: logits(p, x), metric=pb.metric.Bernoulli())
    plain = pb.Composite(problem.model, loss=lambda z, y: (z - y) ** 2 / 2)
    listed = pb.Composite(problem.model, loss=lambda z, y: z, metric=pb.metric.Divergence(skewed))
    mean_skewed = lambda z, z0: skewed(z, z0) / COUNT

    @jax.jit
    def look(v):
        ours = [
            ravel_pytree(pb.pullback(one, PARAMS, (X, LABELS)).flat(unravel(v)))[0]
            for one in (plain, problem, listed)
        ]
        gauss = ravel_pytree(pb.generalised_gauss_newton(problem, PARAMS, unravel(v), (X, LABELS)))[
            0
        ]
        theirs = (
            pullback_mvp(f, half, w, v),
            gnhvp(f, squared, w, v),
            pullback_mvp(f, bregman, w, v),
            gnhvp(f, entropy, w, v),
            pullback_mvp(f, mean_skewed, w, v),
        )
        return [*ours, gauss, *theirs]

    found: dict[str, list[float]] = {
        name: []
        for name in ("euclidean", "library", "listing", "gauss", "squared", "bregman", "other")
    }
    for v in generator(key).standard_normal((5 * budget.seeds, w.size)):
        flat, fisher, of_rho, gauss, e, s, b, c, r = (np.asarray(x) for x in look(jnp.asarray(v)))
        found["listing"].append(distance(of_rho, r))
        found["euclidean"].append(distance(flat, e))
        found["library"].append(distance(fisher, b))
        found["gauss"].append(distance(gauss, c))
        found["squared"].append(distance(s, e))
        found["bregman"].append(distance(c, b))
        found["other"].append(distance(c, e))
    return Measured(_rows(found))


def _rows(found: dict[str, list[float]]) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    return (
        at_most(
            "pullback_mvp, squared distance: pullback(...).flat(v) is the same",
            max(found["euclidean"]),
            1e-13,
        ),
        at_most(
            "pullback_mvp(f, rho, w, v) of any rho: metric.Divergence(rho) is the same",
            max(found["listing"]),
            1e-13,
        ),
        at_most(
            "pullback_mvp, Bregman of the cross-entropy: the Fisher metric of the library is "
            "the same",
            max(found["library"]),
            1e-13,
        ),
        at_most(
            "gnhvp, cross-entropy: generalised_gauss_newton is the same",
            max(found["gauss"]),
            1e-13,
        ),
        at_most(
            "squared error and Euclidean metric: both products agree",
            max(found["squared"]),
            1e-13,
        ),
        at_most("φ = L: both products agree", max(found["bregman"]), 1e-13),
        at_least(
            "cross-entropy and Euclidean metric: they do not, smallest difference",
            min(found["other"]),
            0.01,
            Role.CONTROL,
        ),
    )


CLAIM = Claim(
    name="products",
    source="lecture",
    place="Matrix-vector products; connection to the Gauss-Newton Hessian",
    quotation="Compare with Gauss-Newton Hessian-vector products",
    statement=(
        "A product with the pullback metric is a jvp, a Hessian-vector product of the divergence "
        "and a vjp; with the loss in place of the divergence it is a Gauss-Newton product, and "
        "the two are one if the Hessians on the outputs are."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
