r"""Changes of parameters: \(\theta = f(\xi)\), a problem \(\varphi\) on \(\theta\) becoming \(\psi
= \varphi \circ f\) on \(\xi\).

With \(F = \partial f/\partial\xi\): covectors pull back, \(g_\xi = F^\top g_\theta\); vectors push
forward, \(v_\theta = F v_\xi\); metrics pull back, \(G_\xi = F^\top G_\theta F\). \(f\) is a local
diffeomorphism at \(\xi\) if \(F\) is square and invertible.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.tree import split, structure
from .._base.types import Params, Vector
from .._problem.composite import Composite


class AbstractReparametrisation(eqx.Module):
    """A map from new parameters to old ones."""

    @abc.abstractmethod
    def __call__(self, new: Params) -> Params:
        """f: the old parameters of new ones.

        **Arguments:**

        - `new`: new parameters.
        """

    @abc.abstractmethod
    def inverse(self, old: Params) -> Params:
        """f⁻¹: new parameters of old ones.

        **Arguments:**

        - `old`: old parameters.
        """

    def jacobian(self, new: Params) -> Float[Array, "P Q"]:
        """F at a point, dense, on flat vectors.

        **Arguments:**

        - `new`: new parameters.
        """
        return _jacobian(self, new)

    def push(self, new: Params, v: Vector) -> Vector:
        """F v: a vector on the new parameters as one on the old.

        **Arguments:**

        - `new`: new parameters.
        - `v`: a vector there.
        """
        moving, carried = split(new)
        return jax.jvp(lambda x: split(self(eqx.combine(x, carried)))[0], (moving,), (v,))[1]


@eqx.filter_jit
def _jacobian(f: Callable, new: Params) -> Any:
    like, carried = structure(new), split(new)[1]
    return jax.jacfwd(lambda x: structure(f(new)).ravel(f(eqx.combine(like.unravel(x), carried))))(
        like.ravel(new)
    )


class Reparametrisation(AbstractReparametrisation):
    """Any smooth map. Without an inverse, f(ξ) = θ is solved by Newton's method, which needs as
    many new parameters as old ones.
    """

    f: Callable
    f_inverse: Callable | None
    start: Any

    def __init__(self, f: Callable, inverse: Callable | None = None, start: Any = None):
        """Reparametrise.

        **Arguments:**

        - `f`: `f(new) -> old`, both pytrees.
        - `inverse`: `inverse(old) -> new`; if left out it is computed.
        - `start`: where to start computing it, of the structure of the new parameters; the old
            parameters if left out.
        """
        if not callable(f) or (inverse is not None and not callable(inverse)):
            raise ValueError(
                "Reparametrisation(f, inverse): both must be callable, f(new) -> old and inverse(old) -> new."
            )
        self.f, self.f_inverse, self.start = f, inverse, start

    def __call__(self, new):
        return self.f(new)

    def inverse(self, old):
        if self.f_inverse is not None:
            return self.f_inverse(old)
        return _newton(self.f, old, old if self.start is None else self.start)


def _newton(f: Callable, old: Params, start: Params) -> Params:
    """Solve f(new) = old, with halving of steps that do not help."""
    like, target = structure(start), structure(old)
    carried, goal = split(start)[1], target.ravel(old)
    if like.size != target.size:
        raise ValueError(
            f"Reparametrisation: {like.size} new parameters for {target.size} old ones; a change of parameters needs as many. "
            "Give start=..., of the structure of the new parameters."
        )
    tolerance = 100 * float(jnp.finfo(target.dtype).eps) * (1 + float(jnp.linalg.norm(goal)))

    def residual(x):
        return target.ravel(f(eqx.combine(like.unravel(x), carried))) - goal

    x = like.ravel(start)
    r = residual(x)
    for _ in range(60):
        if float(jnp.linalg.norm(r)) <= tolerance:
            return eqx.combine(like.unravel(x), carried)
        step = jnp.asarray(
            np.linalg.lstsq(
                np.asarray(_jacobian(f, eqx.combine(like.unravel(x), carried))),
                np.asarray(r),
                rcond=None,
            )[0]
        )
        scale = 1.0
        while scale > 1e-6 and not float(jnp.linalg.norm(residual(x - scale * step))) < float(
            jnp.linalg.norm(r)
        ):
            scale /= 2
        x = x - scale * step
        r = residual(x)
    raise ValueError(
        f"Reparametrisation: Newton's method did not find new parameters with f(new) = params (residual {float(jnp.linalg.norm(r)):.1e}). "
        "Give the inverse, Reparametrisation(f, inverse=...), or a better start=..."
    )


class _OnFlat(AbstractReparametrisation):
    """A map that keeps the structure of the parameters and acts on their flat vector."""

    @abc.abstractmethod
    def forward(self, x: Array) -> Array:
        """f on a flat vector."""

    @abc.abstractmethod
    def backward(self, x: Array) -> Array:
        """f⁻¹ on a flat vector."""

    def __call__(self, new):
        return self._apply(self.forward, new)

    def inverse(self, old):
        return self._apply(self.backward, old)

    def _apply(self, function, params):
        like, carried = structure(params), split(params)[1]
        return eqx.combine(like.unravel(function(like.ravel(params))), carried)


class Affine(_OnFlat):
    """θ = Mξ + b on the flat vector of the floating leaves.

    **Arguments:**

    - `matrix`: M, (P, P), invertible.
    - `offset`: b, (P,) or a number.
    """

    matrix: Float[Array, "P P"]
    offset: Any = 0.0

    def forward(self, x):
        return self.matrix @ x + self.offset

    def backward(self, x):
        return jnp.linalg.solve(self.matrix, x - self.offset)


class Units(AbstractReparametrisation):
    """A change of units, θ = scale · ξ: minutes to seconds. Diagonal.

    **Arguments:**

    - `scale`: a number, or a pytree like the parameters.
    """

    scale: Any

    def _scale(self, params):
        if eqx.is_array_like(self.scale) and jnp.ndim(self.scale) == 0:
            return jax.tree.map(lambda x: jnp.asarray(self.scale, x.dtype), split(params)[0])
        return self.scale

    def __call__(self, new):
        moving, carried = split(new)
        return eqx.combine(jax.tree.map(lambda x, s: x * s, moving, self._scale(new)), carried)

    def inverse(self, old):
        moving, carried = split(old)
        return eqx.combine(jax.tree.map(lambda x, s: x / s, moving, self._scale(old)), carried)


class Exponential(_OnFlat):
    """θ = e^ξ: logarithms as coordinates, for positive parameters."""

    def forward(self, x):
        return jnp.exp(x)

    def backward(self, x):
        return jnp.log(x)


class Cubic(_OnFlat):
    """θ = c + (ξ - d)³, coordinate by coordinate: a homeomorphism whose inverse is not
    differentiable at c.

    With c the point itself, F = 0 there: the counterexample of Proposition 2 (van Oostrum, Müller
    and Ay), by which no vector but zero is independent of the parametrisation.

    **Arguments:**

    - `centre`: c, (P,).
    - `shift`: d, a number.
    """

    centre: Float[Array, " P"]
    shift: float = 0.0

    def forward(self, x):
        return self.centre + (x - self.shift) ** 3

    def backward(self, x):
        return self.shift + jnp.cbrt(x - self.centre)


class Warp(_OnFlat):
    """θ = M (ξ + a tanh(ξ - c)), a > -1: a linear map after a smooth bending of each coordinate;
    its inverse is found by bisection.

    **Arguments:**

    - `matrix`: M, (P, P), invertible.
    - `centre`: c, (P,), where each coordinate bends.
    - `amplitude`: a, (P,), more than -1.
    """

    matrix: Float[Array, "P P"]
    centre: Float[Array, " P"]
    amplitude: Float[Array, " P"]

    def _bend(self, x):
        return x + self.amplitude * jnp.tanh(x - self.centre)

    def forward(self, x):
        return self.matrix @ self._bend(x)

    def backward(self, x):
        goal = jnp.linalg.solve(self.matrix, x)
        bound = jnp.abs(self.amplitude)

        def halve(_, bracket):
            low, high = bracket
            middle = (low + high) / 2
            below = self._bend(middle) < goal
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        low, high = jax.lax.fori_loop(0, 60, halve, (goal - bound, goal + bound))
        guess = (low + high) / 2
        slope = 1 + self.amplitude / jnp.cosh(guess - self.centre) ** 2
        return guess - (self._bend(guess) - goal) / slope


def random_reparametrisation(params: Params, key: PRNGKeyArray, amplitude: float = 0.5) -> Warp:
    """A random change of parameters, nonlinear and with a condition number of at most 4 (times that
    of the bending), for tests.

    **Arguments:**

    - `params`: the old parameters, for their number.
    - `key`: a PRNG key.
    - `amplitude`: the size of the bending, in [0, 1); zero is a linear map.
    """
    if not 0 <= amplitude < 1:
        raise ValueError(
            f"random_reparametrisation(amplitude={amplitude}): the amplitude must be in [0, 1)."
        )
    like = structure(params)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    left, right = (np.linalg.qr(rng.standard_normal((like.size, like.size)))[0] for _ in range(2))
    matrix = (left * np.exp(rng.uniform(-np.log(2), np.log(2), like.size))) @ right
    # It bends where the point is, so that the point sees the second derivative.
    centre = np.linalg.solve(matrix, np.asarray(like.ravel(params), float)) + rng.uniform(
        0.3, 0.8, like.size
    )
    bend = amplitude * rng.uniform(0.5, 1.0, like.size)
    return Warp(*(jnp.asarray(x, like.dtype) for x in (matrix, centre, bend)))


class Composition(eqx.Module):
    """The model ψ = φ ∘ f."""

    model: Callable
    f: AbstractReparametrisation

    def __call__(self, new: Params, *inputs: Any) -> Any:
        """φ(f(new))."""
        return self.model(self.f(new), *inputs)


def reparametrise(problem: Composite, reparametrisation: AbstractReparametrisation) -> Composite:
    """The same problem in other parameters.

    **Arguments:**

    - `problem`: a problem.
    - `reparametrisation`: f, from new parameters to old ones.
    """
    model = Composition(problem.model, reparametrisation)
    return Composite(model, problem.loss, problem.metric, problem.measure, problem.coupled)
