r"""Products with the pullback metric and with the Gauss-Newton Hessian, as programs: one `jvp`, one
Hessian-vector product on the outputs, one `vjp`. They are the same if \(G_z = H_z\): squared error
with the Euclidean metric, and \(\varphi = L\) in a Bregman divergence.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._problem import LABELS, PARAMS, X, logits

COUNT = X.shape[0]


def hvp(function: Callable, at: Array, v: Array) -> Array:
    """The product of a Hessian with a vector."""
    return jax.jvp(jax.grad(function), (at,), (v,))[1]


def pullback_mvp(f: Callable, rho: Callable, w: Array, v: Array) -> Array:
    """The lecture's product with the pullback metric."""
    z0, pushed = jax.jvp(f, (w,), (v,))
    return jax.vjp(f, w)[1](hvp(lambda z: rho(z, z0), z0, pushed))[0]


def gnhvp(f: Callable, loss: Callable, w: Array, v: Array) -> Array:
    """The lecture's product with the Gauss-Newton Hessian."""
    z, pushed = jax.jvp(f, (w,), (v,))
    return jax.vjp(f, w)[1](hvp(loss, z, pushed))[0]


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

    @jax.jit
    def look(v):
        ours = [
            ravel_pytree(pb.pullback(one, PARAMS, (X, LABELS)).flat(unravel(v)))[0]
            for one in (plain, problem)
        ]
        gauss = ravel_pytree(pb.generalised_gauss_newton(problem, PARAMS, unravel(v), (X, LABELS)))[
            0
        ]
        theirs = (
            pullback_mvp(f, half, w, v),
            gnhvp(f, squared, w, v),
            pullback_mvp(f, bregman, w, v),
            gnhvp(f, entropy, w, v),
        )
        return [*ours, gauss, *theirs]

    found: dict[str, list[float]] = {
        name: [] for name in ("euclidean", "library", "gauss", "squared", "bregman", "other")
    }
    for v in generator(key).standard_normal((5 * budget.seeds, w.size)):
        flat, fisher, gauss, e, s, b, c = (np.asarray(x) for x in look(jnp.asarray(v)))
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
