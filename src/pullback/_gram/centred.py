r"""K and G of rows from which a mean is taken off, \(\hat A = (I - 1\bar w^\top)\hat A_0\), with
\(\hat A_0\) in factors.

\(K_0 = \hat A_0\hat A_0^\top\) less its means would be a small difference of large numbers where
the mean row is larger than the spread. So a *reference* is subtracted from the factors first. With
\(\bar x\), \(\bar d\) the means of the factors of a leaf, \(\xi_n = x_n - \bar x\) and
\(\varepsilon_n = d_n - \bar d\), the rows

\[ b_n = x_n \otimes d_n - \bar x\otimes\bar d = \xi_n\otimes d_n + \bar x\otimes\varepsilon_n \]

are of the size of the spread, have the same differences, and

\[ b_n\cdot b_m = (\varepsilon_n\cdot\varepsilon_m)\,(x_n\cdot x_m) + (\xi_n\cdot\xi_m)\,
(d_n\cdot d_m - \varepsilon_n\cdot\varepsilon_m) + f_n e_m + f_m e_n, \qquad f_n = \xi_n\cdot\bar
x,\ e_n = \varepsilon_n\cdot\bar d, \]

takes the same two products of matrices as \(K_0\): \(x_n\cdot x_m = \xi_n\cdot\xi_m + f_n + f_m +
|\bar x|^2\), and so for d. What is left of the mean, \(\bar b = \sum_n \bar w_n b_n =
\sum_n\bar w_n\,\xi_n\otimes\varepsilon_n\), is of second order in the spread:

\[ K_{nm} = b_n\cdot b_m - b_n\cdot\bar b - \bar b\cdot b_m + |\bar b|^2 . \]

Leaves kept as rows are centred as they are. A look-up has no mean row to subtract before, and is
centred afterwards. `lost` is the size of what is taken off afterwards: the matrix has its rounding.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Scalar
from .._rows.centred import centre
from .factors import Factors
from .kernel import by_tiles, pairs, product


class Gram(NamedTuple):
    """K or G, lower triangle."""

    matrix: Float[Array, "n n"]
    lost: Scalar
    """The norm of what was taken off the matrix after it was summed; its rounding is that of it."""


class Leaf(NamedTuple):
    """The factors of a leaf about their means, with the axes of `Factors`."""

    x: Float[Array, "n t i"]
    """ξ."""
    d: Float[Array, "n q t o"]
    """ε."""
    f: Float[Array, "n t t"]
    """ξ_nt · x̄_t'."""
    e: Float[Array, "n q t q t"]
    """ε_nqt · d̄_q't'."""


class Means(NamedTuple):
    """The means of the factors of a leaf."""

    x: Float[Array, "t i"]
    d: Float[Array, "q t o"]


class Tiles(NamedTuple):
    """What a tile of the kernel is computed from; all axes begin with the samples."""

    leaves: tuple[Leaf, ...]
    rest: Factors
    """Look-ups, and leaves kept as rows."""
    mean: Float[Array, "n q q"]
    """b_nq · b̄_q'."""
    scale: Float[Array, "n q"]


def centred_kernel(factors: Factors, mean: Float[Array, " n"], scale: Float[Array, " m"]) -> Gram:
    """Return the kernel of diag(scale)(I - 1w̄ᵀ)Â₀; rows of absent samples have the scale zero."""
    n, q, _ = factors.rows.shape
    mean = mean.astype(factors.rows.dtype)
    leaves, means, look_ups = [], [], []
    for x, d, codes in zip(factors.x, factors.d, factors.codes, strict=True):
        if codes:
            look_ups.append((x, d))
            continue
        leaf, centres = _about_means(x, d, mean)
        leaves.append(leaf)
        means.append(centres)
    rows, _ = centre(factors.rows, mean)
    codes = tuple(True for _ in look_ups)
    xs, ds = tuple(x for x, _ in look_ups), tuple(d for _, d in look_ups)
    rest = Factors(xs, ds, rows, codes)
    left = jnp.zeros((n, q, q), factors.rows.dtype)
    for leaf, centres in zip(leaves, means, strict=True):
        left = left + _against_mean(leaf, centres, mean)
    if look_ups:
        # Those of the rows are zero.
        left = left + _look_ups_against_mean(Factors(xs, ds, rows[:, :, :0], codes), mean)
    square = jnp.tensordot(mean, left, 1)
    samples = Tiles(tuple(leaves), rest, left, scale.reshape(n, q))
    tile = lambda one, other: _tile(one, other, means, square)
    matrix = by_tiles(samples, tile, factors, after=left)
    lost = jnp.sum(jnp.sum(samples.scale**2, axis=0) * jnp.maximum(jnp.diagonal(square), 0.0))
    return Gram(matrix, lost)


