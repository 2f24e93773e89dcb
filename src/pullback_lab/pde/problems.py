"""Equations of the literature on natural gradients for physics-informed networks.

A to G come with the network and the numbers of points that they are published with, and with
solutions divided by their root mean square where they are published so (F, F', G): there relative
errors compare.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pullback.pde import (
    Box,
    Dirichlet,
    Equation,
    Initial,
    Periodic,
    laplacian,
    network,
    partial,
)

PI = jnp.pi
VISCOSITY, PERIODIC_VISCOSITY = 0.01 / np.pi, 0.01
"""ν of the two Burgers problems."""
REYNOLDS = 40.0
CONDUCTIVITY = 0.25
"""κ of the heat problems, which the inverse problem has to find."""


def _poisson(source):
    return lambda u, x: laplacian(u, x) + source(x)


def _heat(kappa):
    return lambda u, x: partial(u, x, 0) - kappa * laplacian(u, x, range(1, x.shape[0]))


def _sines(x):
    return jnp.prod(jnp.sin(PI * x))


def _cosines(x):
    return jnp.sum(jnp.cos(PI * x))


def _products(x):
    return jnp.sum(x[0::2] * x[1::2]) / 1.34


def _squares(x):
    return jnp.sum(x * x) / 33.47


def _cooling(x):
    return jnp.exp(-(PI**2) * x[0] / 4) * jnp.sin(PI * x[1])


def _helmholtz(x):
    return jnp.sin(PI * x[0]) * jnp.sin(4 * PI * x[1])


def _helmholtz_residual(u, x):
    return laplacian(u, x) + u(x) + (17 * PI**2 - 1) * _helmholtz(x)


def _no_source(x):
    return jnp.zeros((), x.dtype)


FIVE = (5, 64, 64, 48, 48, 1)
TEN = (10, 256, 256, 128, 128, 1)
HUNDRED = (100, 768, 768, 512, 512, 1)

EQUATIONS = {
    equation.name: equation
    for equation in (
        Equation(
            "A", "Poisson, 2-D, u = sin πx sin πy", _poisson(lambda x: 2 * PI**2 * _sines(x)),
            _sines, (2, 64, 1), 900, 120, renewed=False,
        ),
        Equation(
            "B", "heat, 1+1, u = exp(-π²t/4) sin πx", _heat(CONDUCTIVITY), _cooling, (2, 64, 1),
            900, 120, renewed=False, evolution=True,
        ),
        Equation(
            "C", "Poisson, 5-D, u = Σ cos πx", _poisson(lambda x: PI**2 * _cosines(x)), _cosines,
            (5, 64, 1), 3000, 500, whole=100,
        ),
        Equation(
            "D", "Poisson, 5-D, u = Σ cos πx, a deep network",
            _poisson(lambda x: PI**2 * _cosines(x)), _cosines, FIVE, 3000, 500,
        ),
        Equation(
            "E", "heat, 4+1, u = exp(-t) Σ sin 2x", _heat(CONDUCTIVITY),
            lambda x: jnp.exp(-x[0]) * jnp.sum(jnp.sin(2 * x[1:])), (5, 64, 1), 3000, 500,
            evolution=True, scale=0.5,
        ),
        Equation(
            "F", "Poisson, 10-D, u = (x₁x₂ + x₃x₄ + ...)/1.34", _poisson(_no_source), _products,
            TEN, 3000, 500, scale=0.1,
        ),
        Equation(
            "F'", "Poisson, 10-D, u = (x₁x₂ + x₃x₄ + ...)/1.34", _poisson(_no_source), _products,
            TEN, 100, 50, scale=0.1,
        ),
        Equation(
            "G", "Poisson, 100-D, u = |x|²/33.47",
            lambda u, x: laplacian(u, x) - 200 / 33.47, _squares, HUNDRED, 100, 50, scale=0.1,
        ),
        Equation(
            "Helmholtz", "Helmholtz, 2-D, u = sin πx sin 4πy", _helmholtz_residual, _helmholtz,
            (2, 64, 1), 1500, 300, whole=100, domain=Box([-1.0, -1.0], [1.0, 1.0]), scale=3.0,
        ),
    )
}  # fmt: skip
"""Equations with a solution in closed form, by name."""


def _burgers(viscosity):
    return lambda u, x: (
        partial(u, x, 0) + u(x) * partial(u, x, 1) - viscosity * laplacian(u, x, [1])
    )


def _minus_sine(x):
    return -jnp.sin(PI * x[1])


def _allen_cahn(u, x):
    v = u(x)
    return partial(u, x, 0) - 1e-4 * laplacian(u, x, [1]) - 5 * (v - v**3)


STRIP = Box([0.0, -1.0], [1.0, 1.0])
LAYER = 0.02
"""The width at which the coordinate of Burgers' inner layer begins to be stretched."""


def towards_the_layer(key, count):
    """Points (t, x) of [0, 1]², shifted by the key: a seventh of them has x < 0.01.

    A golden lattice leaves no gaps, in which the residual would be larger than at the points. They
    are dense at all edges, as Chebyshev's points are, so that nothing is extrapolated to them.
    """
    shift, i = jax.random.uniform(key, (2, 1)), jnp.arange(count, dtype=float)
    t, x = (shift + jnp.stack([i / count, i * (5**0.5 - 1) / 2])) % 1
    return jnp.stack([jnp.sin(PI * t / 2) ** 2, jnp.sin(PI * x / 2) ** 3], axis=1)


