"""Dense references for spins: Kronecker products of Pauli matrices, and sums over all states."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

X = np.array([[0.0, 1.0], [1.0, 0.0]])
Y = np.array([[0.0, -1j], [1j, 0.0]])
Z = np.diag([1.0, -1.0])


def on(sites, where):
    """The product of single-site matrices; spin up is the first basis vector."""
    return functools.reduce(np.kron, [where.get(k, np.eye(2)) for k in range(sites)])


def ising(sites, bonds, h):
    zz = sum(on(sites, {i: Z, j: Z}) for i, j in bonds)
    return -zz - h * sum(on(sites, {k: X}) for k in range(sites))


def heisenberg(sites, bonds, couplings):
    parts = [
        j * sum(on(sites, {a: s, b: s}) for s in (X, Y, Z))
        for (a, b), j in zip(bonds, couplings, strict=True)
    ]
    return np.real(sum(parts))


def ring(sites, distance=1):
    return [(k, (k + distance) % sites) for k in range(sites)]


def torus(length):
    """Nearest and next-nearest neighbours of a square, written down site by site."""
    at = lambda x, y: (x % length) * length + y % length
    places = list(itertools.product(range(length), repeat=2))
    near = [(at(x, y), at(*p)) for x, y in places for p in ((x + 1, y), (x, y + 1))]
    far = [(at(x, y), at(*p)) for x, y in places for p in ((x + 1, y + 1), (x + 1, y - 1))]
    return near, far


def states(sites):
    """All configurations, in the order of the Kronecker products."""
    return np.array(list(itertools.product((1.0, -1.0), repeat=sites)))


def network(params, spins):
    """A positive wave function without symmetries."""
    return jnp.tanh(spins @ params["w"] + params["b"]) @ params["a"]


def weights(sites, hidden=3, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "w": 0.4 * jax.random.normal(keys[0], (sites, hidden)),
        "b": 0.3 * jax.random.normal(keys[1], (1, hidden)),
        "a": jax.random.normal(keys[2], (hidden,)),
    }
