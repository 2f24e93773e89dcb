r"""\(Av\) and \(A^\top y\) from factors, at half the price of a pass through the model.

\[ (Av)_{nq} = \sum_t d_{nqt}^\top V^\top x_{nt}, \qquad (A^\top y)_{io} = \sum_{nt} x_{nti}
\sum_q y_{nq} d_{nqto}, \]

one matrix product per leaf, where a derivative of the model takes two, and nothing else of its
program is compiled again. Leaves kept as rows are read from memory.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.types import Flat
from .._base.vector import combine
from .factors import Factors, Layout

READ = 8
"""The multiplications of a matrix product in the time that it takes to read a number."""


class Products(eqx.Module):
    """A in factors, as an operator on the parameters in their own order."""

    factors: Factors
    order: Int[np.ndarray, " P"]
    """The places of the factors and rows in the flat parameters."""
    place: Int[np.ndarray, " P"]
    """Its inverse."""

    def mv(self, v: Flat) -> Float[Array, " m"]:
        """A v."""
        factors = self.factors
        n, q, size = factors.rows.shape
        v = v[self.order]
        total = jnp.zeros((n, q), v.dtype)
        start = 0
        for x, d in zip(factors.x, factors.d, strict=True):
            (_, t, i), o = x.shape, d.shape[-1]
            met = x.reshape(n * t, i) @ v[start : start + i * o].reshape(i, o)
            total = total + jnp.einsum("nqk,nk->nq", d.reshape(n, q, -1), met.reshape(n, -1))
            start += i * o
        if size:
            total = total + (factors.rows.reshape(n * q, size) @ v[start:]).reshape(n, q)
        return total.reshape(-1)

    def rmv(self, y: Float[Array, " m"]) -> Flat:
        """Aᵀ y."""
        factors = self.factors
        n, q, size = factors.rows.shape
        found = []
        for x, d in zip(factors.x, factors.d, strict=True):
            e = jax.vmap(lambda y, d: y @ d)(y.reshape(n, q), d.reshape(n, q, -1))
            found.append((x.reshape(-1, x.shape[-1]).T @ e.reshape(-1, d.shape[-1])).ravel())
        if size:
            found.append(combine(factors.rows.reshape(n * q, size), y))
        return jnp.concatenate(found)[self.place]


def products(factors: Factors, plan: Layout, q: int) -> Products | None:
    """The products with A in factors; `None` if a pass through the model costs less.

    A pass takes two matrix products per leaf, and reads no rows.
    """
    if any(factors.codes) or plan.statistics:
        return None
    cost = lambda group: group.positions * group.order.size
    own = sum(cost(group) for group in plan.factors)
    every = own + sum(cost(group) for group in plan.products)
    if own + READ * q * plan.row_size > 2 * every:
        return None
    order = plan.order.astype(np.int32)
    return Products(factors, order, np.argsort(order).astype(np.int32))
