r"""A boundary value problem as a sum of terms: residuals with Euclidean geometry.

\[ f_0(\theta)_i = (\mathcal{D}u_\theta)(x_i), \quad f_k(\theta)_j = (\mathcal{B}_k u_\theta)(y_j),
   \qquad L = \sum_k \frac{\omega_k}{2}\,\mathrm{mean}_j \|f_k(\theta)_j\|^2 , \]

with points of its own, and their number, for each condition \(\mathcal{B}_k\). The pullback of the
Euclidean metric by \(f\) is the Gauss-Newton matrix of the residuals, which gives the energy
natural gradient.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import error, function, integer, takes
from .._base.functions import canonical
from .._base.types import Params, Scalar
from .._problem.composite import Composite
from .._problem.terms import Terms
from ..metric import Euclidean
from ._adaptive import ByResidual
from ._box import Box
from ._condition import AbstractCondition, Domain, points_of
from ._conditions import Dirichlet
from ._network import network
from ._sampling import unit

INSIDE = "inside"
"""The name of the term of the equation itself."""
EXAMPLE = (
    "Equation(residual=lambda u, x: laplacian(u, x) + 1.0, domain=Box([0.0, 0.0], [1.0, 1.0]), "
    "conditions=[Dirichlet(0.0, 100)])"
)
Field = Callable[[Params, Float[Array, " d"]], Any]
"""`field(params, x)`, the network at one point."""


class Equation(eqx.Module):
    """A partial differential equation, its domain, and its conditions.

    ```python
    equation = pb.pde.Equation(
        residual=lambda u, x: pb.pde.partial(u, x, 0) - pb.pde.laplacian(u, x, [1]),
        domain=pb.pde.Box([0.0, -1.0], [1.0, 1.0]),  # time and space
        evolution=True,
        conditions=[
            pb.pde.Initial(lambda x: jnp.sin(jnp.pi * x[1]), 100),
            pb.pde.Dirichlet(0.0, 100),
        ],
    )
    opt = pb.NaturalGradientDescent(equation.problem())
    fit = pb.fit(opt, params, equation.batches(key), steps=100)
    ```

    Without conditions, the `solution` gives the values on the boundary of the unit box.
    """

    name: str = eqx.field(static=True)
    title: str = eqx.field(static=True)
    residual: Callable[..., Any]
    solution: Callable[[Float[Array, " d"]], Any] | None
    widths: tuple[int, ...] | None = eqx.field(static=True)
    inside: int = eqx.field(static=True)
    border: int = eqx.field(static=True)
    renewed: bool = eqx.field(static=True)
    evolution: bool = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    whole: int = eqx.field(static=True)
    domain: Any = eqx.field(static=True)
    conditions: tuple[AbstractCondition, ...]
    labels: tuple[str, ...] = eqx.field(static=True)
    """The names of the conditions."""
    weights: dict[str, Any]
    adaptive: ByResidual | None

    def __init__(
        self,
        name: str = "equation",
        title: str = "",
        residual: Callable[..., Any] | None = None,
        solution: Callable[[Float[Array, " d"]], Any] | None = None,
        widths: Sequence[int] | None = None,
        inside: int = 1000,
        border: int = 200,
        renewed: bool = True,
        evolution: bool = False,
        scale: float = 1.0,
        whole: int = 0,
        *,
        domain: Box | Callable[[PRNGKeyArray, int], Array] | None = None,
        conditions: Sequence[AbstractCondition] | None = None,
        weights: dict[str, Any] | None = None,
        adaptive: ByResidual | None = None,
    ):
        """Describe the problem.

        **Arguments:**

        - `name`: a short name.
        - `title`: a description.
        - `residual`: `residual(u, x)` for a function u and a point x inside, zero at the solution:
            a number, or for a system a vector or a tuple. With a third argument, `residual(u, x,
            params)`, it also receives the parameters, e.g. for unknown coefficients.
        - `solution`: `solution(x)`, if it is known: for `errors`, and for the boundary values if
            there are no `conditions`.
        - `widths`: the widths of the network, inputs and outputs included.
        - `inside`: the number of points inside.
        - `border`: the number of points on the boundary, if there are no `conditions`.
        - `renewed`: whether every step draws new points. On fixed points a small loss says little
            about the error between them.
        - `evolution`: whether the first coordinate is time.
        - `scale`: the standard deviation of the weights of the first layer at the start.
        - `whole`: the number of whole steps, after which the rate decays as 1/step, for an
            optimiser with renewed points. 0 means whole steps throughout.
        - `domain`: a `Box`, or a function `(key, count)` that returns points inside. Defaults to
            the unit box, of the dimension of the network.
        - `conditions`: a list of `Dirichlet`, `Neumann`, `Initial`, `Periodic`, `Data`,
            `Condition`; the terms have their names, with a number if a name is repeated. An empty
            list is for a field that satisfies its conditions by construction.
        - `weights`: a weight for each term, `inside` and the names of the conditions; defaults to
            1. They multiply the loss of a term and its metric.
        - `adaptive`: draws the points inside by their residual, `ByResidual()`; defaults to none.
        """
        function("Equation", "residual", residual, EXAMPLE)
        assert residual is not None
        _check_third(residual)
        self.name, self.title = name, title
        self.residual, self.solution = canonical(residual), canonical(solution)
        self.widths = None if widths is None else tuple(widths)
        self.inside = integer("Equation", "inside", inside, 1)
        self.border = integer("Equation", "border", border, 1)
        self.renewed, self.evolution, self.scale, self.whole = renewed, evolution, scale, whole
        self.domain = self._domain(domain)
        if conditions is None:
            conditions = [self._boundary()]
        self.labels = _labels(conditions)
        self.conditions = tuple(conditions)
        self.weights = dict.fromkeys(self.names, 1.0) | self._checked(weights)
        self.adaptive = adaptive
        if adaptive is not None and not renewed:
            raise ValueError(
                "Equation(adaptive=..., renewed=False): points by residual are new in every step. "
                "Leave renewed= out."
            )

    def __repr__(self) -> str:
        words = [repr(self.name)] + ([self.title] if self.title else [])
        if self.widths is not None:
            words.append(f"network {'-'.join(map(str, self.widths))}, {self.size} parameters")
        words.append(f"{self.inside} points inside")
        for label, condition in zip(self.labels, self.conditions, strict=True):
            where = "on the boundary" if label == "boundary" else label
            points = getattr(condition, "points", None)
            words.append(where if points is None else f"{points} {where}")
        return f"Equation({', '.join(words)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the terms."""
        return (INSIDE, *self.labels)

    @property
    def dimension(self) -> int:
        """The number of coordinates, time included."""
        if isinstance(self.domain, Box):
            return self.domain.dimension
        return self.domain(jax.random.key(0), 1).shape[1]

    @property
    def size(self) -> int:
        """The number of parameters of the network."""
        if self.widths is None:
            raise ValueError(
                "Equation.size counts the parameters of a network: pass widths=(2, 64, 1)."
            )
        return sum((m + 1) * n for m, n in itertools.pairwise(self.widths))

    def problem(self, field: Field = network) -> Terms:
        """The problem: a term for the equation, `inside`, and one for each condition, by name.

        **Arguments:**

        - `field`: `field(params, x)`, the network at one point.
        """
        # The terms hold nothing but what they use: those of an equal equation are then the same.
        field = canonical(field)
        terms = {INSIDE: _term(_held_inside(self.residual, field))}
        for label, condition in zip(self.labels, self.conditions, strict=True):
            terms[label] = _term(_held(condition._at_points(), field))
        return Terms(terms, weights=self.weights)

    def points(
        self, key: PRNGKeyArray, params: Params | None = None, field: Field = network
    ) -> dict[str, Any]:
        """A batch of points for every term, `{"inside": (x,), "dirichlet": (y,), ...}`.

        **Arguments:**

        - `key`: a PRNG key.
        - `params`: the parameters, at which `adaptive` points are drawn.
        - `field`: the network at one point.
        """
        keys = jax.random.split(key, len(self.names))
        domain = Domain(self.domain if isinstance(self.domain, Box) else None, self.evolution)
        batch = {
            label: (condition.sample(own, domain),)
            for own, label, condition in zip(keys[1:], self.labels, self.conditions, strict=True)
        }
        return {INSIDE: (self._points_inside(keys[0], params, field),), **batch}

    def batches(
        self, key: PRNGKeyArray, field: Field = network
    ) -> Callable[..., dict[str, Any]] | dict[str, Any]:
        """The batches for `fit`: a function that draws new points, or points drawn once.

        **Arguments:**

        - `key`: a PRNG key, for points drawn once.
        - `field`: the network at one point, for `adaptive` points.
        """
        if not self.renewed:
            return self.points(key)
        # Without what draws no points: an equal equation then has the same function.
        where = lambda e: (e.solution, e.weights)
        bare = eqx.tree_at(where, self, (None, None), is_leaf=lambda x: x is None)
        if self.adaptive is None:
            return lambda key: bare.points(key)
        field = canonical(field)
        return lambda key, params: bare.points(key, params, field)

    def errors(
        self, params: Params, points: Float[Array, "n d"], field: Field = network
    ) -> tuple[Scalar, Scalar]:
        """The root mean square of u_θ - u, and its ratio to the root mean square of u.

        **Arguments:**

        - `params`: the parameters.
        - `points`: the points at which u_θ and u are compared.
        - `field`: the network at one point.
        """
        if self.solution is None:
            raise ValueError(
                "Equation.errors compares with the solution: pass Equation(solution=...), or "
                "compare with a reference of your own."
            )
        exact = jax.vmap(self.solution)(points)
        found = jax.vmap(field, (None, 0))(params, points)
        # (n, 1) and (n,) would be subtracted each from each; axes of length one say nothing.
        wide = lambda x: tuple(n for n in x.shape[1:] if n != 1)
        if wide(found) != wide(exact):
            raise ValueError(
                "Equation.errors: the field and the solution must have the same shape at a point, "
                f"got {found.shape[1:]} and {exact.shape[1:]}: pass a field that returns what is "
                "compared, errors(params, points, lambda params, x: field(params, x)[0])."
            )
        error = jnp.sqrt(jnp.mean(_square(found.reshape(exact.shape) - exact)))
        return error, error / jnp.sqrt(jnp.mean(_square(exact)))

    # ---- parts ----------------------------------------------------------------------------------

    def _points_inside(self, key: PRNGKeyArray, params: Params | None, field: Field) -> Array:
        """Return points inside, by their residual if that is asked for."""
        if self.adaptive is None or params is None:
            return points_of("Equation", self.domain, key, self.inside)
        draw, choose = jax.random.split(key)
        many = points_of("Equation", self.domain, draw, self.adaptive.candidates * self.inside)
        inside = _held_inside(self.residual, field)
        residuals = jax.vmap(lambda x: stacked(inside(params, x)))(many)
        return many[self.adaptive.choose(choose, residuals, self.inside)]

    def _domain(self, domain: Any) -> Any:
        """Return the domain; the unit box if none was given."""
        if domain is None:
            if self.widths is None:
                wanted = "given, or widths=, whose first entry is the dimension of the unit box"
                raise error("Equation", "domain", domain, wanted, EXAMPLE)
            return unit(self.widths[0])
        function("Equation", "domain", domain, EXAMPLE)
        return canonical(domain)

    def _boundary(self) -> Dirichlet:
        """Return the values of the solution on the boundary; the last time is no boundary."""
        if self.solution is None or not isinstance(self.domain, Box):
            wanted = "given, or solution=, whose values on the boundary of a box are taken"
            raise error("Equation", "conditions", None, wanted, EXAMPLE)
        faces = [face for face in self.domain.faces if not (self.evolution and face == (0, 1))]
        return Dirichlet(self.solution, self.border, faces, name="boundary")

    def _checked(self, weights: Any) -> dict[str, Any]:
        """Return the weights; raise a `ValueError` for one of no term."""
        weights = {} if weights is None else weights
        unknown = [name for name in weights if name not in self.names]
        if unknown:
            example = f"weights={{{self.names[-1]!r}: 10.0}}"
            wanted = f"numbers for some of {', '.join(self.names)}; {unknown[0]!r} is none"
            raise error("Equation", "weights", weights, wanted, example)
        return dict(weights)


