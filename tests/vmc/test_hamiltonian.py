"""Operators against Kronecker products, and the ladder of exact energies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spins as dense

from pullback import vmc


def matrix(hamiltonian):
    """All elements, from `connected`, in the order of the Kronecker products."""
    states = dense.states(hamiltonian.sites)
    code = lambda s: ((1 - s) / 2 @ 2.0 ** np.arange(hamiltonian.sites)[::-1]).astype(int)
    moved, elements = map(np.asarray, jax.vmap(hamiltonian.connected)(jnp.asarray(states)))
    found = np.zeros((len(states),) * 2)
    for row, (targets, values) in enumerate(zip(moved, elements, strict=True)):
        np.add.at(found[row], code(targets), values)
    return found


def test_the_ising_chain():
    found = matrix(vmc.ising(vmc.Lattice((5,)), field=0.7))
    np.testing.assert_allclose(found, dense.ising(5, dense.ring(5), 0.7), atol=1e-14)


def test_heisenberg_and_j1j2_chains():
    found = matrix(vmc.heisenberg(vmc.Lattice((6,)), magnetisation=None, marshall=False))
    np.testing.assert_allclose(found, dense.heisenberg(6, dense.ring(6), [1.0] * 6), atol=1e-14)
    found = matrix(vmc.j1j2(vmc.Lattice((7,)), 0.3, 2.0, magnetisation=None, marshall=False))
    bonds, couplings = dense.ring(7) + dense.ring(7, 2), [2.0] * 7 + [0.3] * 7
    np.testing.assert_allclose(found, dense.heisenberg(7, bonds, couplings), atol=1e-14)


def test_j1j2_on_a_square():
    found = matrix(vmc.j1j2(vmc.Lattice((3, 3)), 0.5, magnetisation=None, marshall=False))
    near, far = dense.torus(3)
    expected = dense.heisenberg(9, near + far, [1.0] * len(near) + [0.5] * len(far))
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_marshalls_rotation_keeps_the_energies_and_makes_the_ground_state_positive():
    hamiltonian = vmc.heisenberg(vmc.Lattice((6,)), magnetisation=None)
    rotated = matrix(hamiltonian)
    plain = dense.heisenberg(6, dense.ring(6), [1.0] * 6)
    np.testing.assert_allclose(*map(np.linalg.eigvalsh, (rotated, plain)), atol=1e-12)
    assert np.all((rotated - np.diag(np.diag(rotated))) <= 0)


def test_the_ladder_of_exact_energies():
    chain, square = vmc.Lattice((10,)), vmc.Lattice((4, 4))
    ladder = {
        -12.784906442999322: (vmc.ising(chain, field=1.0), chain),
        -44.91393283371549: (vmc.heisenberg(square), square),
        -33.83169340557936: (vmc.j1j2(square, 0.5), square),
    }
    for exact, (hamiltonian, lattice) in ladder.items():
        found = vmc.exact_energy(hamiltonian, lattice.symmetries())
        np.testing.assert_allclose(found, exact, rtol=1e-12)
    np.testing.assert_allclose(vmc.exact_energy(ladder[-12.784906442999322][0]), -12.784906442999)


@pytest.mark.slow
def test_the_chain_of_twenty():
    lattice = vmc.Lattice((20,))
    found = vmc.exact_energy(vmc.heisenberg(lattice), lattice.symmetries())
    np.testing.assert_allclose(found, -35.61754611950579, rtol=1e-12)


def test_a_lattice():
    square = vmc.Lattice((4, 4))
    assert square.sites == 16 and len(square.bonds(1)) == len(square.bonds(2)) == 32
    assert square.symmetries().order == 256 and square.symmetries(flip=False).order == 128
    assert vmc.Lattice((3, 5)).symmetries(flip=False).order == 60
    assert vmc.Lattice((10,)).symmetries().order == 40
    for rows in (square.symmetries().permutations, vmc.Lattice((3, 5)).symmetries().permutations):
        lattice = square if rows.shape[1] == 16 else vmc.Lattice((3, 5))
        bonds = {tuple(pair) for pair in lattice.bonds()}
        assert all({tuple(sorted(row[list(pair)])) for pair in bonds} == bonds for row in rows)


BAD = {
    "lattice": (lambda: vmc.Lattice((2,)), r"Lattice\(shape=\(2,\)\): shape must be one or two"),
    "distance": (lambda: vmc.Lattice((4,)).bonds(3), "distance must be 1 or 2"),
    "permutation": (lambda: vmc.Symmetries(np.array([[0, 0]])), "one permutation of the sites"),
    "group": (lambda: vmc.Symmetries(np.array([[1, 2, 0]])), "a group"),
    "odd": (lambda: vmc.heisenberg(vmc.Lattice((5,)), magnetisation=1), "marshall=False"),
    "empty": (lambda: vmc.heisenberg(vmc.Lattice((4,)), magnetisation=3), "this sector is empty"),
    "large": (lambda: vmc.heisenberg(vmc.Lattice((4,)), magnetisation=6), "this sector is empty"),
    "no lattice": (lambda: vmc.ising(10, 1.0), r"lattice must be a pullback.vmc.Lattice"),
    "bond": (lambda: vmc.SpinHamiltonian(3, np.array([[0, 3]])), "pairs of sites from 0 to 2"),
    "loop": (lambda: vmc.SpinHamiltonian(3, np.array([[1, 1]])), "two different sites"),
    "couplings": (
        lambda: vmc.SpinHamiltonian(3, np.array([[0, 1]]), zz=np.ones(2)),
        "one finite number, or one per bond",
    ),
    "field": (
        lambda: vmc.SpinHamiltonian(4, np.array([[0, 1]]), field=1.0, magnetisation=0),
        "None with a transverse field",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
