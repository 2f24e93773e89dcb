r"""\(G = \hat A^\top D^2 \hat A\) of rows from which a mean is taken off, from factors.

With the notation of `centred.py`, \(b_n = \xi_n\otimes d_n + \bar x\otimes\varepsilon_n\), for two
leaves

\[ \sum_n b_n b_n'^\top = \sum_n \xi\xi'^\top \otimes dd'^\top + \bar x' \sum_n \xi\otimes
d\varepsilon'^\top + \bar x \sum_n \xi'\otimes\varepsilon d'^\top + \bar x\bar x'^\top \otimes
\sum_n \varepsilon\varepsilon'^\top , \]

where the first sum costs as much as that of \(G_0\), and the others less by the number of inputs.
\(G\) is this less the mean that is left, \(\sum_n s_n^2\,\bar b\bar b^\top\).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .factors import Factors
from .metric import assemble


class Centres(NamedTuple):
    """The means of the factors of each leaf, and of the rows."""

    x: tuple[Float[Array, " i"], ...]
    d: tuple[Float[Array, "q o"], ...]
    rows: Float[Array, "q r"]


class Sums(NamedTuple):
    """What is summed over samples."""

    blocks: list[Array]
    means: list[Float[Array, "q i o"]]
    """b̄ of each leaf, and of the rows."""


def centres(factors: Factors, mean: Float[Array, " n"]) -> Centres:
    """Return the part of some samples of the means of the factors."""
    average = lambda x: jnp.tensordot(mean, x, 1)
    return Centres(
        tuple(average(x[:, 0]) for x in factors.x),
        tuple(average(d[:, :, 0]) for d in factors.d),
        average(factors.rows),
    )


def centred_blocks(
    factors: Factors, at: Centres, mean: Float[Array, " n"], scale: Float[Array, "n q"]
) -> Sums:
    """Return the blocks of G for each pair of leaves, and b̄, summed over the given samples."""
    parts = [
        _Part(x[:, 0], d[:, :, 0], c, e, scale)
        for x, d, c, e in zip(factors.x, factors.d, at.x, at.d, strict=True)
    ]
    if factors.rows.shape[2]:
        ones = jnp.ones((factors.rows.shape[0], 1), factors.rows.dtype)
        parts.append(_Part(ones, factors.rows, ones[0], at.rows, scale))
    blocks = []
    for k, part in enumerate(parts):
        blocks += [_block(part, other) for other in parts[:k]]
        blocks.append(_own_block(part))
    return Sums(blocks, [part.mean(mean) for part in parts])


def centred_metric(
    sums: Sums, sizes: list[tuple[int, int]], total: Float[Array, " q"]
) -> tuple[Float[Array, "P P"], Array]:
    """Return the lower triangle of G, and the norm of what was taken off in the end."""
    q = total.shape[0]
    left = jnp.concatenate([mean.reshape(q, -1) for mean in sums.means], axis=1)
    left = jnp.sqrt(total)[:, None] * left
    return assemble(sums.blocks, sizes) - left.T @ left, jnp.sum(left * left)


class _Part:
    """One leaf about its means, scaled."""

    def __init__(self, x: Array, d: Array, x_mean: Array, d_mean: Array, scale: Array):
        self.x_mean, self.d_mean = x_mean, d_mean
        # XLA must not compute a small difference anew, in another order, for each use.
        self.xi, self.plain = jax.lax.optimization_barrier((x - x_mean[None], d - d_mean[None]))
        self.eps = scale[:, :, None] * self.plain
        self.d = self.eps + scale[:, :, None] * d_mean[None]

    def mean(self, mean: Array) -> Float[Array, "q i o"]:
        """Return Σ w̄ b, the part of these samples."""
        far = jnp.tensordot(mean, self.xi, 1)[None, :, None] * self.d_mean[:, None, :]
        near = self.x_mean[None, :, None] * jnp.tensordot(mean, self.plain, 1)[:, None, :]
        return jnp.einsum("ni,nqo->qio", mean[:, None] * self.xi, self.plain) + far + near


def _outer(d: Array, e: Array) -> Float[Array, "n oo"]:
    """Return Σ_q d e, flat."""
    return jnp.einsum("nqo,nqp->nop", d, e).reshape(d.shape[0], -1)


def _block(one: _Part, other: _Part) -> Array:
    """Return a block of G for two leaves, (i i', o o')."""
    i, j = one.xi.shape[1], other.xi.shape[1]
    pairs = (one.xi[:, :, None] * other.xi[:, None, :]).reshape(one.xi.shape[0], -1)
    both = (pairs.T @ _outer(one.d, other.d)).reshape(i, j, -1)
    first = (one.xi.T @ _outer(one.d, other.eps))[:, None] * other.x_mean[None, :, None]
    second = (other.xi.T @ _outer(one.eps, other.d))[None] * one.x_mean[:, None, None]
    means = (one.x_mean[:, None] * other.x_mean[None, :])[:, :, None]
    third = means * jnp.sum(_outer(one.eps, other.eps), axis=0)[None, None]
    return (both + first + second + third).reshape(i * j, -1)


def _own_block(part: _Part) -> Array:
    """Return the block of a leaf with itself, for i >= i'."""
    i, j = np.tril_indices(part.xi.shape[1])
    both = (part.xi[:, i] * part.xi[:, j]).T @ _outer(part.d, part.d)
    first = (part.xi.T @ _outer(part.d, part.eps))[i] * part.x_mean[j][:, None]
    second = (part.xi.T @ _outer(part.eps, part.d))[j] * part.x_mean[i][:, None]
    means = (part.x_mean[i] * part.x_mean[j])[:, None]
    return both + first + second + means * jnp.sum(_outer(part.eps, part.eps), axis=0)[None]
