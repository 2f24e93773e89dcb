r"""Mirror descent: \(\arg\min_u \langle g, u\rangle + \lambda\rho(u, \theta)\), that is
\(\nabla_u\rho(u, \theta) = -g/\lambda\); closed forms where they exist.

| mirror | \(\rho(u, \theta)\) | step |
|---|---|---|
| `EuclideanMirror` | \(\lVert u - \theta\rVert^2/2\) | \(u = \theta - g/\lambda\) |
| `KLMirror` | \(\mathrm{KL}(u \Vert \theta)\) on the simplex | \(u \propto \theta\,e^{-g/\lambda}\) |
| `ReverseKLMirror` | \(\mathrm{KL}(\theta \Vert u)\) on the simplex | \(u = \lambda\theta/(g + \nu)\), \(\nu\) such that \(\sum u = 1\) |
| `BregmanMirror` | \(D_\varphi(u, \theta)\) | \(\nabla\varphi(u) = \nabla\varphi(\theta) - g/\lambda\): a step in the dual coordinates |
| `DivergenceMirror` | any | Newton's method |

For an exponential family in its natural parameters, \(\varphi\) the log-partition, the dual
coordinates are the means and \(D_\varphi(u, \theta) = \mathrm{KL}(p_\theta \Vert p_u)\): the
arguments change places.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array

from .._base.results import RESULTS, successful_if
from .._base.tree import split, structure
from .._base.types import Covector, Params, Scalar
from .._problem.composite import Composite
from .minimise import minimise
from .steps import ProximalStep, _close, _loss, _open


class AbstractMirror(eqx.Module):
    """A divergence between parameters, with its mirror step."""

    @abc.abstractmethod
    def move(self, params: Params, covector: Covector) -> tuple[Params, RESULTS]:
        """The u with ∇ρ(u, params) = -covector (up to what the constraint of the set adds), on
        coordinates only.

        **Arguments:**

        - `params`: the floating leaves of the point.
        - `covector`: g/λ.
        """

    @abc.abstractmethod
    def divergence(self, u: Params, params: Params) -> Scalar:
        """ρ(u, params).

        **Arguments:**

        - `u`: the point that moves.
        - `params`: the one it is compared with.
        """


class EuclideanMirror(AbstractMirror):
    """Half the squared Euclidean distance: the step is gradient descent."""

    def move(self, params, covector):
        return jax.tree.map(jnp.subtract, params, covector), RESULTS.successful

    def divergence(self, u, params):
        like = structure(params)
        return jnp.sum((like.ravel(u) - like.ravel(params)) ** 2) / 2


def _on_simplex(params: Params) -> Any:
    leaves = jax.tree.leaves(params)
    fine = [
        jnp.all(p >= 0)
        & jnp.all(jnp.abs(jnp.sum(p, axis=-1) - 1) <= jnp.sqrt(jnp.finfo(p.dtype).eps))
        for p in leaves
    ]
    return successful_if(jnp.all(jnp.stack(fine)), RESULTS.off_simplex)


class KLMirror(AbstractMirror):
    """KL(u ‖ θ) on the simplex (last axis of every array): multiplicative weights. A zero
    probability stays zero.
    """

    def move(self, params, covector):
        def one(p, g):
            logits = jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1.0)) - g, -jnp.inf)
            return jax.nn.softmax(logits, axis=-1)

        return jax.tree.map(one, params, covector), _on_simplex(params)

    def divergence(self, u, params):
        one = lambda u, p: jnp.sum(jax.scipy.special.rel_entr(u, p))
        return sum(jax.tree.leaves(jax.tree.map(one, u, params)))  # pyright: ignore[reportReturnType]


class ReverseKLMirror(AbstractMirror):
    """KL(θ ‖ u) on the simplex (last axis of every array)."""

    def move(self, params, covector):
        return jax.tree.map(_reverse, params, covector), _on_simplex(params)

    def divergence(self, u, params):
        one = lambda u, p: jnp.sum(jax.scipy.special.rel_entr(p, u))
        return sum(jax.tree.leaves(jax.tree.map(one, u, params)))  # pyright: ignore[reportReturnType]


def _reverse(p: Array, g: Array) -> Array:
    """u = p/(g + ν) with Σu = 1. With a = g - min g over the support, s = ν + min g lies in (0, 1]:
    Σ p/(a + s) falls through 1 there, by bisection in log s, then Newton.
    """
    support = p > 0
    a = g - jnp.min(jnp.where(support, g, jnp.inf), axis=-1, keepdims=True)
    total = lambda s: jnp.sum(
        jnp.where(support, p / jnp.where(support, a + s, 1.0), 0.0), axis=-1, keepdims=True
    )
    low = jnp.log(jnp.finfo(p.dtype).tiny) * jnp.ones_like(a[..., :1])

    def halve(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        above = total(jnp.exp(middle)) > 1
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = jax.lax.fori_loop(0, 64, halve, (low, jnp.zeros_like(low)))
    s = jnp.exp((low + high) / 2)
    slope = -jnp.sum(
        jnp.where(support, p / jnp.where(support, a + s, 1.0) ** 2, 0.0), axis=-1, keepdims=True
    )
    s = s - (total(s) - 1) / slope
    return jnp.where(support, p / jnp.where(support, a + s, 1.0), 0.0)


class BregmanMirror(AbstractMirror):
    """D_φ(u, θ), stepped in the dual coordinates ∇φ.

    **Arguments:**

    - `phi`: a strictly convex function of the parameters.
    - `inverse`: (∇φ)⁻¹, from dual coordinates to parameters; if left out, φ(u) - <dual, u> is
        minimised by Newton's method.
    """

    phi: Callable[[Params], Scalar]
    inverse: Callable[[Params], Params] | None = None

    def move(self, params, covector):
        dual = jax.tree.map(jnp.subtract, jax.grad(self.phi)(params), covector)
        like = structure(params)
        if self.inverse is not None:
            moved = self.inverse(dual)
            fine = jnp.all(jnp.isfinite(like.ravel(moved)))
            return moved, successful_if(fine, RESULTS.no_mirror_point)
        target = like.ravel(dual)
        return _inner(lambda u: self.phi(like.unravel(u)) - jnp.vdot(target, u), params, covector)

    def divergence(self, u, params):
        like = structure(params)
        value, slope = jax.value_and_grad(self.phi)(params)
        return self.phi(u) - value - jnp.vdot(like.ravel(slope), like.ravel(u) - like.ravel(params))


class DivergenceMirror(AbstractMirror):
    """Any smooth divergence, by Newton's method.

    **Arguments:**

    - `rho`: `rho(u, params)`, non-negative and zero at `u = params`.
    """

    rho: Callable[[Params, Params], Scalar]

    def move(self, params, covector):
        like = structure(params)
        g = like.ravel(covector)
        return _inner(
            lambda u: self.rho(like.unravel(u), params) + jnp.vdot(g, u), params, covector
        )

    def divergence(self, u, params):
        return self.rho(u, params)


def _inner(function: Callable, params: Params, covector: Covector) -> tuple[Params, Any]:
    like = structure(params)
    scale = jnp.linalg.norm(like.ravel(covector))
    found = minimise(
        function, like.ravel(params), scale, float(jnp.finfo(like.dtype).eps) ** 0.6, 100
    )
    fine = found.converged & (found.least >= -jnp.sqrt(jnp.finfo(like.dtype).eps))
    return like.unravel(found.point), successful_if(fine, RESULTS.no_mirror_point)


def mirror_step(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    weight: Any,
    mirror: AbstractMirror,
    throw: bool = True,
) -> ProximalStep:
    """Mirror descent on the parameters: the loss to first order, the divergence exactly.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `weight`: λ > 0.
    - `mirror`: `EuclideanMirror()`, `KLMirror()`, `ReverseKLMirror()`, `BregmanMirror(phi,
        inverse)` or `DivergenceMirror(rho)`.
    - `throw`: whether a failure raises (parameters off the simplex; dual coordinates outside their
        range); otherwise look at `result`.
    """
    if not isinstance(mirror, AbstractMirror):
        raise ValueError(f"mirror must be e.g. EuclideanMirror() or KLMirror(), got {mirror!r}.")
    problem, params, data = _open(problem, params, batch, weight=weight)
    return _close(
        _mirror(problem, params, data, jnp.asarray(weight, structure(params).dtype), mirror), throw
    )


@eqx.filter_jit
def _mirror(problem, params, data, weight, mirror):
    loss, _, like = _loss(problem, params, data)
    moving, carried = split(params)
    g = like.unravel(jax.grad(loss)(like.ravel(params)) / weight)
    moved, result = mirror.move(moving, g)
    flat = like.ravel(moved)
    result = RESULTS.where(jnp.all(jnp.isfinite(flat)), result, RESULTS.no_mirror_point)
    nan = jnp.asarray(jnp.nan, like.dtype)
    return ProximalStep(
        eqx.combine(moved, carried), loss(flat), nan, nan, jnp.asarray(1, jnp.int32), result
    )
