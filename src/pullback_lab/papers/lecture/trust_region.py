r"""A proximal step is the step of a trust region, and conversely: if \(u_\lambda\) minimises
\(J(u) + \lambda\rho(u, w)\), it minimises \(J\) on \(\{\rho(u, w) \le \rho(u_\lambda, w)\}\), since
any better point of that region would be better in the sum too. So each approximation of the
proximal point is the same approximation of a trust region:

| cost | divergence | step with weight \(\lambda\) | region |
|---|---|---|---|
| exact | exact | proximal point | \(\min J\), \(\rho \le r\) |
| to order 2 | to order 2 | \((H + \lambda G)^{-1}\nabla J\) | the classical trust region |
| to order 1 | to order 2 | \(G^{-1}\nabla J/\lambda\) | steepest descent in an ellipsoid |

The multiplier \(\lambda\) falls as the radius grows. `step.TrustRegion` takes the last of these and
measures the radius in the divergence itself, so that it is the best step of that region up to the
third-order term of the divergence: their angle is \(O(\sqrt r)\).

The references are constrained minima by SLSQP (SciPy), which know neither \(\lambda\) nor \(G\).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import cosine, distance
from ._problem import FISHER, LABELS, PARAMS, X, cost, flat
from .approximations import divergence

WEIGHTS = (100.0, 400.0, 1600.0)
BUDGETS = (6.4e-5, 1.6e-5, 4e-6)
BATCH = (X, LABELS)

START, _unravel = ravel_pytree(PARAMS)
_cost = jax.jit(jax.value_and_grad(lambda u: cost(_unravel(u))))
_near = jax.jit(jax.value_and_grad(lambda u: divergence(_unravel(u), PARAMS)))


def constrained(
    objective: Callable, region: Callable, radius: float, start: np.ndarray
) -> np.ndarray:
    """The minimum of a function where another is at most `radius`; both return value and gradient.
    Functions and steps are scaled, because SLSQP stops at absolute differences.
    """
    first = objective(start)[0]
    scale = max(abs(objective(start + 1e-2)[0] - first), 1e-12)
    part = lambda function, i: lambda u: np.asarray(function(jnp.asarray(u))[i], float)
    found = scipy.optimize.minimize(
        lambda u: (part(objective, 0)(u) - first) / scale,
        start,
        jac=lambda u: part(objective, 1)(u) / scale,
        method="SLSQP",
        constraints={
            "type": "ineq",
            "fun": lambda u: 1 - part(region, 0)(u) / radius,
            "jac": lambda u: -part(region, 1)(u) / radius,
        },
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x


def model_of(value: float, slope: np.ndarray, hessian: np.ndarray) -> Callable:
    """A quadratic function and its gradient."""

    def evaluate(u):
        d = np.asarray(u) - np.asarray(START)
        return value + slope @ d + d @ hessian @ d / 2, slope + hessian @ d

    return evaluate


def steps_of(weight: float) -> dict[str, tuple[float, float]]:
    """Relative error of the proximal and of the damped Newton step against the minimum of the
    region on whose border they are; and the square root of twice its size.
    """
    start = np.asarray(START)
    exact = flat(pb.proximal_step(FISHER, PARAMS, BATCH, weight=weight, rtol=1e-10).params)
    newton = flat(pb.damped_newton_step(FISHER, PARAMS, BATCH, weight=weight).params)
    hessian, metric = _curvatures()
    value, slope = (np.asarray(x) for x in _cost(START))
    quadratic = model_of(float(value), slope, hessian)
    ellipsoid = model_of(0.0, np.zeros_like(start), metric)
    found = {}
    for name, point, objective, region in (
        ("proximal", exact, _cost, _near),
        ("newton", newton, quadratic, ellipsoid),
    ):
        radius = float(region(jnp.asarray(point))[0])
        best = constrained(objective, region, radius, start + 0.5 * (point - start))
        found[name] = (distance(point - start, best - start), float(np.sqrt(2 * radius)))
    return found


def _curvatures() -> tuple[np.ndarray, np.ndarray]:
    """The Hessians of the cost and of the divergence at the start."""
    both = jax.jit(
        lambda u: (
            jax.hessian(lambda v: cost(_unravel(v)))(u),
            jax.hessian(lambda v: divergence(_unravel(v), PARAMS))(u),
        )
    )(START)
    return np.asarray(both[0]), np.asarray(both[1])


def bounded(limit: float) -> tuple[float, float, float]:
    """A step of `TrustRegion`: its angle with the best step for the linearised cost, the divergence
    it spends relative to the limit, and its distance from the linearised proximal step of the same
    length.
    """
    rule = pb.step.TrustRegion(divergence=limit, extend=True, adapt=False)
    optimiser = pb.NaturalGradientDescent(FISHER, step=rule)
    params, _, _ = optimiser.step(PARAMS, optimiser.init(PARAMS), BATCH)
    start = np.asarray(START)
    step = flat(params) - start
    slope = np.asarray(_cost(START)[1])
    best = constrained(model_of(0.0, slope, np.zeros((5, 5))), _near, limit, start + 0.5 * step)
    unit = flat(pb.linearised_proximal_step(FISHER, PARAMS, BATCH, weight=1.0).params) - start
    weight = np.linalg.norm(unit) / np.linalg.norm(step)
    same = flat(pb.linearised_proximal_step(FISHER, PARAMS, BATCH, weight=weight).params) - start
    angle = float(np.arccos(min(1.0, cosine(step, best - start))))
    return angle, float(_near(jnp.asarray(start + step))[0]) / limit, distance(step, same)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Three weights, three radii."""
    found = [steps_of(weight) for weight in WEIGHTS]
    radii = {name: np.array([one[name][1] for one in found]) for name in ("proximal", "newton")}
    angles, spent, parallel = (np.array(x) for x in zip(*map(bounded, BUDGETS), strict=True))
    order = float(np.log(angles[-2] / angles[-1]) / np.log(BUDGETS[-2] / BUDGETS[-1]))
    rows = (
        at_most(
            "damped Newton is the minimum of the quadratic model in an ellipsoid: largest error",
            max(one["newton"][0] for one in found),
            1e-4,
        ),
        at_most(
            "the proximal point is the minimum of J in a region of the divergence: largest error",
            max(one["proximal"][0] for one in found),
            1e-4,
        ),
        at_most(
            "TrustRegion: the step is a linearised proximal step, largest error",
            parallel.max(),
            1e-10,
        ),
        at_most("TrustRegion: divergence over its limit, largest", spent.max(), 1.0),
        at_least("and smallest", spent.min(), 0.98),
        at_most(
            "its angle with the best step of the linearised cost, in the limit: |order - 1/2|",
            abs(order - 0.5),
            0.1,
        ),
        at_least(
            "a smaller weight has a larger region: least ratio of radii, weights 4 to 1",
            min(np.min(r[:-1] / r[1:]) for r in radii.values()),
            1.5,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="trust-region",
    source="lecture",
    place="Approximation 3",
    quotation="Relationship to trust-region methods (see readings for details)",
    statement=(
        "A step with a proximity term is the step of a trust region: each weight belongs to a "
        "radius, for the proximal point and for its approximations."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
