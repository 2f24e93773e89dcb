"""The suite: each equation with its network, its start, and what errors are measured against."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from pullback.pde import Box, Data, Equation, initialise, laplacian, network, partial

from .problems import (
    ALLEN_CAHN,
    BURGERS,
    BURGERS_PERIODIC,
    CONDUCTIVITY,
    EQUATIONS,
    KOVASZNAY,
    PERIODIC_VISCOSITY,
    STRIP,
    VISCOSITY,
    hard_burgers,
)
from .problems import as_published as published_points
from .references import allen_cahn, burgers

TEST_POINTS = 20_000
STEPS = {
    "A": 3200, "B": 3200, "C": 3200, "D": 1600, "E": 3200, "F": 500, "F'": 10_000, "G": 1600,
    "Helmholtz": 1600, "Burgers": 3200, "Burgers-periodic": 1600, "Allen-Cahn": 1600,
    "Kovasznay": 800, "Inverse": 400,
}  # fmt: skip
"""How many steps a run makes unless told otherwise."""
MEASUREMENTS = 100
"""How many measurements of u the inverse problem has."""

Test = Callable[[PRNGKeyArray], tuple[Float[Array, "n d"], Float[Array, "n ..."]]]
"""Points, and the solution there."""


def network_of(params: PyTree, x: Array) -> Array:
    """The network of parameters that hold a coefficient too."""
    return network(params["network"], x)


def periodic(params: PyTree, x: Array) -> Array:
    """The network at (t, cos πx, sin πx): of period 2 in x."""
    return network(params, jnp.stack([x[0], jnp.cos(jnp.pi * x[1]), jnp.sin(jnp.pi * x[1])]))


class Case(NamedTuple):
    """An equation with everything that a run needs."""

    equation: Equation
    start: Callable[[PRNGKeyArray], PyTree]
    test: Test
    field: Callable[[PyTree, Array], Array] = network

    @property
    def steps(self) -> int:
        """How many steps a run makes unless told otherwise."""
        return STEPS.get(self.equation.name, 1000)

    def errors(self, params: PyTree, points: Array, exact: Array) -> tuple[Array, Array]:
        """The root mean square error, and its ratio to the root mean square of the solution."""
        found = jax.vmap(self.field, (None, 0))(params, points)
        error = jnp.sqrt(jnp.mean((found - exact) ** 2))
        return error, error / jnp.sqrt(jnp.mean(exact**2))


def uniform_start(key: PRNGKeyArray, widths: tuple[int, ...]) -> PyTree:
    """Weights and biases uniform in ±1/√n, n the width before: the published initialisation."""
    params = []
    for i, (m, n) in enumerate(itertools.pairwise(widths)):
        one, two = jax.random.split(jax.random.fold_in(key, i))
        draw = lambda k, *shape, m=m: jax.random.uniform(k, shape, minval=-1, maxval=1) / m**0.5
        params.append((draw(one, n, m), draw(two, n)))
    return params


def as_case(equation: Equation, published: bool = False) -> Case:
    """The case of an equation whose solution is known, with our start or the published one."""
    widths, domain = equation.widths, equation.domain
    assert widths is not None

    def start(key: PRNGKeyArray) -> PyTree:
        if published:
            return uniform_start(key, widths)
        return initialise(key, widths, equation.scale, domain)

    def test(key: PRNGKeyArray) -> tuple[Array, Array]:
        points = domain(key, TEST_POINTS)
        assert equation.solution is not None
        return points, jax.vmap(equation.solution)(points)

    return Case(equation, start, test)


def _burgers_test(viscosity: float) -> Test:
    def test(key: PRNGKeyArray) -> tuple[Array, Array]:
        points = STRIP(key, TEST_POINTS)
        return points, jnp.asarray(burgers(np.asarray(points), viscosity))

    return test


def _of_features(equation: Equation, viscosity: float, field: Callable) -> Case:
    """A case of Burgers whose network has the inputs t and two features between -1 and 1."""
    inputs, widths = Box([0.0, -1.0, -1.0], [1.0, 1.0, 1.0]), equation.widths
    assert widths is not None
    start = lambda key: initialise(key, widths, equation.scale, inputs)
    return Case(equation, start, _burgers_test(viscosity), field)


def _allen_cahn_test(key: PRNGKeyArray) -> tuple[Array, Array]:
    points, values = allen_cahn()
    return jnp.asarray(points), jnp.asarray(values)


def inverse_problem() -> Case:
    """Heat in 1+1 dimensions with an unknown conductivity, from measurements of u alone."""
    solution = EQUATIONS["B"].solution
    assert solution is not None
    x = Box([0.0, 0.0], [1.0, 1.0])(jax.random.key(7), MEASUREMENTS)
    equation = Equation(
        "Inverse", f"heat, 1+1, unknown conductivity ({CONDUCTIVITY}) from {MEASUREMENTS} values",
        lambda u, x, p: partial(u, x, 0) - jnp.exp(p["log_kappa"]) * laplacian(u, x, [1]),
        solution, (2, 32, 1), 500, evolution=True, whole=100,
        conditions=[Data(x, jax.vmap(solution)(x))],
    )  # fmt: skip
    case = as_case(equation)
    start = lambda key: {"network": case.start(key), "log_kappa": jnp.zeros(())}
    return case._replace(start=start, field=network_of)


NAMES = (*EQUATIONS, "Burgers", "Burgers-periodic", "Allen-Cahn", "Kovasznay", "Inverse")
"""The names of all cases."""


def case(name: str, published: bool = False) -> Case:
    """A case of the suite; `published` takes the published points and initialisation."""
    if name == "Inverse":
        return inverse_problem()
    if name == "Kovasznay":
        return as_case(KOVASZNAY)
    if name == "Burgers":
        return _of_features(BURGERS, VISCOSITY, hard_burgers)
    if name == "Burgers-periodic":
        return _of_features(BURGERS_PERIODIC, PERIODIC_VISCOSITY, periodic)
    if name == "Allen-Cahn":
        return as_case(ALLEN_CAHN)._replace(test=_allen_cahn_test)
    equation = EQUATIONS[name]
    return as_case(published_points(equation) if published else equation, published)


def shown(params: Any) -> str:
    """What was found beside the solution, in words; empty if nothing."""
    if not isinstance(params, dict):
        return ""
    return f"κ = {float(np.exp(params['log_kappa'])):.6f}"
