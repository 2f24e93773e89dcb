r"""Cholesky factorisation of a symmetric matrix whose rows are spread over devices.

A symmetric matrix may be eliminated in any order of its rows. Each of n devices has b = m/n of
them; a *panel* is the next few rows of every device, \(w\) in all, so that all devices are busy
until the end and no row ever moves. With \(C\) the columns of a panel, from its own rows on, and
\(C_j\) those of the panels before it,

\[ C \leftarrow C - \sum_j C_j\,C_{j}^{\prime\top}, \qquad D = LL^\top, \qquad C \leftarrow C
L^{-\top} , \]

\(C_j'\) the rows of \(C_j\) that belong to the panel, and \(D\) its diagonal block. Of each \(C\)
a device has its own rows, \(m^2/2n\) numbers. The \(C_j'\) and \(D\) are sent to all, \(m^2/2\)
numbers in all panels; the diagonal blocks stay there, \(m^2/p\) numbers for p panels. A device does
its share of the \(m^3/3\) operations, and repeats the small factorisations \(D = LL^\top\).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax.linalg import triangular_solve
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from .._base.axis import Axis, around, gathered, own, place, total
from .._base.types import Scalar
from .._compat.lapack import cholesky

MORE, NARROWEST = 4, 64
"""How many panels there are more than devices, and the fewest columns of one."""
COPIED, SPARE = 2**23, 2**27
"""Bytes of K: up to the first every device factorises a copy of it, and up to the second its
eigenvectors may take over where a Cholesky factorisation over devices is not proved."""


def cuts(rows: int, devices: int) -> tuple[tuple[int, int], ...]:
    """Return where the rows of a device that belong to each panel begin and end."""
    width = max(-(-rows // (devices + MORE)), -(-NARROWEST // devices))
    return tuple((start, min(start + width, rows)) for start in range(0, rows, width))


def is_shared(size: int, itemsize: int, devices: int) -> bool:
    """Return whether devices share the factorisation of G, where all have it and it is damped."""
    return devices > 1 and size * size * itemsize > COPIED


class PanelFactor(eqx.Module):
    """L of L Lᵀ: the diagonal blocks on every device, and its own rows below them."""

    blocks: tuple[Float[Array, "w w"], ...]
    """Above their diagonals, anything."""
    below: tuple[Float[Array, "rows w"], ...]
    axis: Axis = eqx.field(static=True)

    def solve(self, x: Float[Array, " m"]) -> Float[Array, " m"]:
        """Return (L Lᵀ)⁻¹ x, on every device."""
        devices, found = self.axis.size, []
        left = own(x, self.axis)
        for block, below in zip(self.blocks, self.below, strict=True):
            width = block.shape[0] // devices
            known = solve_triangular(block, gathered(left[:width], self.axis), lower=True)
            left = left[width:] - below @ known
            found.append(known)
        parts = left
        back = []
        for block, below, known in zip(
            reversed(self.blocks), reversed(self.below), reversed(found), strict=True
        ):
            known = known - total(below.T @ parts, self.axis)
            known = solve_triangular(block, known, lower=True, trans="T")
            parts = jnp.concatenate([own(known, self.axis), parts])
            back.append(known.reshape(devices, -1))
        return jnp.concatenate(back[::-1], axis=1).ravel()


class DealtFactor(eqx.Module):
    """L of L Lᵀ, of a matrix whose rows were dealt to the devices."""

    factor: PanelFactor
    size: int = eqx.field(static=True)

    def solve(self, x: Float[Array, " P"]) -> Float[Array, " P"]:
        """Return (L Lᵀ)⁻¹ x, on every device."""
        n = self.factor.axis.size
        dealt = jnp.pad(x, (0, -self.size % n)).reshape(-1, n).T.ravel()
        found = self.factor.solve(dealt)
        return found.reshape(n, -1).T.ravel()[: self.size]


class Panels(eqx.Module):
    """A symmetric matrix in panels, of each the rows of this device."""

    parts: tuple[Float[Array, "rows w"], ...]
    axis: Axis = eqx.field(static=True)

    @staticmethod
    def of(mine: Any, function: Callable[[Any], Float[Array, "b b"]], axis: Axis) -> "Panels":
        """Return the matrix whose block between two devices is a function of the tree of one.

        `function(other)` returns the block between the rows of this device and those of another,
        which travel round a ring.
        """
        rows = jax.eval_shape(function, mine).shape[0]
        places = cuts(rows, axis.size)

        def cut(other):
            block = function(other)
            return tuple(block[start:, start:end] for start, end in places)

        return Panels(around(mine, cut, axis), axis)

    @staticmethod
    def dealt(matrix: Float[Array, "P P"], axis: Axis) -> "Panels":
        """Return a matrix of which every device has the lower triangle.

        Of n devices the d-th takes the rows i n + d. The rows below a panel are then below it
        in the matrix, too. Where n does not divide P, the last rows are zero.
        """
        n, size = axis.size, matrix.shape[0]
        rows, here = -(-size // n), place(axis)
        parts = []
        for start, end in cuts(rows, n):
            width, first, last = end - start, start * n, min(end * n, size)
            columns = matrix[:, first:last]
            short = end * n - last
            # The block on the diagonal is small, and the only one that is needed as a whole.
            block = jnp.pad(jnp.tril(columns[first:last]), (0, short))
            block = block + jnp.tril(block, -1).T
            top = jnp.take(block.reshape(width, n, -1), here, axis=1)
            index = jnp.arange(end, rows) * n + here
            below = columns.at[index].get(mode="fill", fill_value=0.0)
            part = jnp.concatenate([top, jnp.pad(below, ((0, 0), (0, short)))])
            # The columns of a panel are those of one device after another.
            parts.append(part.reshape(-1, width, n).swapaxes(1, 2).reshape(-1, n * width))
        return Panels(tuple(parts), axis)

    @property
    def diagonal(self) -> Float[Array, " m"]:
        """The diagonal of the matrix, on every device."""
        mine = []
        for part in self.parts:
            width = part.shape[1] // self.axis.size
            column = place(self.axis) * width
            block = jax.lax.dynamic_slice(part, (0, column), (width, width))
            mine.append(jnp.diagonal(block))
        return gathered(jnp.concatenate(mine), self.axis)

    def cholesky(self, damping: Scalar) -> tuple[PanelFactor, Array]:
        """Return the factor of the matrix + λ, and whether all pivots were positive."""
        blocks, below, fine = [], [], jnp.asarray(True)
        for part in self.parts:
            # After a pivot that is not positive nothing follows. Without the condition XLA would
            # cut the rows of all later panels at once, and keep them.
            step = lambda below, part: self._step(tuple(below), part, damping)
            like = jax.eval_shape(step, below, part)
            nothing = lambda *_, like=like: jax.tree.map(
                lambda x: jnp.zeros(x.shape, x.dtype), like
            )
            block, rest, fine = jax.lax.cond(fine, step, nothing, below, part)
            blocks.append(block)
            below.append(rest)
        return PanelFactor(tuple(blocks), tuple(below), self.axis), fine

    def _step(
        self, below: tuple[Array, ...], part: Float[Array, "rows w"], damping: Scalar
    ) -> tuple[Array, Array, Array]:
        """Return the diagonal block of the factor, its rows below, and whether pivots were fine."""
        rows, width = part.shape[0], part.shape[1] // self.axis.size
        if below:
            # What panels before this one have in its rows.
            left = jnp.concatenate([x[x.shape[0] - rows :] for x in below], axis=1)
            part = part - left @ gathered(left[:width], self.axis).T
        block = gathered(part[:width], self.axis)
        block, fine = cholesky(block + damping * jnp.eye(block.shape[0], dtype=block.dtype))
        return block, triangular_solve(block, part[width:], lower=True, transpose_a=True), fine
