"""A small equation in three terms, each with its own points: interior, boundary and data.

    u'' + k u = f on (-1, 1),   u(-1) and u(1) given,   u measured at some places,

with k unknown, too. Residual, boundary values and measurements are composites of their own that
share the parameters. The same problem as one composite, with flags for the kind of a point and
factors worked out by hand, has the same natural gradient. Then both are solved, and the solution is
drawn.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from _oscillation import WEIGHTS, K, batches, draw, exact, half_square, residual, stacked, values

import pullback as pb

jax.config.update("jax_enable_x64", True)
WIDTH = 12


def main() -> int:
    rng = np.random.default_rng(0)
    batch = batches(rng)
    problem = pb.Terms(
        interior=pb.Composite(residual, half_square),
        boundary=pb.Composite(values, half_square),
        data=pb.Composite(values, half_square),
        weights=WEIGHTS,
    )
    params = {
        "w": jnp.asarray(3 * rng.standard_normal(WIDTH)),
        "b": jnp.asarray(rng.standard_normal(WIDTH)),
        "v": jnp.asarray(rng.standard_normal(WIDTH) / np.sqrt(WIDTH)),
        "k": jnp.asarray(1.0),
    }
    # Damped, because this network has a condition number of 1e10, times which rounding would show.
    damped = {"inverse": pb.Tikhonov(1e-3)}
    ng = pb.natural_gradient(problem, params, batch, **damped)
    one, together = stacked(batch)
    other = pb.natural_gradient(one, params, together, **damped)
    size = lambda tree: np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(tree)))
    off = size(jax.tree.map(jnp.subtract, ng.vector, other.vector)) / size(other.vector)
    print(ng)
    print(f"one composite with flags and weights: loss {float(other.value):.6g}")
    print(f"the two natural gradients differ by {off:.1e}")
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    fit = pb.fit(opt, params, batch, steps=60, progress=False)
    fine = jnp.linspace(-1, 1, 300)
    error = float(jnp.max(jnp.abs(values(fit.params, fine) - exact(fine))))
    for name in WEIGHTS:
        losses = fit.history[f"losses.{name}"]
        print(f"{name:<16}loss {losses[0]:.1e} -> {losses[-1]:.1e}")
    k = float(fit.params["k"])
    print(f"after {len(fit.history)} steps: largest error {error:.1e}, k = {k:.4f} (exact {K})")
    draw(fit.params, batch, fit.history)
    fine = off < 1e-10 and error < 5e-3 and abs(k - K) < 0.05
    print("terms and the stacked problem agree" if fine else "NO")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
