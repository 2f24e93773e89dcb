r"""Damping that tends to zero. For a covector \(g\) in the range of \(G\),

\[ (G + \lambda I)^{-1} g - G^+ g = -\lambda\,(G^+)^2 g + O(\lambda^2), \]

so that Tikhonov regularisation tends to the Moore-Penrose inverse, linearly. A part \(g_0\) of \(g\) in the kernel of \(G\) becomes
\(g_0/\lambda\).

**Corrected.** "By letting the regularisation parameter go to zero, the MP inverse is obtained" (van Oostrum and Ay) holds on the range
only. It bites where the metric and the gradient come from different samples: then the gradient has a part that the metric does not see.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pullback as pb

from .._example import Example, Row, at_least, at_most, distance

DAMPINGS = (1e-2, 1e-4, 1e-6)


def network(params: tuple, x: Float[Array, "N 3"]) -> Float[Array, "N 1"]:
    """A small network, more parameters than samples.

    **Arguments:**

    - `params`: two matrices.
    - `x`: inputs.
    """
    return jnp.tanh(x @ params[0]) @ params[1]


def squared_error(z: Float[Array, "N 1"], y: Float[Array, "N 1"]) -> Float[Array, " N"]:
    """Half of it, per sample.

    **Arguments:**

    - `z`: outputs.
    - `y`: targets.
    """
    return jnp.sum((z - y) ** 2, axis=1) / 2


def measure() -> Iterator[Row]:
    """On the range, off it, and with a metric from other samples than the gradient."""
    rng = np.random.default_rng(8)
    params = tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((3, 4), (4, 1)))
    x, y, other = (jnp.asarray(rng.standard_normal((n, d))) for n, d in ((5, 3), (5, 1), (5, 3)))
    problem = pb.Composite(network, loss=squared_error)

    def vectors(metric_batch):
        solve = lambda inverse: pb.natural_gradient(problem, params, (x, y), inverse=inverse, metric_batch=metric_batch)
        exact, damped = solve(pb.MoorePenrose()), [solve(pb.Tikhonov(jnp.asarray(damping))) for damping in DAMPINGS]
        return exact, [_flat(exact.vector), *(_flat(ng.vector) for ng in damped)]

    exact, (limit, *damped) = vectors(None)
    a = np.concatenate([np.asarray(part).reshape(5, -1) for part in _jacobian(params, x)], axis=1) / np.sqrt(5)
    gram = a.T @ a
    pseudo = np.linalg.pinv(gram, rcond=1e-12)
    slope = -pseudo @ limit
    yield at_most(
        "on the range: order of convergence in λ, |order - 1|", abs(_order([distance(v, limit) for v in damped]) - 1), 0.01
    )
    yield at_most(
        "on the range: the slope is -(G⁺)²g, relative error at λ = 1e-6", distance((damped[-1] - limit) / DAMPINGS[-1], slope), 1e-3
    )

    crossed, (crossed_limit, *crossed_damped) = vectors((other,))
    errors = [float(np.linalg.norm(v - crossed_limit)) for v in crossed_damped]
    yield at_least(
        "metric and gradient of different samples: share of the gradient outside the range",
        1 - float(crossed.stats.covector_share),
        0.01,
    )
    yield at_most("off the range: order of divergence, |order + 1|", abs(_order(errors) + 1), 0.01)
    b = np.concatenate([np.asarray(part).reshape(5, -1) for part in _jacobian(params, other)], axis=1)
    g = _flat(crossed.covector)
    outside = np.linalg.norm(g - np.linalg.pinv(b) @ (b @ g))
    yield at_most(
        "off the range: λ |difference| tends to the norm of what is outside, relative error",
        abs(errors[-1] * DAMPINGS[-1] / outside - 1),
        1e-4,
    )
    yield at_least("off the range: |difference| at λ = 1e-6 (1e2 at 1e-2, 1e4 at 1e-4)", errors[-1] / outside, 0.9e6)
    yield at_most("nothing is outside if both are of the same samples: share", abs(1 - float(exact.stats.covector_share)), 1e-12)


_jacobian = jax.jit(jax.jacrev(network))


def _flat(tree) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def _order(errors: list[float]) -> float:
    """The slope of log error over log λ, between the two smallest λ."""
    return float(np.log(errors[-1] / errors[-2]) / np.log(DAMPINGS[-1] / DAMPINGS[-2]))


EXAMPLE = Example(
    "tikhonov",
    "van Oostrum, Ay (extended abstract), conclusion, corrected",
    "Tikhonov damping tends to the Moore-Penrose inverse on the range of the metric, linearly in λ. Off the range it diverges like 1/λ, which "
    "the source does not say.",
    measure,
)
