r"""Mirror descent: \(\arg\min_u \langle g, u\rangle + \lambda\rho(u, \theta)\), that is
\(\nabla_u\rho(u, \theta) = -g/\lambda\); closed forms where they exist.

| mirror | \(\rho(u, \theta)\) | step |
|---|---|---|
| `EuclideanMirror` | \(\lVert u - \theta\rVert^2/2\) | \(u = \theta - g/\lambda\) |
| `KLMirror` | \(\mathrm{KL}(u \Vert \theta)\) | \(u \propto \theta\,e^{-g/\lambda}\) |
| `ReverseKLMirror` | \(\mathrm{KL}(\theta \Vert u)\) | \(u = \lambda\theta/(g + \nu)\) |
| `BregmanMirror` | \(D_\varphi(u, \theta)\) | \(u^* = \theta^* - g/\lambda\) |
| `DivergenceMirror` | any | Newton's method |

The two KL divergences are on the simplex, and \(\nu\) is such that \(\sum u = 1\). The step of a
Bregman divergence is a gradient step in the dual coordinates \(u^* = \nabla\varphi(u)\).

For an exponential family in its natural parameters, \(\varphi\) the log-partition, the dual
coordinates are the means and \(D_\varphi(u, \theta) = \mathrm{KL}(p_\theta \Vert p_u)\): the
arguments change places.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from .._base.checks import function, instance, positive
from .._base.pairs import conjugate
from .._base.results import RESULTS, successful_if
from .._base.show import settings
from .._base.tree import refuse_complex, split, structure
from .._base.types import Covector, Flat, Params, Scalar
from .._compat.xla import jit
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._problem.validate import validate
from .minimise import minimise
from .point import Point, ProximalStep, raised
from .steps import half_square


class AbstractMirror(eqx.Module):
    """A divergence between parameters and its mirror step."""

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def move(self, params: Params, covector: Covector) -> tuple[Params, RESULTS]:
        """Return the u with ∇ρ(u, params) = -covector, up to what the constraint of the set adds.

        **Arguments:**

        - `params`: the differentiable leaves of the point.
        - `covector`: g/λ; complex leaves are as `jax.grad` returns them.
        """

    @abc.abstractmethod
    def divergence(self, u: Params, params: Params) -> Scalar:
        """Return ρ(u, params).

        **Arguments:**

        - `u`: the point that moves.
        - `params`: the point that `u` is compared with.
        """


class EuclideanMirror(AbstractMirror):
    """Half the squared Euclidean distance: the mirror step is gradient descent.

    ```python
    mirror = pb.EuclideanMirror()
    step = pb.mirror_step(problem, params, (x, y), weight=10.0, mirror=mirror)
    ```
    """

    def move(self, params, covector):
        return jax.tree.map(jnp.subtract, params, conjugate(covector)), RESULTS.successful

    def divergence(self, u, params):
        return half_square(u, params)


def _on_simplex(params: Params) -> Any:
    """Return whether the last axis of every array is a probability vector."""
    refuse_complex(params, "KLMirror and ReverseKLMirror", "Probabilities are real: p.real.")

    def one(p):
        off = jnp.abs(jnp.sum(p, axis=-1) - 1)
        return jnp.all(p >= 0) & jnp.all(off <= jnp.sqrt(jnp.finfo(p.dtype).eps))

    fine = [one(p) for p in jax.tree.leaves(params)]
    return successful_if(jnp.all(jnp.stack(fine)), RESULTS.off_simplex)


class KLMirror(AbstractMirror):
    """KL(u ‖ θ) on the simplex (last axis of every array): multiplicative weights.

    A zero probability stays zero.
    """

    def move(self, params, covector):
        def one(p, g):
            logits = jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1.0)) - g, -jnp.inf)
            return jax.nn.softmax(logits, axis=-1)

        fine = _on_simplex(params)
        return jax.tree.map(one, params, covector), fine

    def divergence(self, u, params):
        return _kl(u, params)


class ReverseKLMirror(AbstractMirror):
    """KL(θ ‖ u) on the simplex (last axis of every array)."""

    def move(self, params, covector):
        fine = _on_simplex(params)
        return jax.tree.map(_reverse, params, covector), fine

    def divergence(self, u, params):
        return _kl(params, u)


def _kl(u: Params, params: Params) -> Scalar:
    """Return KL(u ‖ params), summed over all arrays."""
    one = lambda u, p: jnp.sum(jax.scipy.special.rel_entr(u, p))
    return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(one, u, params))))


def _reverse(p: Array, g: Array) -> Array:
    """Return u = p/(g + ν) with Σu = 1.

    With a = g - min g over the support, s = ν + min g lies in (0, 1], and Σ p/(a + s) falls through
    1 there: bisection in log s, then one step of Newton's method.
    """
    support = p > 0
    a = g - jnp.min(jnp.where(support, g, jnp.inf), axis=-1, keepdims=True)
    # XLA may compute g twice with other roundings, if it is itself a product: the least a is then
    # -1e-17, and Σ p/(a + s) negative for a small s.
    a = jnp.maximum(a, 0.0)
    shifted = lambda s: jnp.where(support, a + s, 1.0)
    moved = lambda s: jnp.where(support, p / shifted(s), 0.0)
    total = lambda s: jnp.sum(moved(s), axis=-1, keepdims=True)
    low = jnp.log(jnp.finfo(p.dtype).tiny) * jnp.ones_like(a[..., :1])

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        above = total(jnp.exp(middle)) > 1
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = jax.lax.fori_loop(0, 64, halve, (low, jnp.zeros_like(low)))
    s = jnp.exp((low + high) / 2)
    slope = -jnp.sum(moved(s) / shifted(s), axis=-1, keepdims=True)
    found = moved(s - (total(s) - 1) / slope)
    # Where g is large, a is known to the rounding of g only, and s + a cannot make up for it.
    return found / jnp.sum(found, axis=-1, keepdims=True)


class BregmanMirror(AbstractMirror):
    """The divergence D_φ(u, θ); steps are made in the dual coordinates ∇φ.

    **Arguments:**

    - `phi`: a strictly convex function of the parameters.
    - `inverse`: (∇φ)⁻¹, from dual coordinates to parameters; another function is refused. By
        default Newton's method minimises φ(u) - <dual, u>.
    """

    phi: Callable[[Params], Scalar]
    inverse: Callable[[Params], Params] | None = None

    def __check_init__(self):
        function("BregmanMirror", "phi", self.phi, "BregmanMirror(lambda u: jnp.sum(u**2) / 2)")

    def move(self, params, covector):
        dual = jax.tree.map(jnp.subtract, jax.grad(self.phi)(params), covector)
        like = structure(params)
        target = like.ravel_covector(dual)
        if self.inverse is not None:
            moved = self.inverse(dual)
            found = like.ravel_covector(jax.grad(self.phi)(moved))
            return moved, _judge_inverse(found, target, like.ravel_covector(covector))
        inner = lambda u: self.phi(like.unravel(u)) - jnp.vdot(target, u)
        return _minimum(inner, params, covector)

    def divergence(self, u, params):
        like = structure(params)
        value, slope = jax.value_and_grad(self.phi)(params)
        change = like.ravel(u) - like.ravel(params)
        return self.phi(u) - value - jnp.vdot(like.ravel_covector(slope), change)


def _judge_inverse(found: Flat, dual: Flat, covector: Flat) -> Any:
    """Return whether the dual coordinates of a point are those that were asked for."""
    # The dual coordinates may cancel to zero, then the step tells what is large.
    size = jnp.linalg.norm(dual) + jnp.linalg.norm(covector)
    close = jnp.linalg.norm(found - dual) <= jnp.sqrt(jnp.finfo(dual.dtype).eps) * size
    finite = jnp.all(jnp.isfinite(found))
    result = successful_if(close, RESULTS.not_inverse_of_phi)
    return RESULTS.where(finite, result, RESULTS.no_mirror_point)


class DivergenceMirror(AbstractMirror):
    """A smooth divergence, given as a function; Newton's method solves each step.

    **Arguments:**

    - `rho`: `rho(u, params)`, non-negative and zero at `u = params`.
    """

    rho: Callable[[Params, Params], Scalar]

    def __check_init__(self):
        function("DivergenceMirror", "rho", self.rho, "DivergenceMirror(lambda u, params: ...)")

    def move(self, params, covector):
        like = structure(params)
        g = like.ravel_covector(covector)
        inner = lambda u: self.rho(like.unravel(u), params) + jnp.vdot(g, u)
        return _minimum(inner, params, covector)

    def divergence(self, u, params):
        return self.rho(u, params)


def _minimum(
    inner: Callable[[Flat], Scalar], params: Params, covector: Covector
) -> tuple[Params, Any]:
    """Return the minimum of a function of flat parameters near a point, and whether it is one."""
    like = structure(params)
    eps = jnp.finfo(like.dtype).eps
    g = like.ravel_covector(covector)
    found = minimise(inner, like.ravel(params), g, rtol=float(eps) ** 0.6, max_steps=100)
    fine = found.converged & (found.least >= -jnp.sqrt(eps))
    return like.unravel(found.point), successful_if(fine, RESULTS.no_mirror_point)


def mirror_step(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    weight: ArrayLike,
    mirror: AbstractMirror,
    throw: bool = True,
) -> ProximalStep:
    """Return the mirror step on the parameters: the loss to first order, the divergence exactly.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `weight`: λ > 0.
    - `mirror`: `EuclideanMirror()`, `KLMirror()`, `ReverseKLMirror()`, `BregmanMirror(phi,
        inverse)` or `DivergenceMirror(rho)`.
    - `throw`: whether a failure raises (parameters off the simplex; dual coordinates outside their
        range); with `False`, check `result`.
    """
    positive("mirror_step", "weight", weight)
    example = "mirror_step(..., mirror=KLMirror())"
    instance("mirror_step", "mirror", mirror, AbstractMirror, "a mirror", example)
    params, data = validate(problem, params, batch)
    weight = jnp.asarray(weight, structure(params).dtype)
    return raised(_mirror(problem, params, data, weight, mirror), throw)


@jit
def _mirror(
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    weight: Scalar,
    mirror: AbstractMirror,
) -> ProximalStep:
    point = Point(problem, params, batch)
    g = jax.grad(point.value)(point.flat) / weight
    moved, result = mirror.move(split(params)[0], point.like.unravel_covector(g))
    flat = point.like.ravel(moved)
    result = RESULTS.where(jnp.all(jnp.isfinite(flat)), result, RESULTS.no_mirror_point)
    return point.step(flat, point.nan, point.nan, 1, result)
