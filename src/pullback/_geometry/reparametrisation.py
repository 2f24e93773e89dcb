r"""Changes of parameters: \(\theta = f(\xi)\), by which a problem \(\varphi\) on \(\theta\) becomes
\(\psi = \varphi \circ f\) on \(\xi\).

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

from .._base.checks import function, instance, positive
from .._base.show import settings
from .._base.stateful import Stateful
from .._base.tree import split, structure
from .._base.types import Params, Scalar, Vector
from .._compat.xla import jit
from .._problem.problem import AbstractProblem
from .._problem.validate import check_problem


class AbstractReparametrisation(eqx.Module):
    """A map from new parameters to old ones. To write one, give `__call__` and `inverse`."""

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def __call__(self, new: Params) -> Params:
        """Return f(new), the old parameters.

        **Arguments:**

        - `new`: new parameters.
        """

    @abc.abstractmethod
    def inverse(self, old: Params) -> Params:
        """Return f⁻¹(old), the new parameters.

        **Arguments:**

        - `old`: old parameters.
        """

    def jacobian(self, new: Params) -> Float[Array, "P Q"]:
        """Return F at a point, dense, on flat vectors.

        **Arguments:**

        - `new`: new parameters.
        """
        return _jacobian(self, new)

    def push(self, new: Params, v: Vector) -> Vector:
        """Return F v, a vector on the new parameters as one on the old.

        **Arguments:**

        - `new`: new parameters.
        - `v`: a vector there.
        """
        moving, carried = split(new)
        return jax.jvp(lambda x: split(self(eqx.combine(x, carried)))[0], (moving,), (v,))[1]


@jit
def _jacobian(f: Callable[[Params], Params], new: Params) -> Float[Array, "P Q"]:
    like, carried = structure(new), split(new)[1]

    def flat(x):
        old = f(eqx.combine(like.unravel(x), carried))
        return structure(old).ravel(old)

    return jax.jacfwd(flat)(like.ravel(new))


class Reparametrisation(AbstractReparametrisation):
    """A smooth map from new parameters to old ones, given as a function.

    Without an inverse, f(ξ) = θ is solved by Newton's method, which needs as many new parameters as
    old ones.

        pullback.Reparametrisation(lambda new: jax.tree.map(jnp.sinh, new))
    """

    f: Callable[[Params], Params]
    f_inverse: Callable[[Params], Params] | None
    start: Params | None

    def __init__(
        self,
        f: Callable[[Params], Params],
        inverse: Callable[[Params], Params] | None = None,
        start: Params | None = None,
    ):
        """Reparametrise.

        **Arguments:**

        - `f`: `f(new) -> old`, both pytrees.
        - `inverse`: `inverse(old) -> new`; computed by default.
        - `start`: where to start computing it, of the structure of the new parameters; defaults to
            the old parameters.
        """
        example = "Reparametrisation(f, inverse) with f(new) -> old and inverse(old) -> new"
        function("Reparametrisation", "f", f, example)
        if inverse is not None:
            function("Reparametrisation", "inverse", inverse, example)
        self.f = f
        self.f_inverse = inverse
        self.start = start

    def __call__(self, new):
        return self.f(new)

    def inverse(self, old):
        if self.f_inverse is not None:
            return self.f_inverse(old)
        return _newton(self.f, old, old if self.start is None else self.start)


def _newton(f: Callable[[Params], Params], old: Params, start: Params) -> Params:
    """Solve f(new) = old, with halving of steps that do not help."""
    like, target = structure(start), structure(old)
    carried, goal = split(start)[1], target.ravel(old)
    if like.size != target.size:
        raise ValueError(
            f"Reparametrisation: {like.size} new parameters for {target.size} old ones; a change "
            "of parameters needs as many. Give start=..., of the structure of the new parameters."
        )
    tolerance = 100 * float(jnp.finfo(target.dtype).eps) * (1 + float(jnp.linalg.norm(goal)))
    whole = lambda x: eqx.combine(like.unravel(x), carried)
    residual = lambda x: target.ravel(f(whole(x))) - goal
    size = lambda r: float(jnp.linalg.norm(r))
    x = like.ravel(start)
    r = residual(x)
    for _ in range(60):
        if size(r) <= tolerance:
            return whole(x)
        step = np.linalg.lstsq(np.asarray(_jacobian(f, whole(x))), np.asarray(r), rcond=None)[0]
        step = jnp.asarray(step)
        scale = 1.0
        while scale > 1e-6 and not size(residual(x - scale * step)) < size(r):
            scale /= 2
        x = x - scale * step
        r = residual(x)
    raise ValueError(
        "Reparametrisation: Newton's method did not find new parameters with f(new) = params "
        f"(residual {size(r):.1e}). Give the inverse, Reparametrisation(f, inverse=...), or a "
        "better start=..."
    )


class _OnFlat(AbstractReparametrisation):
    """A map that keeps the structure of the parameters and acts on their flat vector."""

    @abc.abstractmethod
    def forward(self, x: Array) -> Array:
        """Return f of a flat vector."""

    @abc.abstractmethod
    def backward(self, x: Array) -> Array:
        """Return f⁻¹ of a flat vector."""

    def __call__(self, new):
        return self._apply(self.forward, new)

    def inverse(self, old):
        return self._apply(self.backward, old)

    def _apply(self, change: Callable[[Array], Array], params: Params) -> Params:
        like, carried = structure(params), split(params)[1]
        return eqx.combine(like.unravel(change(like.ravel(params))), carried)


class Affine(_OnFlat):
    """The map θ = Mξ + b on the flat vector of the floating leaves.

    **Arguments:**

    - `matrix`: M, (P, P), invertible.
    - `offset`: b, (P,) or a number.
    """

    matrix: Float[Array, "P P"]
    offset: Float[Array, " P"] | Scalar | float = 0.0

    def forward(self, x):
        return self.matrix @ x + self.offset

    def backward(self, x):
        return jnp.linalg.solve(self.matrix, x - self.offset)


class Units(AbstractReparametrisation):
    """A change of units, θ = scale · ξ, e.g. `Units(60.0)` for minutes to seconds. Diagonal.

    **Arguments:**

    - `scale`: a number, or a pytree like the parameters.
    """

    scale: Any

    def _scale(self, params: Params) -> Params:
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
    """The map θ = e^ξ: logarithms as coordinates, for positive parameters.

    ```python
    new = pb.Exponential()
    pb.check_invariance(problem, params, (x, y), reparametrisation=new)
    ```
    """

    def forward(self, x):
        return jnp.exp(x)

    def backward(self, x):
        return jnp.log(x)


class Cubic(_OnFlat):
    """The map θ = c + (ξ - d)³, coordinate by coordinate.

    A homeomorphism whose inverse is not differentiable at c.
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
    """θ = M (ξ + a tanh(ξ - c)), a > -1: a linear map after a smooth bending of each coordinate.

    Its inverse is found by bisection.

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
    """Return a random change of parameters for tests, nonlinear and well conditioned.

    Its condition number is at most 4, times that of the bending.

    **Arguments:**

    - `params`: the old parameters, for their number.
    - `key`: a PRNG key.
    - `amplitude`: the size of the bending, in [0, 1); zero is a linear map.
    """
    positive("random_reparametrisation", "amplitude", amplitude, below=1, zero=True)
    like = structure(params)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    left, right = (np.linalg.qr(rng.standard_normal((like.size, like.size)))[0] for _ in range(2))
    matrix = (left * np.exp(rng.uniform(-np.log(2), np.log(2), like.size))) @ right
    # It bends where the point is, so that the second derivative is not zero there.
    centre = np.linalg.solve(matrix, np.asarray(like.ravel(params), float))
    centre = centre + rng.uniform(0.3, 0.8, like.size)
    bend = amplitude * rng.uniform(0.5, 1.0, like.size)
    return Warp(*(jnp.asarray(x, like.dtype) for x in (matrix, centre, bend)))


class Composition(eqx.Module):
    """The model ψ = φ ∘ f."""

    model: Callable
    f: AbstractReparametrisation
    stateful: bool = eqx.field(static=True)

    def __call__(self, new: Params, *rest: Any) -> Any:
        """Return φ(f(new)); with state, f maps the `Stateful`."""
        if not self.stateful:
            return self.model(self.f(new), *rest)
        state, *inputs = rest
        old = self.f(Stateful(new, state))
        return self.model(old.params, old.state, *inputs)


def reparametrise(
    problem: AbstractProblem, reparametrisation: AbstractReparametrisation
) -> AbstractProblem:
    """Return the same problem in other parameters.

    **Arguments:**

    - `problem`: a problem.
    - `reparametrisation`: f, from new parameters to old ones.
    """
    check_problem(problem)
    wanted, example = "a change of parameters", "reparametrise(problem, Reparametrisation(f))"
    instance(
        "reparametrise",
        "reparametrisation",
        reparametrisation,
        AbstractReparametrisation,
        wanted,
        example,
    )

    def composed(term):
        model = Composition(term.model, reparametrisation, term.stateful)
        return eqx.tree_at(lambda p: p.model, term, model)

    return problem.mapped(composed)
