"""Markov chains: their distribution, what they carry, importance weights, and what goes wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spins as dense

import pullback as pb
from pullback import vmc

LATTICE = vmc.Lattice((4,))
PARAMS = dense.weights(4)
ISING = vmc.problem(dense.network, vmc.ising(LATTICE, field=1.0))
HEISENBERG = vmc.problem(dense.network, vmc.heisenberg(LATTICE))


def codes(spins):
    return np.asarray((1 - spins) / 2 @ 2.0 ** np.arange(4)[::-1]).astype(int)


@pytest.mark.parametrize("energy", [ISING, HEISENBERG], ids=["flips", "exchanges"])
def test_the_chains_have_the_distribution_of_the_wave_function(energy):
    sampler = vmc.Metropolis(energy, chains=2000, draws=4, sweeps=3)
    state = sampler.init(jax.random.key(0), PARAMS)
    batch, state = sampler.draw(jax.random.key(1), PARAMS, state)
    states = dense.states(4)
    p = np.exp(2 * np.asarray(dense.network(PARAMS, jnp.asarray(states))))
    if energy is HEISENBERG:
        p = np.where(states.sum(axis=1) == 0, p, 0.0)
    p = p / p.sum()
    found = np.bincount(codes(batch.inputs.spins), minlength=16) / 8000
    # Four standard errors, doubled for correlations.
    assert np.all(np.abs(found - p) <= 8 * np.sqrt(p / 8000))
    assert 0.2 < float(state.acceptance) <= 1 and float(state.stuck) == 0
    assert state.proposed == 4 * 3 * 4 and batch.inputs.spins.shape == (8000, 4)


def test_samples_and_importance_weights_estimate_the_energy():
    exact = vmc.estimate(ISING, PARAMS, vmc.full_sum(ISING))
    for power in (2.0, 1.0):
        sampler = vmc.Metropolis(ISING, chains=3000, sweeps=4, power=power, chunk=1000)
        state = sampler.init(jax.random.key(2), PARAMS)
        batch, _ = sampler.draw(jax.random.key(3), PARAMS, state)
        found = vmc.estimate(ISING, PARAMS, batch)
        assert abs(found.energy - exact.energy) < 4 * found.error < 0.5
        np.testing.assert_allclose(found.variance, exact.variance, rtol=0.2)


def test_a_run_carries_its_chains_and_repeats_itself():
    opt = pb.NaturalGradientDescent(ISING, step=0.05, inverse=pb.Tikhonov(1e-3))
    sampler = vmc.Metropolis(ISING, chains=64)
    runs = [pb.fit(opt, PARAMS, sampler, 20, progress=False, key=1) for _ in range(2)]
    first, again = runs
    assert np.array_equal(first.history["loss"], again.history["loss"])
    assert first.history["loss"][-1] < first.history["loss"][0]
    assert isinstance(first.sampler, vmc.Chains) and first.sampler.spins.shape == (64, 4)


def test_bad_input():
    for call, message in (
        (lambda: vmc.Metropolis(ISING, chains=0), "an integer of at least 1"),
        (lambda: vmc.Metropolis(ISING, chains=1), "at least 2 samples"),
        (lambda: vmc.Metropolis(ISING, chains=4, power=0.0), "positive"),
        (lambda: vmc.Metropolis(ISING, chains=4, chunk=0), "an integer of at least 1"),
        (lambda: vmc.Metropolis(3, chains=4), r"a problem made by vmc\.problem"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_what_goes_wrong_at_the_start_is_said():
    start = lambda log_psi: vmc.Metropolis(
        vmc.problem(log_psi, ISING.loss.hamiltonian), chains=16, burn_in=2
    ).init(jax.random.key(0), PARAMS)
    hole = lambda p, s: jnp.where(s[:, 0] > 0, -jnp.inf, dense.network(p, s))
    with pytest.raises(ValueError, match=r"is -inf where a chain starts"):
        start(hole)
    # Two chains that start in a configuration far more probable than all its neighbours.
    comb = lambda p, s: 1e6 * jnp.prod(s, axis=1)
    one = vmc.Metropolis(vmc.problem(comb, ISING.loss.hamiltonian), chains=2, burn_in=2)
    seeds = range(20)
    even = lambda k: jnp.prod(one._start(jax.random.split(jax.random.key(k))[0]), axis=1)
    seed = next(k for k in seeds if bool(jnp.all(even(k) > 0)))
    with pytest.raises(ValueError, match="the sampler is stuck, all chains rejected all 8"):
        one.init(jax.random.key(seed), PARAMS)
    spiky = lambda p, s: jnp.where(jnp.sum(s, axis=1) == 4, jnp.nan, 0.0)
    with pytest.raises(ValueError, match=r"is nan"):
        start(spiky)


class Broken(vmc.AbstractHamiltonian):
    """An operator whose elements are NaN."""

    sites: int = eqx.field(static=True, default=4)
    magnetisation: int | None = eqx.field(static=True, default=None)

    def connected(self, spins):
        return spins[None].at[0, 0].multiply(-1.0), jnp.full(1, jnp.nan)


def test_local_energies_that_are_not_finite_are_refused_at_the_start():
    """Of an operator with NaN elements, and of a wave function that is NaN beside the chains."""
    words = r"the local energy is nan on a sample \(chain \d+\)\. Check the elements"
    broken = vmc.problem(dense.network, Broken())
    with pytest.raises(ValueError, match=words):
        vmc.Metropolis(broken, chains=16, burn_in=0).init(jax.random.key(0), PARAMS)
    with pytest.raises(ValueError, match="the operator has elements that are not finite"):
        vmc.full_sum(broken)
    up = lambda s: jnp.sum(s, axis=-1) == 4
    spiky = vmc.problem(lambda p, s: jnp.where(up(s), jnp.nan, 0.0), ISING.loss.hamiltonian)
    sampler = vmc.Metropolis(spiky, chains=16, burn_in=0)
    starts = lambda k: sampler._start(jax.random.split(jax.random.key(k))[0])
    seed = next(k for k in range(20) if not bool(jnp.any(up(starts(k)))))
    with pytest.raises(ValueError, match=words):
        sampler.init(jax.random.key(seed), PARAMS)


def test_a_nan_on_the_way_is_a_failed_step():
    broken = lambda p, s: jnp.sqrt(1.0 - p**2) * s[:, 0] + 0.1 * s[:, 1] * p
    energy = vmc.problem(broken, ISING.loss.hamiltonian)
    sampler = vmc.Metropolis(energy, chains=16)
    state = sampler.init(jax.random.key(0), jnp.asarray(0.5))
    there = jnp.asarray(2.0)
    batch, _ = sampler.draw(jax.random.key(1), there, state)
    assert np.all(np.isnan(batch.targets.real))
    with pytest.raises(Exception, match="NaN"):
        pb.natural_gradient(energy, there, batch)
    opt = pb.NaturalGradientDescent(energy)
    record = opt.step(there, opt.init(there), batch)[2]
    assert record.failed and not record.accepted


def test_a_wave_function_that_vanishes_on_a_sample_is_a_failed_step():
    """It did not vanish where the chains were; after a step it does, on samples that stay put."""
    log = lambda p, s: jnp.where(p > 1, -jnp.inf, p * jnp.sum(s[:, :-1] * s[:, 1:], axis=1))
    energy = vmc.problem(log, ISING.loss.hamiltonian)
    sampler = vmc.Metropolis(energy, chains=16)
    state = sampler.init(jax.random.key(0), jnp.asarray(0.3))
    there = jnp.asarray(2.0)
    batch, _ = sampler.draw(jax.random.key(1), there, state)
    with pytest.raises(Exception, match=r"NaN|infinity"):
        pb.natural_gradient(energy, there, batch)
    opt = pb.NaturalGradientDescent(energy)
    record = opt.step(there, opt.init(there), batch)[2]
    assert record.failed and not record.accepted


def test_chains_that_get_stuck_are_counted_and_do_not_move_the_parameters():
    """All chains in one configuration: rank 0, a zero direction, and `stuck` says why."""
    comb = lambda p, s: jnp.where(jnp.all(s > 0, axis=1), 1e6, 0.0) + p * jnp.sum(s, axis=1)
    energy = vmc.problem(comb, ISING.loss.hamiltonian)
    sampler = vmc.Metropolis(energy, chains=16)
    up = vmc.Chains(jnp.ones((16, 4)), jnp.zeros(16, jnp.int32), jnp.zeros((), jnp.int32))
    params = jnp.asarray(0.3)
    batch, state = sampler.draw(jax.random.key(1), params, up)
    assert float(state.stuck) == 1 and float(state.acceptance) == 0
    opt = pb.NaturalGradientDescent(energy, step=0.1)
    moved, _, record = opt.step(params, opt.init(params), batch)
    assert record.rank == 0 and moved == params
