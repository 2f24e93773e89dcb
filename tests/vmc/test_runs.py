"""Whole runs: kernel and metric form with momentum, chunks, real and complex; the limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spins as dense

import pullback as pb
from pullback import vmc

ENERGY = vmc.problem(dense.network, vmc.ising(vmc.Lattice((4,)), field=1.0))
PARAMS = dense.weights(4)


def run(steps, solver, energy=ENERGY, **options):
    opt = pb.NaturalGradientDescent(
        energy, step=0.02, inverse=pb.Tikhonov(1e-2), solver=solver, momentum=pb.Spring(0.9)
    )
    sampler = vmc.Metropolis(energy, chains=24, **options)
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


def test_a_positive_wave_function_written_with_complex_numbers_moves_the_same():
    """Samples, local energies, metric and momentum: the phases are rows of zeros."""
    written = lambda params, spins: dense.network(params, spins).astype(complex)
    solver = pb.solver.Dual()
    energy = vmc.problem(written, ENERGY.loss.hamiltonian)
    assert apart(run(20, solver), run(20, solver, energy)) < 1e-10


def direction(batch):
    found = pb.natural_gradient(ENERGY, PARAMS, batch, inverse=pb.Tikhonov(1e-2)).vector
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(found)])


@pytest.mark.slow
def test_samples_tend_to_the_full_sum():
    """The error of the direction falls as N^(-1/2), for Born's samples and for weighted ones."""
    exact = direction(vmc.full_sum(ENERGY))
    for power in (2.0, 1.0):
        errors = []
        for draws in (1, 64):
            sampler = vmc.Metropolis(ENERGY, chains=512, draws=draws, sweeps=3, power=power)
            state = sampler.init(jax.random.key(0), PARAMS)
            found = []
            for k in range(3):
                batch, state = jax.jit(sampler.draw)(jax.random.key(1 + k), PARAMS, state)
                found.append(np.linalg.norm(direction(batch) - exact) / np.linalg.norm(exact))
            errors.append(np.sqrt(np.mean(np.square(found))))
        # 64 times as many samples: 8 times smaller, within the scatter of three draws.
        assert 4 < errors[0] / errors[1] < 16 and errors[1] < 0.05, errors


def test_single_precision_and_mixed_leaves():
    """Parameters in float32, or some of them, with spins and operators in float64."""
    exact = direction(vmc.full_sum(ENERGY))
    single = jax.tree.map(lambda x: x.astype(jnp.float32), PARAMS)
    batch = vmc.full_sum(ENERGY)
    low = lambda p, s: dense.network(p, s.astype(jnp.float32))
    energy = vmc.problem(low, ENERGY.loss.hamiltonian)
    found = pb.natural_gradient(energy, single, batch, inverse=pb.Tikhonov(1e-2)).vector
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(found)])
    np.testing.assert_allclose(flat, exact, rtol=1e-3, atol=1e-4)
    mixed = PARAMS | {"w": single["w"]}
    wide = lambda p, s: dense.network(p | {"w": p["w"].astype(float)}, s)
    energy = vmc.problem(wide, ENERGY.loss.hamiltonian)
    found = pb.natural_gradient(energy, mixed, batch, inverse=pb.Tikhonov(1e-2)).vector
    assert {k: x.dtype for k, x in found.items()} == {k: x.dtype for k, x in mixed.items()}
    flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(found)])
    np.testing.assert_allclose(flat, exact, rtol=1e-3, atol=1e-4)