def hard_burgers(params, x):
    r"""A field that is odd in x, -sin πx at the start and zero at both ends, by construction.

    \[ u = -\sin\pi x + t(1 - x^2)\,(n(t, x, s) - n(t, -x, -s)), \qquad s =
    \mathrm{asinh}(x/ε)/\mathrm{asinh}(1/ε) \]

    with a network n; the stretched coordinate s resolves the layer at x = 0, where symmetry keeps
    it.
    """
    t, y = x
    stretched = jnp.arcsinh(y / LAYER) / np.arcsinh(1 / LAYER)
    side = lambda sign: network(params, jnp.stack([t, sign * y, sign * stretched]))
    return _minus_sine(x) + t * (1 - y * y) * (side(1.0) - side(-1.0))


BURGERS = Equation(
    "Burgers", "Burgers, ν = 0.01/π, u(0, x) = -sin πx, an odd field with these values built in",
    _burgers(VISCOSITY), widths=(3, 24, 24, 1), inside=2000, renewed=False, evolution=True,
    scale=2.0, domain=towards_the_layer, conditions=[],
)  # fmt: skip
"""On half of the strip, the other half being its mirror image; on fixed points, which lie where the
solution is steep."""
BURGERS_PERIODIC = Equation(
    "Burgers-periodic", "Burgers, ν = 0.01, u(0, x) = -sin πx, a network of (t, cos πx, sin πx)",
    _burgers(PERIODIC_VISCOSITY), widths=(3, 32, 32, 1), inside=1500, evolution=True, domain=STRIP,
    scale=2.0, whole=100, conditions=[Initial(_minus_sine, 150)],
)  # fmt: skip
"""The network is periodic by construction, so that no condition has to say so."""
ALLEN_CAHN = Equation(
    "Allen-Cahn", "Allen-Cahn, u(0, x) = x² cos πx", _allen_cahn, widths=(2, 32, 32, 1),
    inside=1500, evolution=True, domain=STRIP, scale=2.0, whole=100,
    conditions=[Initial(lambda x: x[1] ** 2 * jnp.cos(PI * x[1]), 300), Periodic(1, 100)],
)  # fmt: skip


def kovasznay(x):
    """Velocity and pressure of Kovasznay's flow behind a grid."""
    rate = REYNOLDS / 2 - np.sqrt(REYNOLDS**2 / 4 + 4 * np.pi**2)
    e = jnp.exp(rate * x[0])
    u = 1 - e * jnp.cos(2 * PI * x[1])
    v = rate / (2 * PI) * e * jnp.sin(2 * PI * x[1])
    return jnp.stack([u, v, (1 - e * e) / 2])


def _navier_stokes(w, x):
    u, v, p = ((lambda y, i=i: w(y)[i]) for i in range(3))
    velocity = w(x)
    carried = lambda f: velocity[0] * partial(f, x, 0) + velocity[1] * partial(f, x, 1)
    return (
        carried(u) + partial(p, x, 0) - laplacian(u, x) / REYNOLDS,
        carried(v) + partial(p, x, 1) - laplacian(v, x) / REYNOLDS,
        partial(u, x, 0) + partial(v, x, 1),
    )


KOVASZNAY = Equation(
    "Kovasznay", "Navier-Stokes, Re = 40, Kovasznay's flow", _navier_stokes, kovasznay,
    (2, 32, 32, 3), 1000, whole=100, domain=Box([-0.5, -0.5], [1.0, 1.5]),
    conditions=[
        Dirichlet(lambda x: kovasznay(x)[0], 150, component=0, name="u"),
        Dirichlet(lambda x: kovasznay(x)[1], 150, component=1, name="v"),
        Dirichlet(lambda x: kovasznay(x)[2], 50, where=[(0, 1)], component=2, name="p"),
    ],
)  # fmt: skip


def half_at_the_start(dimension):
    """The published sampler of heat problems: half on the faces of space, half at t = 0."""
    box = Box([0.0] * dimension, [1.0] * dimension)
    space = [face for face in box.faces if face[0] != 0]

    def sample(key, count):
        one, two = jax.random.split(key)
        sides = box.boundary(one, count // 2, space)[0]
        return jnp.concatenate([sides, box.boundary(two, count - count // 2, [(0, 0)])[0]])

    return sample


def as_published(equation: Equation) -> Equation:
    """The equation with the published points: those of heat problems lie half at t = 0."""
    if equation.name not in ("B", "E"):
        return equation
    where, solution = half_at_the_start(equation.dimension), equation.solution
    assert solution is not None
    return Equation(
        equation.name, equation.title, equation.residual, equation.solution, equation.widths,
        equation.inside, equation.border, renewed=equation.renewed, evolution=True,
        scale=equation.scale, whole=equation.whole,
        conditions=[Dirichlet(solution, equation.border, where, name="boundary")],
    )  # fmt: skip
