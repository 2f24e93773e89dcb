r"""\(Av\) and \(A^\top y\) from factors, at half the price of a pass through the model.

\[ (Av)_{nq} = \sum_t d_{nqt}^\top V^\top x_{nt}, \qquad (A^\top y)_{io} = \sum_{nt} x_{nti}
\sum_q y_{nq} d_{nqto}, \]

one matrix product per leaf, where a derivative of the model takes two, and nothing else of its
program is compiled again. Leaves kept as rows are read from memory.
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.types import Flat
from .._base.vector import combine
from .factors import Factors, Layout
from .joint import Joint, JointFactors

READ = 8
"""The multiplications of a matrix product in the time that it takes to read a number."""


class Products(eqx.Module):
    """A in factors, as an operator on the parameters in their own order."""

    factors: Factors
    order: Int[np.ndarray, " p"]
    """The places of the factors and rows in the flat parameters."""
    place: Int[np.ndarray, " P"] | None
    """Its inverse; `None` for a term that does not use every leaf, p < P."""
    size: int = eqx.field(static=True)
    """P."""

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
        found = jnp.concatenate(found)
        if self.place is not None:
            return found[self.place]
        whole = jnp.zeros(self.size, found.dtype)
        return whole.at[self.order].set(found, unique_indices=True)


class StackedProducts(eqx.Module):
    """The same for several terms, one below the other."""

    parts: tuple[Products, ...]

    def mv(self, v: Flat) -> Float[Array, " m"]:
        """A v."""
        return jnp.concatenate([part.mv(v) for part in self.parts])

    def rmv(self, y: Float[Array, " m"]) -> Flat:
        """Aᵀ y."""
        counts = [math.prod(part.factors.rows.shape[:2]) for part in self.parts]
        each = jnp.split(y, np.cumsum(counts)[:-1])
        return functools.reduce(
            jnp.add, [part.rmv(own) for part, own in zip(self.parts, each, strict=True)]
        )


def products(factors: JointFactors, plan: Joint) -> Products | StackedProducts | None:
    """The products with A in factors; `None` if a pass through the models costs less."""
    rest = plan.order[plan.order.size - plan.row_size :]
    parts = []
    for own, layout in zip(factors.parts, plan.parts, strict=True):
        if not _cheap(own, layout):
            return None
        order = np.concatenate([*(group.order.ravel() for group in layout.factors), rest])
        place = np.argsort(order).astype(np.int32) if order.size == plan.order.size else None
        parts.append(Products(own, order.astype(np.int32), place, plan.order.size))
    return parts[0] if len(parts) == 1 else StackedProducts(tuple(parts))


def _cheap(factors: Factors, plan: Layout) -> bool:
    """Whether products cost less than a pass, two matrix products per leaf that read no rows."""
    if any(factors.codes) or plan.statistics:
        return False
    cost = lambda group: group.positions * group.order.size
    own = sum(cost(group) for group in plan.factors)
    every = own + sum(cost(group) for group in plan.products)
    _, q, size = factors.rows.shape
    return own + READ * q * size <= 2 * every
