"""Wave functions of the examples: networks that have the symmetries of a lattice."""

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb
from pullback import vmc

SQUARE = -115.232707303718485  # the Ising model, 6x6, h = 3
# name, lattice, exact energy, width, steps, damping
HEISENBERG = (
    ("Heisenberg 4×4", (4, 4), -44.91393283371549, 8, 60, 1e-8),
    ("Heisenberg chain 20", (20,), -35.61754611950579, 24, 40, 1e-6),
)
RATES = tuple(2.0**-k for k in range(14))


def translations(lattice):
    """The translations of a lattice, one permutation of the sites per row."""
    grid, axes = np.arange(lattice.sites).reshape(lattice.shape), range(len(lattice.shape))
    return np.stack([np.roll(grid, shift, axes).ravel() for shift in np.ndindex(*lattice.shape)])


def positive(lattice, rows=None):
    """A positive wave function: the mean over a group of log cosh features, weighted.

    The group is that of all symmetries of the lattice, or the given rows.
    """
    rows = jnp.asarray(lattice.symmetries().permutations if rows is None else rows)

    def log_psi(params, spins):
        return features(params, spins) @ params["weight"]

    def features(params, spins):
        images = spins[:, rows] @ params["filter"]
        # log cosh, which does not overflow, and is the same for a spin and its flip.
        return jnp.mean(jnp.logaddexp(images, -images), axis=1)

    log_psi.features = features
    return log_psi


def signed(lattice):
    """A real wave function: a positive one times a small network that may be negative."""
    base = positive(lattice)

    def log_psi(params, spins):
        hidden = base.features(params, spins)
        value = 1 + jnp.tanh(hidden @ params["hidden"] + params["bias"][None]) @ params["last"]
        return hidden @ params["weight"] + jnp.log(jnp.abs(value)), jnp.sign(value)

    return log_psi


def start(lattice, width, seed=0, sign=False):
    """Parameters to start from."""
    keys = jax.random.split(jax.random.key(seed), 4)
    params = {
        "filter": 0.5 * jax.random.normal(keys[0], (lattice.sites, width)),
        "weight": 0.3 * jax.random.normal(keys[1], (width,)),
    }
    if not sign:
        return params
    return params | {
        "hidden": jax.random.normal(keys[2], (width, 8)) / width**0.5,
        "bias": jnp.zeros(8),
        "last": 0.1 * jax.random.normal(keys[3], (8,)),
    }


def everything(lattice, hamiltonian, width, steps, level, damping=1e-8):
    """A run on all configurations, one of each class of equivalent ones."""
    energy = vmc.problem(positive(lattice), hamiltonian)
    batch = vmc.full_sum(energy, lattice.symmetries())
    rule = pb.step.GridSearch(RATES)
    opt = pb.NaturalGradientDescent(energy, step=rule, inverse=pb.Tikhonov(damping))
    until = pb.until.LossBelow(level)
    fit = pb.fit(opt, start(lattice, width), batch, steps, until=until, progress=False)
    return fit, float(vmc.estimate(energy, fit.params, batch).energy)


def samples(lattice, hamiltonian, width, steps):
    """A run on samples, whose last 100 energies are averaged."""
    energy = vmc.problem(positive(lattice), hamiltonian)
    opt = pb.NaturalGradientDescent(energy, step=0.03, inverse=pb.Tikhonov(1e-3))
    return pb.fit(opt, start(lattice, width), vmc.Metropolis(energy, 512), steps, progress=False)


def square(steps=300):
    """The Ising model on a 6x6 square from samples: the run, the last energies, their error."""
    lattice = vmc.Lattice((6, 6))
    log_psi = positive(lattice, translations(lattice))
    energy = vmc.problem(log_psi, vmc.ising(lattice, field=3.0))
    opt = pb.NaturalGradientDescent(energy, step=0.03, inverse=pb.Tikhonov(1e-3))
    chains = vmc.Metropolis(energy, 512, chunk=128)
    params = start(lattice, 8)
    # The features are means over the translations; log ψ grows with the number of sites.
    params = {"filter": 0.3 * params["filter"], "weight": lattice.sites * params["weight"]}
    fit = pb.fit(opt, params, chains, steps, progress=False)
    last = fit.history["loss"][-100:]
    return fit, float(np.mean(last)), float(np.std(last) / np.sqrt(len(last)))
