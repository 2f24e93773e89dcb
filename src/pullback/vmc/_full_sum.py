r"""Sums over all configurations, and over one of each class of equivalent ones.

Let a group act on the configurations, \(m_i\) be the size of the orbit of a representative
\(\sigma_i\), and \(\psi\) be constant on orbits. In the orthonormal basis of the orbits the
amplitudes are \(\varphi_i = \sqrt{m_i}\,\psi(\sigma_i)\), and

\[ E = \frac{\varphi^\top \tilde H \varphi}{\varphi^\top\varphi}, \qquad
   \tilde H_{ik} = \sum_{\sigma' \in [\sigma_k]} H_{\sigma_i\sigma'}\sqrt{m_i/m_k} . \]

The group must commute with \(H\), which is checked on equivalents drawn at random. So a wave
function with the symmetries is evaluated on the representatives only; for another one, the sum
defines a state that is constant on orbits by its values on the representatives.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters
from jaxtyping import Float, Int

from .._base.checks import error, instance
from .._problem.batch import Batch
from .._problem.composite import Composite
from ._energy import Configurations, Matrix, parts_of
from ._hamiltonian import AbstractHamiltonian
from ._lattice import Symmetries

Sparse = Any
"""A sparse matrix of SciPy, which has no types."""
MOST_SITES = 26
"""Configurations of more sites are not enumerated."""
CHECKS = 4
"""How many equivalents of each representative are compared with it."""
BLOCK = 2**14
"""How many configurations are looked at together."""


def full_sum(energy: Composite, symmetries: Symmetries | None = None) -> Batch:
    """The batch of all configurations, or of one of each class of equivalent ones.

    **Arguments:**

    - `energy`: a problem made by `vmc.problem`.
    - `symmetries`: symmetries of the operator and of the wave function, e.g.
        `lattice.symmetries()`; defaults to none.
    """
    _, hamiltonian = parts_of("full_sum", energy)
    spins, sizes, matrix = basis(hamiltonian, symmetries)
    dtype = jnp.result_type(float)
    index, elements = padded(matrix)
    inputs = Configurations(jnp.asarray(spins, dtype), jnp.asarray(-np.log(sizes), dtype))
    return Batch(inputs, Matrix(jnp.asarray(index), jnp.asarray(elements, dtype)))


def exact_energy(hamiltonian: AbstractHamiltonian, symmetries: Symmetries | None = None) -> float:
    """The lowest eigenvalue by exact diagonalisation.

    **Arguments:**

    - `hamiltonian`: the operator.
    - `symmetries`: symmetries of the operator and of the state; defaults to none.
    """
    wanted = "an operator on spins, an AbstractHamiltonian"
    example = "exact_energy(ising(Lattice((10,)), field=1.0))"
    instance("exact_energy", "hamiltonian", hamiltonian, AbstractHamiltonian, wanted, example)
    matrix = basis(hamiltonian, symmetries)[2]
    if matrix.shape[0] <= 512:
        return float(np.linalg.eigvalsh(matrix.toarray())[0])
    start = np.ones(matrix.shape[0])
    return float(scipy.sparse.linalg.eigsh(matrix, 1, which="SA", v0=start, tol=0)[0][0])


def basis(
    hamiltonian: AbstractHamiltonian, symmetries: Symmetries | None
) -> tuple[Float[np.ndarray, "N sites"], Int[np.ndarray, " N"], Sparse]:
    """Return representatives, the sizes of their orbits, and the matrix of the operator."""
    codes = _codes(hamiltonian)
    sites = hamiltonian.sites
    if symmetries is not None:
        instance(
            "full_sum", "symmetries", symmetries, Symmetries, "Symmetries", "lattice.symmetries()"
        )
        if symmetries.sites != sites:
            wanted = f"permutations of {sites} sites, like the operator, not of {symmetries.sites}"
            raise error("full_sum", "symmetries", symmetries.permutations, wanted)
        codes = codes[_least(codes, sites, symmetries) == codes]
    spins = _spins(codes, sites)
    sizes = np.ones(len(codes), int) if symmetries is None else _orbits(codes, sites, symmetries)
    matrix = _elements(hamiltonian, codes, spins, symmetries)
    if symmetries is not None:
        _check_commutes(hamiltonian, codes, matrix, symmetries)
    scale = scipy.sparse.diags(np.sqrt(sizes))
    matrix = (scale @ matrix @ scipy.sparse.diags(1 / np.sqrt(sizes))).tocsr()
    apart = abs(matrix - matrix.T)
    if apart.nnz and apart.max() > 1e-6 * abs(matrix).max():
        raise ValueError(
            "full_sum(...): the matrix of the operator is not symmetric; `connected` must return "
            "⟨σ|H|σ'⟩ = ⟨σ'|H|σ⟩."
        )
    return spins, sizes, matrix


def _elements(
    hamiltonian: AbstractHamiltonian,
    codes: Int[np.ndarray, " N"],
    spins: Float[np.ndarray, "M sites"],
    symmetries: Symmetries | None,
) -> Sparse:
    """Return the sums of the elements from configurations to the classes of the basis."""
    rows, columns, values = [], [], []
    connected = jax.jit(jax.vmap(hamiltonian.connected))
    for start in range(0, len(spins), BLOCK):
        block = jnp.asarray(spins[start : start + BLOCK], jnp.result_type(float))
        moved, elements = map(np.asarray, connected(block))
        kept = elements.ravel() != 0
        found = _encoded(moved.reshape(-1, hamiltonian.sites)[kept])
        if symmetries is not None and len(found):
            found = _least(found, hamiltonian.sites, symmetries)
        place = np.minimum(np.searchsorted(codes, found), len(codes) - 1)
        if np.any(codes[place] != found):
            raise ValueError(
                "full_sum(...): the operator leads out of its sector of magnetisation "
                f"{hamiltonian.magnetisation}. Leave the sector out, magnetisation=None."
            )
        rows.append((start + np.repeat(np.arange(len(moved)), moved.shape[1]))[kept])
        columns.append(place)
        values.append(elements.ravel()[kept])
    where = np.concatenate(rows), np.concatenate(columns)
    shape = len(spins), len(codes)
    matrix = scipy.sparse.csr_matrix((np.concatenate(values), where), shape=shape)
    if not np.all(np.isfinite(matrix.data)):
        raise ValueError("full_sum(...): the operator has elements that are not finite.")
    return matrix


def _check_commutes(
    hamiltonian: AbstractHamiltonian,
    codes: Int[np.ndarray, " N"],
    matrix: Sparse,
    symmetries: Symmetries,
) -> None:
    """Raise a `ValueError` if equivalent configurations, drawn at random, have other elements."""
    rng = np.random.default_rng(0)
    images = _images(codes, hamiltonian.sites, symmetries)
    for _ in range(CHECKS):
        others = images[np.arange(len(codes)), rng.integers(images.shape[1], size=len(codes))]
        moved = _spins(others, hamiltonian.sites)
        apart = abs(_elements(hamiltonian, codes, moved, symmetries) - matrix)
        if apart.nnz and apart.max() > 1e-6 * abs(matrix).max():
            raise ValueError(
                "full_sum(symmetries=...): the symmetries are not those of the operator. Pass its "
                "own ones, or none: full_sum(energy)."
            )


def _codes(hamiltonian: AbstractHamiltonian) -> Int[np.ndarray, " N"]:
    """Return the configurations of the sector as integers, ascending; bit i is spin i."""
    sites, sector = hamiltonian.sites, hamiltonian.magnetisation
    if sites > MOST_SITES:
        raise ValueError(
            f"full_sum(...): {sites} sites have 2**{sites} configurations; at most {MOST_SITES} "
            "sites are summed over. Draw samples: Metropolis(energy, chains=1024)."
        )
    codes = np.arange(2**sites, dtype=np.int64)
    if sector is None:
        return codes
    return codes[2 * np.bitwise_count(codes).astype(np.int64) - sites == sector]


def _spins(codes: Int[np.ndarray, " N"], sites: int) -> Float[np.ndarray, "N sites"]:
    return 2.0 * ((codes[:, None] >> np.arange(sites)) & 1) - 1.0


def _encoded(spins: Float[np.ndarray, "N sites"]) -> Int[np.ndarray, " N"]:
    return ((spins > 0) @ (2.0 ** np.arange(spins.shape[1]))).astype(np.int64)


def _images(codes: np.ndarray, sites: int, symmetries: Symmetries) -> np.ndarray:
    """Return the images of configurations under all elements of the group."""
    # (gσ)_i = σ_g(i): bit g(i) of a code becomes bit i. Sums below 2**53 are exact.
    powers = np.zeros((sites, len(symmetries.permutations)))
    for column, permutation in enumerate(symmetries.permutations):
        powers[permutation, column] = 2.0 ** np.arange(sites)
    bits = ((codes[:, None] >> np.arange(sites)) & 1).astype(float)
    images = (bits @ powers).astype(np.int64)
    return np.concatenate([images, 2**sites - 1 - images], axis=1) if symmetries.flip else images


def _least(codes: np.ndarray, sites: int, symmetries: Symmetries) -> np.ndarray:
    """Return the least code of the orbit of each configuration."""
    blocks = range(0, len(codes), BLOCK)
    parts = [_images(codes[k : k + BLOCK], sites, symmetries).min(axis=1) for k in blocks]
    return np.concatenate(parts)


def _orbits(codes: np.ndarray, sites: int, symmetries: Symmetries) -> np.ndarray:
    """Return the sizes of the orbits: the order of the group over that of the stabiliser."""
    images = _images(codes, sites, symmetries)
    return symmetries.order // np.sum(images == codes[:, None], axis=1)


def padded(matrix: Sparse) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows with equal numbers of entries; what is added is zero, and on the diagonal."""
    matrix.sum_duplicates()
    counts = np.diff(matrix.indptr)
    count, most = matrix.shape[0], int(max(counts.max(initial=1), 1))
    row = np.repeat(np.arange(count), counts)
    column = np.arange(matrix.nnz) - matrix.indptr[row]
    index = np.repeat(np.arange(count, dtype=np.int32)[:, None], most, axis=1)
    elements = np.zeros((count, most), matrix.dtype)
    index[row, column], elements[row, column] = matrix.indices, matrix.data
    return index, elements
