r"""Periodic lattices: sites, bonds, two sublattices, and the permutations that keep the bonds.

A permutation \(g\) acts on a configuration as \((g\sigma)_i = \sigma_{g(i)}\), and the spin flip as
\(\sigma \mapsto -\sigma\). Site \((x_1, \dots, x_d)\) has the number that NumPy's `ravel` gives it.
"""

import itertools

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Int

from .._base.checks import error, instance


class Symmetries(eqx.Module):
    """A group of permutations of the sites, with or without the flip of all spins.

    **Arguments:**

    - `permutations`: integers of shape (G, sites), one permutation per row.
    - `flip`: whether the flip of all spins is a symmetry, too.
    """

    permutations: Int[np.ndarray, "G sites"]
    flip: bool = eqx.field(static=True)

    def __init__(self, permutations: Int[np.ndarray, "G sites"], flip: bool = False):
        """Check and keep the group; `permutations` is closed under composition."""
        found = np.asarray(permutations)
        example = "Symmetries(np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1]]))"
        good = found.ndim == 2 and found.size and np.issubdtype(found.dtype, np.integer)
        if not good or np.any(np.sort(found, axis=1) != np.arange(found.shape[1])):
            wanted = "one permutation of the sites per row, integers of shape (G, sites)"
            raise error("Symmetries", "permutations", permutations, wanted, example)
        instance("Symmetries", "flip", flip, bool, "a boolean", "Symmetries(rows, flip=True)")
        known = {row.tobytes() for row in np.ascontiguousarray(found)}
        first = np.ascontiguousarray(found[:, found[-1]])
        if len(known) < len(found) or any(row.tobytes() not in known for row in first):
            wanted = "a group: each permutation once, and with any two of them their product"
            raise error("Symmetries", "permutations", permutations, wanted, example)
        self.permutations = found
        self.flip = flip

    @property
    def sites(self) -> int:
        """The number of sites."""
        return self.permutations.shape[1]

    @property
    def order(self) -> int:
        """The number of elements of the group."""
        return len(self.permutations) * (2 if self.flip else 1)


class Lattice(eqx.Module):
    """A periodic lattice: `Lattice((10,))` is a chain, `Lattice((4, 4))` a square.

    **Arguments:**

    - `shape`: the lengths, one or two integers of at least 3.
    """

    shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, shape: tuple[int, ...]):
        """Check and keep the lengths."""
        whole = isinstance(shape, tuple | list) and all(isinstance(n, int) for n in shape)
        if not whole or len(shape) not in (1, 2) or min(shape) < 3:
            # With length 2 the neighbours to the left and to the right are one site.
            wanted = "one or two lengths of at least 3"
            raise error("Lattice", "shape", shape, wanted, "Lattice((4, 4))")
        self.shape = tuple(shape)

    @property
    def sites(self) -> int:
        """The number of sites."""
        return int(np.prod(self.shape))

    @property
    def coordinates(self) -> Int[np.ndarray, "sites d"]:
        """The coordinates of each site."""
        return np.stack(np.unravel_index(np.arange(self.sites), self.shape), axis=1)

    @property
    def sublattice(self) -> Bool[np.ndarray, " sites"]:
        """Which sites have an odd sum of coordinates; all neighbours differ if lengths are even."""
        return self.coordinates.sum(axis=1) % 2 == 1

    @property
    def bipartite(self) -> bool:
        """Whether all neighbours lie on different sublattices."""
        return all(n % 2 == 0 for n in self.shape)

    def bonds(self, distance: int = 1) -> Int[np.ndarray, "bonds 2"]:
        """The pairs of sites that are nearest (1) or next-nearest (2) neighbours, each once.

        **Arguments:**

        - `distance`: 1 or 2.
        """
        if distance not in (1, 2):
            raise error("bonds", "distance", distance, "1 or 2", "lattice.bonds(2)")
        if len(self.shape) == 1:
            steps = [(distance,)]
        else:
            steps = [(0, 1), (1, 0)] if distance == 1 else [(1, 1), (1, -1)]
        here = np.arange(self.sites)
        pairs = np.concatenate([np.stack([here, self._moved(step)], axis=1) for step in steps])
        return np.unique(np.sort(pairs, axis=1), axis=0)

    def symmetries(self, flip: bool = True) -> Symmetries:
        """All translations, rotations and reflections of the lattice.

        **Arguments:**

        - `flip`: whether to include the flip of all spins.
        """
        axes = list(itertools.permutations(range(len(self.shape))))
        if len(set(self.shape)) > 1:
            axes = axes[:1]
        rows = []
        for order in axes:
            for signs in itertools.product((1, -1), repeat=len(self.shape)):
                turned = self.coordinates[:, list(order)] * np.array(signs)
                for shift in np.ndindex(*self.shape):
                    moved = (turned + np.array(shift)) % np.array(self.shape)
                    rows.append(np.ravel_multi_index(tuple(moved.T), self.shape))
        return Symmetries(np.unique(np.stack(rows), axis=0), flip)

    def _moved(self, step: tuple[int, ...]) -> Int[np.ndarray, " sites"]:
        """The site that lies one step from each site."""
        moved = (self.coordinates + np.array(step)) % np.array(self.shape)
        return np.asarray(np.ravel_multi_index(tuple(moved.T), self.shape))
