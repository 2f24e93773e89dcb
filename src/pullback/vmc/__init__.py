"""Variational Monte Carlo: the energy of a wave function as a problem, and spins to begin with."""

from ._born import Born as Born
from ._energy import Estimate as Estimate
from ._energy import estimate as estimate
from ._energy import local_energies as local_energies
from ._energy import problem as problem
from ._full_sum import exact_energy as exact_energy
from ._full_sum import full_sum as full_sum
from ._hamiltonian import AbstractHamiltonian as AbstractHamiltonian
from ._hamiltonian import SpinHamiltonian as SpinHamiltonian
from ._hamiltonian import heisenberg as heisenberg
from ._hamiltonian import ising as ising
from ._hamiltonian import j1j2 as j1j2
from ._lattice import Lattice as Lattice
from ._lattice import Symmetries as Symmetries
from ._metropolis import Chains as Chains
from ._metropolis import Metropolis as Metropolis
from ._netket import FromNetKet as FromNetKet
from ._netket import NetKetPreconditioner as NetKetPreconditioner
from ._netket import from_netket as from_netket
from ._netket import netket_preconditioner as netket_preconditioner
