r"""Rows from which a mean is taken off: \(\hat A = (I - 1\bar w^\top)\,\hat A_0\).

A root of the metric that couples samples may declare that it is one root per sample, which gives
\(\hat A_0\), and a mean over samples with weights \(\bar w\) (`AbstractRoot.samples`, `mean`). The
mean of each of the q rows of a sample is a row of its own, \(\bar a = \sum_n \bar w_n \hat
A_{0,n}\).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, OutputCovector, Scalar
from .._base.vector import norm
from ..metric._base import AbstractRoot
from .linearise import Linearisation


def mean_rows(linear: Linearisation, root: AbstractRoot) -> Float[Array, "q P"]:
    """Return ā by q pulls through the model."""
    roots, mean = root.samples, root.mean
    assert roots is not None
    assert mean is not None

    def one(e):
        weights = (mean[:, None] * e[None, :]).astype(linear.like.dtype)
        return linear.pull(jax.vmap(lambda root, w: root.unit(w))(roots, weights))

    if roots.size == 1:
        return one(jnp.ones(1, mean.dtype))[None]
    return jax.lax.map(one, jnp.eye(roots.size, dtype=mean.dtype))


def centre(x: Float[Array, "N *shape"], mean: Float[Array, " N"]) -> tuple[Array, Array]:
    """Return an array minus its mean over samples, and the mean.

    Twice: the mean of what is left is that of its rounding.
    """
    average = lambda x: jnp.tensordot(mean.astype(x.dtype), x, 1)
    first = average(x)
    left = x - first[None]
    second = average(left)
    return left - second[None], first + second


def removed_size(pull: Callable[[OutputCovector], Flat], root: AbstractRoot) -> Scalar:
    """Return the norm of what is taken off the rows, graded as the root is."""
    removed = root.removed
    assert removed is not None
    count = jax.tree.leaves(removed)[0].shape[0]
    # A loop of one would not be merged with other copies of itself.
    first = lambda: pull(jax.tree.map(lambda x: x[0], removed))
    return norm((first() if count == 1 else jax.lax.map(pull, removed)).ravel())