def _check_third(residual: Callable[..., Any]) -> None:
    """Raise a `ValueError` if a constant stands where a residual receives the parameters."""
    try:
        arguments = list(inspect.signature(residual).parameters.values())
    except ValueError:  # a function without a signature
        return
    third = arguments[2] if len(arguments) > 2 else None
    if third is None or third.kind not in (third.POSITIONAL_ONLY, third.POSITIONAL_OR_KEYWORD):
        return
    if third.default is not third.empty and third.default is not None:
        raise ValueError(
            f"Equation(residual=...): the third argument of a residual receives the parameters, "
            f"and {third.name!r} has a default. Give a constant by name, residual(u, x, *, "
            f"{third.name}=...), or leave the default out, residual(u, x, params)."
        )


def stacked(residual: Any) -> Array:
    """Return a residual, a number, a vector or a tuple of them, as one array."""
    if not isinstance(residual, tuple | list):
        return jnp.asarray(residual)
    return jnp.concatenate([jnp.ravel(jnp.asarray(part)) for part in residual])


def _term(one: Callable[[Params, Any], Any]) -> Composite:
    """Return the term of a residual at one point: half of its mean square."""

    def model(params, inputs):
        return jax.vmap(lambda point: stacked(one(params, point)))(inputs)

    def loss(r):
        return jnp.sum(_square(r.reshape(r.shape[0], -1)), axis=1) / 2

    return Composite(model, loss, Euclidean())


