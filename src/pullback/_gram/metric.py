r"""\(G = A^\top A\) from factors, outputs contracted before samples.

For two leaves \(G_{io,i'o'} = \sum_n x_{ni} x'_{ni'} B_{n,oo'}\) with \(B_{n,oo'} = \sum_q d_{nqo}
d'_{nqo'}\): 2 N P² operations instead of 2 N q P². Leaves kept as rows are factors with one input,
x = 1. The parameters are in the order of the factors (`Layout.order`). Only entries on and below
the diagonal are computed.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .factors import Factors


def blocks(factors: Factors) -> list[Array]:
    """The blocks of G for each pair of leaves, summed over the given samples."""
    xs, ds = _uniform(factors)
    out = []
    for k, (x, d) in enumerate(zip(xs, ds, strict=True)):
        for other_x, other_d in zip(xs[:k], ds[:k], strict=True):
            pairs = (x[:, :, None] * other_x[:, None, :]).reshape(x.shape[0], -1)
            out.append(pairs.T @ jnp.einsum("nqo,nqp->nop", d, other_d).reshape(x.shape[0], -1))
        if k == len(factors.x):
            flat = d.reshape(-1, d.shape[-1])
            out.append((flat.T @ flat).reshape(1, -1))
            continue
        # Within a leaf i >= i' is enough, by symmetry.
        i, other_i = np.tril_indices(x.shape[1])
        pairs = x[:, i] * x[:, other_i]
        out.append(pairs.T @ jnp.einsum("nqo,nqp->nop", d, d).reshape(x.shape[0], -1))
    return out


def assemble(sums: list[Array], sizes: list[tuple[int, int]]) -> Float[Array, "P P"]:
    """The lower triangle of G in the order of the factors, from its blocks."""
    dims = [i * o for i, o in sizes]
    starts = np.concatenate([[0], np.cumsum(dims)])
    out = jnp.zeros((int(starts[-1]), int(starts[-1])), sums[0].dtype)
    index = 0
    for k, (i, o) in enumerate(sizes):
        for other, (j, p) in enumerate(sizes[:k]):
            block = sums[index].reshape(i, j, o, p).transpose(0, 2, 1, 3).reshape(i * o, j * p)
            out = out.at[starts[k] : starts[k + 1], starts[other] : starts[other + 1]].set(block)
            index += 1
        row, column = np.tril_indices(i)
        square = (
            jnp.zeros((i, i, o, o), out.dtype).at[row, column].set(sums[index].reshape(-1, o, o))
        )
        block = square.transpose(0, 2, 1, 3).reshape(i * o, i * o)
        out = out.at[starts[k] : starts[k + 1], starts[k] : starts[k + 1]].set(block)
        index += 1
    return out


def _uniform(factors: Factors) -> tuple[list[Array], list[Array]]:
    """All leaves as (x, d); for rows x = 1."""
    xs = [x[:, 0] for x in factors.x]
    ds = [d[:, :, 0] for d in factors.d]
    if factors.rows.shape[2]:
        xs.append(jnp.ones((factors.rows.shape[0], 1), factors.rows.dtype))
        ds.append(factors.rows)
    return xs, ds
