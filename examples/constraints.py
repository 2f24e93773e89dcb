"""Steps that leave the parameter space, and two ways back: back-projection and clipping.

The same step is made in other units, and the result is converted back and compared: this measures
what each way back does to invariance. The mirror step of KL on probabilities never leaves.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb

jax.config.update("jax_enable_x64", True)
C = pb.constraint


def covariance(p, x):
    """The same Gaussian for every sample."""
    count = x.shape[0]
    return {"mean": jnp.zeros((count, 2)), "covariance": jnp.broadcast_to(p, (count, 2, 2))}


GAUSSIAN = pb.Composite(covariance, metric=pb.metric.GaussianMeanCovariance())


def units(constraint, step) -> tuple[pb.ConstrainedStep, float]:
    """A step, and its distance from the step made with the first coordinate in tenths."""
    y = np.random.default_rng(0).standard_normal((40, 2)) @ np.array([[0.3, 0.1], [0.0, 0.2]])
    d = np.array([10.0, 1.0])
    sigma = jnp.asarray([[2.0, 0.1], [0.1, 0.1]])
    scale = jnp.asarray(d[:, None] * d)
    take = lambda sigma, y: pb.constrained_step(
        GAUSSIAN, sigma, (jnp.zeros((40, 1)), jnp.asarray(y)), step=step, constraint=constraint
    )
    here = take(sigma, y)
    gap = take(sigma * scale, y * d).params / scale - here.params
    return here, float(jnp.linalg.norm(gap) / jnp.linalg.norm(here.params))


def simplex() -> bool:
    """A cost on probabilities: the natural step projected back, and the mirror step of KL."""
    p = jnp.asarray([0.2, 0.3, 0.5])
    loss = lambda z: z[1] + 3 * z[2]
    full = lambda q: jnp.concatenate([q, 1 - jnp.sum(q, keepdims=True)])  # two free coordinates
    fisher = pb.metric.Riemannian(lambda z: jnp.diag(1 / z))
    free = full(p[:2] - 2.0 * pb.natural_gradient(pb.Composite(full, loss, fisher), p[:2]).vector)
    direct = pb.Composite(lambda z: z, loss)
    mirror = pb.mirror_step(direct, p, weight=0.5, mirror=pb.KLMirror()).params
    back = C.Simplex()(free)
    print(f"\nprobabilities   free step {np.round(free, 3)}, slack {C.Simplex().slack(free):.3f}")
    print(f"back-projection {np.round(back, 3)}; mirror step of KL {np.round(mirror, 3)}")
    return bool(jnp.all(back >= 0) & jnp.all(mirror > 0))


def main() -> int:
    cases = {
        "step 0.5, inside": (C.PositiveDefinite(0.01), 0.5),
        "step 1.2, back-projection": (C.PositiveDefinite(0.01), 1.2),
        "step 1.2, entries clipped at 0": (C.Clipping(0.0, 1e6), 1.2),
    }
    print(f"{'covariance matrix':<32}{'slack':>8}{'moved back by':>16}{'units differ by':>18}")
    moved, off = {}, {}
    for name, (constraint, step) in cases.items():
        here, off[name] = units(constraint, step)
        moved[name] = float(here.correction)
        slack = float(constraint.slack(here.free))
        print(f"{name:<32}{slack:>8.3f}{moved[name]:>16.3f}{off[name]:>18.1e}")
    inside, back, clipped = cases
    # A projection makes a covariance symmetric to the last bit, which a step does not.
    fine = moved[inside] < 1e-15 and off[inside] < 1e-12 and off[clipped] < 1e-12
    fine = simplex() and fine and moved[back] > 0 and off[back] > 1e-3
    print("\ninside, the step does not depend on the units; projected back it does;", end=" ")
    print("clipped at zero it does not: " + ("as said" if fine else "NO"))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
