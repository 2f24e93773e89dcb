"""Whole runs: kernel and metric form with momentum, and chunks."""

import jax
import numpy as np
import pytest
import spins as dense

import pullback as pb
from pullback import vmc

ENERGY = vmc.problem(dense.network, vmc.ising(vmc.Lattice((4,)), field=1.0))
PARAMS = dense.weights(4)


def run(steps, solver, **options):
    opt = pb.NaturalGradientDescent(
        ENERGY, step=0.02, inverse=pb.Tikhonov(1e-2), solver=solver, momentum=pb.Spring(0.9)
    )
    sampler = vmc.Metropolis(ENERGY, chains=24, **options)
    return pb.fit(opt, PARAMS, sampler, steps, progress=False, key=3)


def apart(a, b):
    return max(
        float(np.max(np.abs(x - y)))
        for x, y in zip(*map(jax.tree.leaves, (a.params, b.params)), strict=True)
    )


def test_kernel_and_metric_form_with_momentum_agree():
    assert apart(run(20, pb.solver.Dual()), run(20, pb.solver.Primal())) < 1e-10


@pytest.mark.slow
def test_chunks_are_the_whole_after_500_steps_with_momentum():
    solver = pb.solver.Dual()
    assert apart(run(500, solver), run(500, solver, chunk=5)) < 1e-10
