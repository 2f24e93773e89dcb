"""Geodesic steps: the order to which the outputs move straight."""

import jax
import jax.numpy as jnp
import numpy as np
from curved import PARAMS, X, curved, local

import pullback as pb


def test_geodesic_steps_move_the_outputs_straight_to_third_order():
    def deviation(bent):
        @jax.jit
        def at(t):
            here = local(
                pb.solver.SVD(), rule=pb.step.Geodesic(pb.step.Fixed(), 1e9) if bent else None
            )
            d = here.direction()
            moved = curved(here.point(here.curve(d)(t)), X) - curved(PARAMS, X)
            return jnp.linalg.norm(
                moved - t * here.metric.pushforward(here.metric.structure.unravel(d))
            )

        return [float(at(jnp.asarray(t))) for t in (1e-2, 5e-3)]

    for bent, order in ((False, 2), (True, 3)):
        apart = deviation(bent)
        assert abs(np.log2(apart[0] / apart[1]) - order) < 0.1, (bent, apart)
