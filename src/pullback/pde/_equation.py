r"""A boundary value problem as a composite problem: residuals with Euclidean geometry.

\[ f(\theta)_i = \begin{cases} (\mathcal{D}u_\theta - s)(x_i) & x_i \text{ inside} \\ u_\theta(x_i)
- u(x_i) & x_i \text{ on the boundary}\end{cases} \qquad L = \tfrac12\,\mathrm{mean}_{in} f^2 +
\tfrac12\,\mathrm{mean}_{bd} f^2 \]

The pullback of the Euclidean metric by \(f\) is the Gauss-Newton matrix of the residual, which
gives the energy natural gradient.
"""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.types import Params, Scalar
from .._problem.batch import Batch
from .._problem.composite import Composite
from .._problem.measure import Weights
from ..metric import Euclidean
from ._derivatives import Field
from ._network import network
from ._sampling import collocation


class Equation(eqx.Module):
    """A partial differential equation on the unit box with a known solution.

    For example -u'' = π² sin πx on [0, 1], with twelve units, 40 points inside and 10 on the
    boundary:

        residual = lambda u, x: laplacian(u, x) + jnp.pi**2 * jnp.sin(jnp.pi * x[0])
        solution = lambda x: jnp.sin(jnp.pi * x[0])
        Equation("small", "Poisson, 1-D", residual, solution, (1, 12, 1), 40, 10)

    **Arguments:**

    - `name`: a short name.
    - `title`: a description.
    - `residual`: `residual(u, x)` for a function u and a point x inside; zero at the solution.
    - `solution`: `solution(x)`, which gives the boundary values and the errors.
    - `widths`: the widths of the network, inputs and output included.
    - `inside`, `border`: the numbers of points inside and on the boundary.
    - `renewed`: whether every step draws new points.
    - `evolution`: whether the first coordinate is time.
    - `scale`: the standard deviation of the weights of the first layer at the start.
    - `whole`: the number of whole steps, after which the rate decays as 1/step, for an optimiser
        with renewed points. 0 means whole steps throughout.
    """

    name: str = eqx.field(static=True)
    title: str = eqx.field(static=True)
    residual: Callable[[Field, Float[Array, " d"]], Scalar]
    solution: Field
    widths: tuple[int, ...] = eqx.field(static=True)
    inside: int = eqx.field(static=True)
    border: int = eqx.field(static=True)
    renewed: bool = eqx.field(static=True, default=False)
    evolution: bool = eqx.field(static=True, default=False)
    scale: float = eqx.field(static=True, default=1.0)
    whole: int = eqx.field(static=True, default=0)

    def __repr__(self) -> str:
        network = f"network {'-'.join(map(str, self.widths))}, {self.size} parameters"
        points = f"{self.inside} points inside, {self.border} on the boundary"
        return f"Equation({self.name!r}, {self.title}, {network}, {points})"

    @property
    def dimension(self) -> int:
        """The number of coordinates, time included."""
        return self.widths[0]

    @property
    def size(self) -> int:
        """The number of parameters of the network."""
        return sum((m + 1) * n for m, n in itertools.pairwise(self.widths))

    def problem(self, field: Callable[[Params, Float[Array, " d"]], Scalar] = network) -> Composite:
        """The composite problem of the residuals.

        **Arguments:**

        - `field`: `field(params, x)`, the network at one point.
        """

        def one(params, x, inside):
            u = lambda y: field(params, y)
            return jnp.where(inside, self.residual(u, x), u(x) - self.solution(x))

        def model(params, inputs):
            return jax.vmap(one, (None, 0, 0))(params, *inputs)

        weights = jnp.concatenate(
            [jnp.full(self.inside, 1 / self.inside), jnp.full(self.border, 1 / self.border)]
        )
        return Composite(model, lambda r: r**2 / 2, Euclidean(), Weights(weights))

    def points(self, key: PRNGKeyArray) -> Batch:
        """A batch of collocation points.

        **Arguments:**

        - `key`: a PRNG key.
        """
        return Batch(
            collocation(key, self.inside, self.border, self.dimension, self.evolution), None
        )

    def batches(self, key: PRNGKeyArray) -> Callable[[PRNGKeyArray], Batch] | Batch:
        """The batches for `fit`: a function that draws new points, or points drawn once.

        **Arguments:**

        - `key`: a PRNG key, for points drawn once.
        """
        return self.points if self.renewed else self.points(key)

    def errors(
        self, params: Params, points: Float[Array, "n d"], field: Callable = network
    ) -> tuple[Scalar, Scalar]:
        """The root mean square of u_θ - u, and its ratio to the root mean square of u.

        **Arguments:**

        - `params`: the parameters.
        - `points`: the points at which u_θ and u are compared.
        - `field`: the network at one point.
        """
        exact = jax.vmap(self.solution)(points)
        error = jnp.sqrt(jnp.mean((jax.vmap(field, (None, 0))(params, points) - exact) ** 2))
        return error, error / jnp.sqrt(jnp.mean(exact**2))