def centred_product(
    factors: Factors, mean: Float[Array, " n"], scale: Float[Array, " m"], y: Float[Array, " m"]
) -> Float[Array, " m"]:
    """Return the product of the same kernel with a vector."""
    n, q, _ = factors.rows.shape
    mean, y = mean.astype(factors.rows.dtype), (scale * y).reshape(n, q)
    y = y - mean[:, None] * jnp.sum(y, axis=0, keepdims=True)
    image, _ = centre(product(factors, y.ravel()).reshape(n, q), mean)
    return scale * image.ravel()


def _about_means(x: Array, d: Array, mean: Array) -> tuple[Leaf, Means]:
    """Return the factors of a leaf about their means, and the means."""
    # XLA must not compute a small difference anew, in another order, for each use.
    xi, centre_x = jax.lax.optimization_barrier(centre(x, mean))
    eps, centre_d = jax.lax.optimization_barrier(centre(d, mean))
    f = jnp.einsum("nti,si->nts", xi, centre_x)
    e = jnp.einsum("nqto,pso->nqtps", eps, centre_d)
    return Leaf(xi, eps, f, e), Means(centre_x, centre_d)


def _against_mean(leaf: Leaf, means: Means, mean: Array) -> Float[Array, "n q q"]:
    """Return b_nq · b̄_q' of a leaf, b̄ = Σ w̄ ξ ⊗ ε."""
    average = jnp.einsum("nti,npto->pio", mean[:, None, None] * leaf.x, leaf.d)
    near = jnp.einsum("nti,pio->ntpo", leaf.x, average)
    far = jnp.einsum("ti,pio->tpo", means.x, average)
    return (
        jnp.einsum("ntpo,nqto->nqp", near, leaf.d)
        + jnp.einsum("ntpo,qto->nqp", near, means.d)
        + jnp.einsum("tpo,nqto->nqp", far, leaf.d)
    )


def _look_ups_against_mean(factors: Factors, mean: Array) -> Float[Array, "n q q"]:
    """Return b_nq · b̄_q' of look-ups, from which nothing was subtracted."""
    n, q, _ = factors.rows.shape
    one = lambda e: product(factors, (mean[:, None] * e[None, :]).ravel()).reshape(n, q)
    return jnp.moveaxis(jax.lax.map(one, jnp.eye(q, dtype=mean.dtype)), 0, 2)


def _tile(one: Tiles, other: Tiles, means: list[Means], square: Array) -> Array:
    """Return K between two sets of samples."""
    n, q = one.scale.shape
    total = pairs(one.rest, other.rest).reshape(n, q, n, q)
    for mine, theirs, centres in zip(one.leaves, other.leaves, means, strict=True):
        total = total + _leaf_pairs(mine, theirs, centres)
    left = one.mean[:, :, None, :] + jnp.moveaxis(other.mean, 2, 0)[None]
    total = total - left + square[None, :, None, :]
    scale = one.scale[:, :, None, None] * other.scale[None, None]
    return (scale * total).reshape(n * q, n * q)


def _leaf_pairs(one: Leaf, other: Leaf, means: Means) -> Float[Array, "n q n q"]:
    """Return b_n · b_m of one leaf between two sets of samples."""
    n, q, t, o = one.d.shape
    # Positions outermost, as in `kernel.py`: [t, n, s, m] and [t, n, q, s, m, p].
    outer = lambda x: jnp.moveaxis(x, 1, 0).reshape(t * n, -1)
    seen = (outer(one.x) @ outer(other.x).T).reshape(t, n, t, n)
    by_position = lambda d: jnp.moveaxis(d, 2, 0).reshape(-1, o)
    passed = (by_position(one.d) @ by_position(other.d).T).reshape(t, n, q, t, n, q)
    f = jnp.transpose(one.f, (1, 0, 2))[:, :, :, None]
    g = jnp.transpose(other.f, (2, 1, 0))[:, None]
    whole = seen + f + g + (means.x @ means.x.T)[:, None, :, None]
    e = jnp.transpose(one.e, (2, 0, 1, 4, 3))[:, :, :, :, None, :]
    h = jnp.transpose(other.e, (4, 3, 2, 0, 1))[:, None]
    flat = jnp.moveaxis(means.d, 1, 0).reshape(t * q, o)
    constant = (flat @ flat.T).reshape(t, 1, q, t, 1, q)
    wide = lambda x: x[:, :, None, :, :, None]
    return jnp.sum(
        passed * wide(whole) + wide(seen) * (e + h + constant) + wide(f) * h + wide(g) * e,
        axis=(0, 3),
    )
