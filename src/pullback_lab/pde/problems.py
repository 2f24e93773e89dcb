"""Equations of the literature on natural gradients for physics-informed networks.

Each comes with the network and the number of points that it is published with.
"""

from typing import NamedTuple

import jax.numpy as jnp

from pullback.pde import Equation, laplacian, partial

PI = jnp.pi


def _poisson(source):
    return lambda u, x: laplacian(u, x) + source(x)


def _heat(kappa):
    return lambda u, x: partial(u, x, 0) - kappa * laplacian(u, x, range(1, x.shape[0]))


def _sines(x):
    return jnp.prod(jnp.sin(PI * x))


def _cosines(x):
    return jnp.sum(jnp.cos(PI * x))


EQUATIONS = {
    equation.name: equation
    for equation in (
        Equation(
            "A",
            "Poisson, 2-D, u = sin πx sin πy",
            _poisson(lambda x: 2 * PI**2 * _sines(x)),
            _sines,
            (2, 64, 1),
            900,
            120,
        ),
        Equation(
            "B",
            "heat, 1+1, u = exp(-π²t/4) sin πx",
            _heat(0.25),
            lambda x: jnp.exp(-(PI**2) * x[0] / 4) * jnp.sin(PI * x[1]),
            (2, 64, 1),
            900,
            120,
            evolution=True,
        ),
        Equation(
            "C",
            "Poisson, 5-D, u = Σ cos πx",
            _poisson(lambda x: PI**2 * _cosines(x)),
            _cosines,
            (5, 64, 1),
            3000,
            500,
            renewed=True,
            whole=100,
        ),
        Equation(
            "E",
            "heat, 4+1, u = exp(-t) Σ sin 2x",
            _heat(0.25),
            lambda x: jnp.exp(-x[0]) * jnp.sum(jnp.sin(2 * x[1:])),
            (5, 64, 1),
            3000,
            500,
            renewed=True,
            evolution=True,
            scale=0.5,
        ),
        Equation(
            "F'",
            "Poisson, 10-D, u = Σ x₁x₂ + x₃x₄ + ...",
            _poisson(lambda x: jnp.zeros((), x.dtype)),
            lambda x: jnp.sum(x[0::2] * x[1::2]),
            (10, 256, 256, 128, 128, 1),
            100,
            50,
            renewed=True,
            scale=0.1,
        ),
    )
}
"""The equations by name."""


class Published(NamedTuple):
    """The best published root mean square error, tuned, on a GPU, within 3000 s."""

    error: float
    method: str


PUBLISHED = {
    "A": Published(6.2e-8, "best published"),
    "B": Published(2.7e-8, "best published"),
    "C": Published(5.6e-8, "best published"),
    "E": Published(7.4e-7, "best published"),
    "F'": Published(6.1e-5, "best published, with momentum (3.1e-4 without)"),
}
