"""Steps that leave the parameter space, and three ways back: a covariance matrix and a probability
vector.

What each way back does to invariance is measured: the same step is made in other units, the result
is brought back to the first ones and compared.
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
    """A step in given units and in ones where the first coordinate is measured in tenths; how far
    the two are apart.
    """
    rng = np.random.default_rng(0)
    y, d = (
        jnp.asarray(rng.standard_normal((40, 2)) @ np.array([[0.3, 0.1], [0.0, 0.2]])),
        jnp.asarray([10.0, 1.0]),
    )
    sigma, batch = jnp.asarray([[2.0, 0.1], [0.1, 0.1]]), jnp.zeros((40, 1))
    here = pb.constrained_step(GAUSSIAN, sigma, (batch, y), step=step, constraint=constraint)
    scale = d[:, None] * d[None, :]
    there = pb.constrained_step(
        GAUSSIAN, sigma * scale, (batch, y * d[None, :]), step=step, constraint=constraint
    )
    return here, float(
        jnp.linalg.norm(there.params / scale - here.params) / jnp.linalg.norm(here.params)
    )


def simplex() -> tuple[jax.Array, jax.Array]:
    """A cost on probabilities: the natural step, projected back, and the mirror step of KL, which
    never leaves.
    """
    cost, p = jnp.asarray([0.0, 1.0, 3.0]), jnp.asarray([0.2, 0.3, 0.5])
    # Two free coordinates; the third probability is what is left.
    full = lambda q: jnp.concatenate([q, 1 - jnp.sum(q, keepdims=True)])
    fisher = pb.metric.Riemannian(lambda z: jnp.diag(1 / z))
    ng = pb.natural_gradient(pb.Composite(full, lambda z: jnp.vdot(cost, z), fisher), p[:2])
    free = full(p[:2] - 2.0 * ng.vector)
    mirror = pb.mirror_step(
        pb.Composite(lambda z: z, lambda z: jnp.vdot(cost, z)), p, weight=0.5, mirror=pb.KLMirror()
    )
    print(
        f"\nprobabilities   free step {np.round(free, 3)}, slack "
        f"{float(C.Simplex().slack(free)):.3f}"
    )
    print(
        f"back-projection {np.round(C.Simplex()(free), 3)}; mirror step of KL "
        f"{np.round(mirror.params, 3)}"
    )
    return C.Simplex()(free), mirror.params


def main() -> int:
    cases = {
        "step 0.5, inside": (C.PositiveDefinite(0.01), 0.5),
        "step 1.2, back-projection": (C.PositiveDefinite(0.01), 1.2),
        "step 1.2, entries clipped at 0": (C.Clipping(0.0, 1e6), 1.2),
    }
    print(
        f"{'covariance matrix':<32}{'slack of the free step':>24}{'moved back by':>16}{'other units differ by':>24}"
    )
    found = {}
    for name, (constraint, step) in cases.items():
        here, off = units(constraint, step)
        found[name] = (float(here.correction), off)
        print(
            f"{name:<32}{float(constraint.slack(here.free)):>24.3f}{float(here.correction):>16.3f}{off:>24.1e}"
        )
    projected, mirrored = simplex()
    inside, back, clipped = found.values()
    fine = (
        inside[0] == 0
        and inside[1] < 1e-12
        and back[0] > 0
        and back[1] > 1e-3
        and clipped[1] < 1e-12
    )
    fine &= bool(jnp.all(projected >= 0)) and bool(jnp.all(mirrored > 0))
    print(
        "\ninside, the step does not depend on the units; projected back it does; clipped at "
        f"zero it does not: {'as said' if fine else 'NO'}"
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