def _square(x: Array) -> Array:
    """Return |x|² of each entry; the modulus itself has no derivative at zero."""
    return x.real**2 + x.imag**2 if jnp.iscomplexobj(x) else x**2


def _held_inside(residual: Callable[..., Any], field: Field) -> Callable[[Params, Any], Any]:
    """Return the residual of an equation as a function of the parameters and a point."""

    def inside(params, x):
        u = lambda y: field(params, y)
        return residual(u, x, params) if takes(residual, u, x, params) else residual(u, x)

    return inside


def _held(condition: AbstractCondition, field: Field) -> Callable[[Params, Any], Any]:
    """Return the residual of a condition as a function of the parameters and a point."""
    return lambda params, point: condition.residual(lambda y: field(params, y), point)


def _labels(conditions: Any) -> tuple[str, ...]:
    """Return a name for each condition, with a number where one is repeated."""
    if not isinstance(conditions, tuple | list):
        raise error("Equation", "conditions", conditions, "a list of conditions", EXAMPLE)
    labels: list[str] = []
    for condition in conditions:
        if not isinstance(condition, AbstractCondition):
            raise error("Equation", "conditions", condition, "a list of conditions", EXAMPLE)
        numbered = (f"{condition.name}{i}" for i in itertools.count(2))
        names = itertools.chain([condition.name], numbered)
        labels.append(next(name for name in names if name not in (INSIDE, *labels)))
    return tuple(labels)
