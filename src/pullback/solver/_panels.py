r"""Cholesky factorisation of a symmetric matrix whose rows are spread over devices.

A symmetric matrix may be eliminated in any order of its rows. Each of n devices has b = m/n of
them; a *panel* is the next few rows of every device, \(w\) in all, so that all devices are busy
until the end and no row ever moves. With \(C\) the columns of a panel, from its own rows on,

\[ D = LL^\top, \qquad C \leftarrow C L^{-\top}, \qquad C_j \leftarrow C_j - C\,C_{[j]}^\top
\quad\text{for later panels } j , \]

\(D\) its diagonal block and \(C_{[j]}\) the rows of \(C\) that belong to panel j. Every device has
the rows of its own of each C, \(m^2/2n\) numbers. \(D\) and \(C\) are sent to all, \(m^2/2\) numbers
in all panels; the diagonal blocks stay there, \(m^2/p\) numbers for p panels. A device does its
share of \(m^3/3\) multiplications, and repeats the small factorisations \(D = LL^\top\).
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


def cuts(rows: int, devices: int) -> tuple[tuple[int, int], ...]:
    """Return where the rows of a device that belong to each panel begin and end."""
    width = max(-(-rows // (devices + MORE)), -(-NARROWEST // devices))
    return tuple((start, min(start + width, rows)) for start in range(0, rows, width))


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
        devices, parts, blocks, below = self.axis.size, list(self.parts), [], []
        positive = jnp.asarray(True)
        for k, part in enumerate(parts):
            width = part.shape[1] // devices
            block = gathered(part[:width], self.axis)
            block = block + damping * jnp.eye(block.shape[0], dtype=block.dtype)
            block, fine = cholesky(block)
            rest = triangular_solve(block, part[width:], lower=True, transpose_a=True)
            positive = positive & fine
            blocks.append(block)
            below.append(rest)
            if k + 1 == len(parts):
                break
            everyone = gathered(rest[None], self.axis)
            start = 0
            for j in range(k + 1, len(parts)):
                end = start + parts[j].shape[1] // devices
                theirs = everyone[:, start:end].reshape(-1, part.shape[1])
                parts[j] = parts[j] - rest[start:] @ theirs.T
                start = end
        return PanelFactor(tuple(blocks), tuple(below), self.axis), positive
