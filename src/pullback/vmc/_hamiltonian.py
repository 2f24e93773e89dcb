r"""Hamiltonians of spins as sparse operators: the configurations that one configuration leads to.

In Pauli matrices,

\[ H = \sum_{(i,j)} \bigl[ a_{ij}\, \sigma^z_i\sigma^z_j
   + b_{ij}\,(\sigma^x_i\sigma^x_j + \sigma^y_i\sigma^y_j) \bigr] - h\sum_i \sigma^x_i . \]

\(\sigma^x_i\sigma^x_j + \sigma^y_i\sigma^y_j\) exchanges antiparallel spins with the element 2 and
is zero on parallel ones. Marshall's rotation by π about z on one sublattice changes the sign of
\(b_{ij}\) between the sublattices: the same energies, and a ground state that is positive if no
\(b_{ij}\) inside a sublattice remains.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.checks import error, instance
from ._lattice import Lattice


class AbstractHamiltonian(eqx.Module):
    """A real symmetric operator on spins ±1. To write one, give `sites` and `connected`.

    A `magnetisation` that is not `None` is the sum of the spins, which the operator keeps.
    """

    sites: eqx.AbstractVar[int]
    magnetisation: eqx.AbstractVar[int | None]

    @abc.abstractmethod
    def connected(
        self, spins: Float[Array, " sites"]
    ) -> tuple[Float[Array, "K sites"], Float[Array, " K"]]:
        """The configurations σ' with ⟨σ|H|σ'⟩ ≠ 0, and these elements; σ itself is one of them.

        K is the same for every σ. A configuration that is not needed has the element zero, and is
        a copy of σ, on which the wave function is known.

        **Arguments:**

        - `spins`: one configuration σ.
        """


class SpinHamiltonian(AbstractHamiltonian):
    """Couplings on bonds and a transverse field.

    **Arguments:**

    - `sites`: the number of sites.
    - `bonds`: pairs of sites, integers of shape (B, 2).
    - `zz`: the coupling of σᶻσᶻ on each bond, or one number.
    - `exchange`: the coupling of σˣσˣ + σʸσʸ on each bond, or one number.
    - `field`: h, the transverse field; the operator has the term -h Σ σˣ.
    - `magnetisation`: the sum of the spins, if the states are restricted to it; only without a
        field, which changes it.
    """

    sites: int = eqx.field(static=True)
    # Static, hence tuples: which configurations are connected is part of the program.
    bonds: tuple[tuple[int, int], ...] = eqx.field(static=True)
    zz: tuple[float, ...] = eqx.field(static=True)
    exchange: tuple[float, ...] = eqx.field(static=True)
    field: float = eqx.field(static=True)
    magnetisation: int | None = eqx.field(static=True)

    def __init__(
        self,
        sites: int,
        bonds: Int[np.ndarray, "B 2"],
        zz: Float[np.ndarray, " B"] | float = 0.0,
        exchange: Float[np.ndarray, " B"] | float = 0.0,
        field: float = 0.0,
        magnetisation: int | None = None,
    ):
        """Check and keep the couplings."""
        owner, found = "SpinHamiltonian", np.asarray(bonds)
        example = "SpinHamiltonian(3, np.array([[0, 1], [1, 2]]), zz=-1.0, field=1.0)"
        whole = np.issubdtype(found.dtype, np.integer) and found.ndim == 2 and found.shape[1] == 2
        if not whole or found.size == 0 or found.min() < 0 or found.max() >= sites:
            wanted = f"pairs of sites from 0 to {sites - 1}, of shape (B, 2)"
            raise error(owner, "bonds", bonds, wanted, example)
        if np.any(found[:, 0] == found[:, 1]):
            raise error(owner, "bonds", bonds, "pairs of two different sites", example)
        for name, value in (("zz", zz), ("exchange", exchange), ("field", field)):
            shapes = ((),) if name == "field" else ((), (len(found),))
            if np.shape(value) not in shapes or not np.all(np.isfinite(value)):
                wanted = "one finite number" + ("" if name == "field" else ", or one per bond")
                raise error(owner, name, value, wanted, example)
        if magnetisation is not None:
            _check_sector(owner, sites, magnetisation, float(field))
        self.sites = sites
        self.bonds = tuple((int(i), int(j)) for i, j in found)
        self.zz = tuple(np.broadcast_to(np.asarray(zz, float), len(found)).tolist())
        self.exchange = tuple(np.broadcast_to(np.asarray(exchange, float), len(found)).tolist())
        self.field = float(field)
        self.magnetisation = magnetisation

    def __repr__(self) -> str:
        sector = "" if self.magnetisation is None else f", magnetisation={self.magnetisation}"
        return f"SpinHamiltonian({self.sites} sites, {len(self.bonds)} bonds{sector})"

    def connected(self, spins):
        i, j = np.array(self.bonds).T
        zz, exchange = np.array(self.zz), np.array(self.exchange)
        pairs = spins[i] * spins[j]
        rows, elements = [spins[None]], [jnp.sum(_like(zz, spins) * pairs)[None]]
        moved = exchange != 0
        if np.any(moved):
            a, b = i[moved], j[moved]
            flips = np.ones((len(a), self.sites))
            flips[np.arange(len(a)), a] = flips[np.arange(len(a)), b] = -1.0
            apart = (pairs[moved] < 0)[:, None]
            rows.append(jnp.where(apart, spins[None] * _like(flips, spins), spins[None]))
            coupling = _like(2 * exchange[moved], spins)
            elements.append(jnp.where(apart[:, 0], coupling, 0.0))
        if self.field != 0:
            rows.append(spins[None] * _like(1 - 2 * np.eye(self.sites), spins))
            elements.append(jnp.full(self.sites, -self.field, spins.dtype))
        return jnp.concatenate(rows), jnp.concatenate(elements)


def _check_sector(owner: str, sites: int, magnetisation: int, field: float) -> None:
    """Raise a `ValueError` if the sector is empty, or not kept by the operator."""
    example = f"{owner}(..., magnetisation={sites % 2})"
    whole = isinstance(magnetisation, int | np.integer) and not isinstance(magnetisation, bool)
    if not whole or abs(magnetisation) > sites or (magnetisation + sites) % 2:
        wanted = (
            f"the sum of {sites} spins ±1, {'even' if sites % 2 == 0 else 'odd'} and at most "
            f"{sites}; this sector is empty"
        )
        raise error(owner, "magnetisation", magnetisation, wanted, example)
    if field:
        wanted = "None with a transverse field, which changes the magnetisation"
        raise error(owner, "magnetisation", magnetisation, wanted, f"{owner}(..., field=0.0)")


def _like(numbers: np.ndarray, spins: Array) -> Array:
    return jnp.asarray(numbers, spins.dtype)


def _check_lattice(owner: str, lattice: Lattice) -> None:
    """Raise a `ValueError` if this is no lattice."""
    wanted = "a pullback.vmc.Lattice"
    instance(owner, "lattice", lattice, Lattice, wanted, f"{owner}(Lattice((10,)))")


def ising(lattice: Lattice, field: float, coupling: float = 1.0) -> SpinHamiltonian:
    """The transverse-field Ising model, -J Σ σᶻσᶻ - h Σ σˣ.

    **Arguments:**

    - `lattice`: where the spins are.
    - `field`: h.
    - `coupling`: J; positive is ferromagnetic.
    """
    _check_lattice("ising", lattice)
    return SpinHamiltonian(lattice.sites, lattice.bonds(), zz=-coupling, field=field)


def heisenberg(
    lattice: Lattice, coupling: float = 1.0, magnetisation: int | None = 0, marshall: bool = True
) -> SpinHamiltonian:
    """The Heisenberg model, J Σ σ·σ over nearest neighbours.

    **Arguments:**

    - `lattice`: where the spins are.
    - `coupling`: J; positive is antiferromagnetic.
    - `magnetisation`: the sum of the spins; `None` for all states.
    - `marshall`: whether one sublattice is rotated, so that the ground state is positive.
    """
    return j1j2(lattice, 0.0, coupling, magnetisation, marshall)


def j1j2(
    lattice: Lattice,
    second: float,
    first: float = 1.0,
    magnetisation: int | None = 0,
    marshall: bool = True,
) -> SpinHamiltonian:
    """The J1-J2 model, J1 Σ σ·σ over nearest and J2 Σ σ·σ over next-nearest neighbours.

    **Arguments:**

    - `lattice`: where the spins are.
    - `second`: J2.
    - `first`: J1.
    - `magnetisation`: the sum of the spins; `None` for all states.
    - `marshall`: whether one sublattice is rotated. The ground state is then positive for J2 = 0,
        and has few negative amplitudes for small J2.
    """
    _check_lattice("j1j2", lattice)
    if marshall and not lattice.bipartite:
        wanted = "False on a lattice of odd length, which has no two sublattices"
        raise error("j1j2", "marshall", marshall, wanted, "j1j2(lattice, 0.5, marshall=False)")
    parts = [(lattice.bonds(1), first), (lattice.bonds(2), second)]
    parts = [(bonds, j) for bonds, j in parts if j != 0] or parts[:1]
    bonds = np.concatenate([bonds for bonds, _ in parts])
    zz = np.concatenate([np.full(len(bonds), float(j)) for bonds, j in parts])
    odd = lattice.sublattice
    rotated = marshall & (odd[bonds[:, 0]] != odd[bonds[:, 1]])
    exchange = np.where(rotated, -zz, zz)
    return SpinHamiltonian(lattice.sites, bonds, zz, exchange, 0.0, magnetisation)
