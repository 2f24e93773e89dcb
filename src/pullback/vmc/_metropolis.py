r"""Markov chains with the stationary distribution \(q = |\psi|^\alpha\), all chains at once.

A proposal flips one spin, or exchanges an up and a down spin where the magnetisation is kept; both
are symmetric, so that it is accepted with probability \(\min(1, q(\sigma')/q(\sigma))\). With
\(\alpha = 2\) the samples are Born's. Another \(\alpha\) gives importance weights
\(|\psi|^{2-\alpha}\), through `log_q`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._base.checks import error, integer, is_concrete, positive
from .._base.types import Params, Scalar
from .._compat.xla import jit
from .._problem.batch import Batch
from .._problem.composite import Composite
from ._energy import Configurations, amplitudes, local_parts, parts_of


class Chains(eqx.Module):
    """The state of Markov chains."""

    spins: Float[Array, "chains sites"]
    accepted: Int[Array, " chains"]
    """How many proposals each chain accepted in the last draw."""
    proposed: Int[Array, ""]
    """How many proposals were made to each chain in the last draw."""

    def __repr__(self) -> str:
        chains, sites = self.spins.shape[-2:]
        return f"Chains({chains} chains of {sites} sites)"

    @property
    def acceptance(self) -> Scalar:
        """The fraction of proposals that were accepted in the last draw."""
        return jnp.mean(self.accepted.astype(float)) / jnp.maximum(self.proposed, 1).astype(float)

    @property
    def stuck(self) -> Scalar:
        """The fraction of chains that accepted no proposal in the last draw."""
        return jnp.mean((self.accepted == 0).astype(float))


class Metropolis(eqx.Module):
    """A sampler for `fit`: configurations of Markov chains, with their local energies.

    ```python
    fit = pb.fit(opt, params, pb.vmc.Metropolis(energy, chains=512), steps=300)
    fit.sampler.acceptance, fit.sampler.stuck
    ```
    """

    energy: Composite
    chains: int = eqx.field(static=True)
    draws: int = eqx.field(static=True)
    sweeps: int = eqx.field(static=True)
    burn_in: int = eqx.field(static=True)
    power: float = eqx.field(static=True)
    chunk: int | None = eqx.field(static=True)

    def __init__(
        self,
        energy: Composite,
        chains: int,
        draws: int = 1,
        sweeps: int = 1,
        burn_in: int = 20,
        power: float = 2.0,
        chunk: int | None = None,
    ):
        """Choose the chains.

        **Arguments:**

        - `energy`: a problem made by `vmc.problem`.
        - `chains`: how many chains run side by side.
        - `draws`: how many samples of each chain are in a batch, which has chains × draws samples.
        - `sweeps`: how many sweeps, of as many proposals as there are sites, precede each sample.
        - `burn_in`: how many sweeps precede the first batch.
        - `power`: α; the chains sample |ψ|^α, and another one than 2 gives importance weights.
        - `chunk`: for how many samples local energies are computed at a time; defaults to all.
        """
        parts_of("Metropolis", energy)
        for name, value, least in (
            ("chains", chains, 1), ("draws", draws, 1), ("sweeps", sweeps, 1),
            ("burn_in", burn_in, 0),
        ):  # fmt: skip
            integer("Metropolis", name, value, least, f"Metropolis(energy, chains=512, {name}=1)")
        if chains * draws < 2:
            wanted = "such that there are at least 2 samples: one has no covariance"
            raise error("Metropolis", "chains", chains, wanted, "Metropolis(energy, chains=512)")
        positive("Metropolis", "power", power, example="Metropolis(energy, chains=512, power=2.0)")
        if chunk is not None:
            integer("Metropolis", "chunk", chunk, 1, "Metropolis(energy, chains=512, chunk=64)")
        self.energy = energy
        self.chains = chains
        self.draws = draws
        self.sweeps = sweeps
        self.burn_in = burn_in
        self.power = float(power)
        self.chunk = chunk

    def __repr__(self) -> str:
        return f"Metropolis(chains={self.chains}, draws={self.draws}, sweeps={self.sweeps})"

    def init(self, key: PRNGKeyArray, params: Params) -> Chains:
        """Return chains that start at random and have made their burn-in.

        Raises a `ValueError` if the wave function vanishes where a chain starts, if no chain
        accepts any proposal, or if a local energy is not finite.

        **Arguments:**

        - `key`: a PRNG key.
        - `params`: the parameters of the wave function.
        """
        start, walk = jax.random.split(key)
        spins = self._start(start)
        log_psi, hamiltonian = parts_of("Metropolis", self.energy)
        log, _, _ = amplitudes(log_psi, params, spins)
        _check(
            jnp.isfinite(log), "log_psi(params, spins)", "where a chain starts",
            "A wave function that vanishes there cannot be sampled: give it a nonzero amplitude on "
            "every configuration of the sector.", log,
        )  # fmt: skip
        zero = jnp.zeros((), jnp.int32)
        state = Chains(spins, jnp.zeros(self.chains, jnp.int32), zero)
        if self.burn_in:
            state = _walk(self, walk, params, state, self.burn_in)
            _check_moving(state)
        found = local_parts(log_psi, hamiltonian, params, state.spins, self.chunk)
        _check(
            jnp.isfinite(found.real), "the local energy", "on a sample",
            "Check the elements of `hamiltonian.connected` and the wave function on what it "
            "returns.", found.real,
        )  # fmt: skip
        return state

    def draw(self, key: PRNGKeyArray, params: Params, state: Chains) -> tuple[Batch, Chains]:
        """Return a batch with its local energies, and the chains after it.

        **Arguments:**

        - `key`: a PRNG key.
        - `params`: the parameters of the wave function.
        - `state`: the chains.
        """
        log_psi, hamiltonian = parts_of("Metropolis", self.energy)

        def one(state, key):
            state = _walk(self, key, params, state, self.sweeps)
            return state, state

        last, all_states = jax.lax.scan(one, state, jax.random.split(key, self.draws))
        spins = all_states.spins.reshape(-1, hamiltonian.sites)
        log = amplitudes(log_psi, params, spins)[0]
        targets = local_parts(log_psi, hamiltonian, params, spins, self.chunk)
        accepted = jnp.sum(all_states.accepted, axis=0, dtype=jnp.int32)
        proposed = jnp.sum(all_states.proposed, dtype=jnp.int32)
        batch = Batch(Configurations(spins, self.power * log), targets)
        return batch, Chains(last.spins, accepted, proposed)

    def _start(self, key: PRNGKeyArray) -> Float[Array, "chains sites"]:
        """Return random configurations of the sector."""
        hamiltonian = parts_of("Metropolis", self.energy)[1]
        dtype = jnp.result_type(float)
        shape = self.chains, hamiltonian.sites
        if hamiltonian.magnetisation is None:
            return jnp.where(jax.random.bernoulli(key, 0.5, shape), 1.0, -1.0).astype(dtype)
        ups = (hamiltonian.magnetisation + hamiltonian.sites) // 2
        order = jnp.argsort(jax.random.uniform(key, shape), axis=1)
        return jnp.where(order < ups, 1.0, -1.0).astype(dtype)


@jit
def _walk(
    sampler: Metropolis, key: PRNGKeyArray, params: Params, state: Chains, sweeps: int
) -> Chains:
    """Return the chains after some sweeps, with the proposals counted anew."""
    log_psi, hamiltonian = parts_of("Metropolis", sampler.energy)
    count = sweeps * hamiltonian.sites
    propose = _flip if hamiltonian.magnetisation is None else _exchange

    def step(carry, key):
        spins, log, accepted = carry
        which, chance = jax.random.split(key)
        moved = propose(which, spins)
        new = amplitudes(log_psi, params, moved)[0]
        ratio = sampler.power * (new - log)
        limit = jnp.log(jax.random.uniform(chance, (sampler.chains,), log.dtype))
        # Written so that a NaN is accepted: it then reaches the batch, and the step fails.
        taken = ~(limit >= ratio)
        spins = jnp.where(taken[:, None], moved, spins)
        return (spins, jnp.where(taken, new, log), accepted + taken.astype(accepted.dtype)), None

    log = amplitudes(log_psi, params, state.spins)[0]
    none = jnp.zeros(sampler.chains, jnp.int32)
    keys = jax.random.split(key, count)
    (spins, _, accepted), _ = jax.lax.scan(step, (state.spins, log, none), keys)
    return Chains(spins, accepted, jnp.asarray(count, jnp.int32))


def _flip(key: PRNGKeyArray, spins: Float[Array, "chains sites"]) -> Array:
    """Propose the flip of one spin of each chain."""
    chains, sites = spins.shape
    place = jax.random.randint(key, (chains,), 0, sites)
    return spins.at[jnp.arange(chains), place].multiply(-1.0)


def _exchange(key: PRNGKeyArray, spins: Float[Array, "chains sites"]) -> Array:
    """Propose the exchange of an up and a down spin of each chain, each with equal chances."""
    number = jax.random.uniform(key, spins.shape, spins.dtype)
    up = jnp.argmax(jnp.where(spins > 0, number, -1.0), axis=1)
    down = jnp.argmax(jnp.where(spins < 0, number, -1.0), axis=1)
    chain = jnp.arange(spins.shape[0])
    # All spins alike: both places are 0, and the configuration stays what it is.
    a, b = spins[chain, up], spins[chain, down]
    return spins.at[chain, up].set(b).at[chain, down].set(a)


def _check(good: Array, what: str, where: str, cure: str, values: Array) -> None:
    """Raise a `ValueError` for the first value that is not finite."""
    if is_concrete(good) and not bool(jnp.all(good)):
        k = int(np.argmin(np.asarray(good)))
        raise ValueError(f"Metropolis.init: {what} is {values[k]} {where} (chain {k}). {cure}")


def _check_moving(state: Chains) -> None:
    """Raise a `ValueError` if every chain rejected every proposal."""
    if is_concrete(state.accepted) and not bool(jnp.any(state.accepted > 0)):
        raise ValueError(
            f"Metropolis.init: the sampler is stuck, all chains rejected all {state.proposed} "
            "proposals of the burn-in. The wave function is too steep: start from smaller "
            "parameters, or sample a flatter distribution, Metropolis(energy, chains, power=1.0)."
        )
