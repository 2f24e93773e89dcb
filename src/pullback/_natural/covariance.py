r"""Covariance of an estimate from the pullback metric at the optimum.

The Fisher information of \(n\) independent observations is \(n\) times that of one. A measure with
total weight \(W = \sum_i w_i\) that stands for \(n\) observations has \(G = (W/n)\,I\), so that

\[ \mathrm{Cov}(\hat\theta) = I^{-1} = \tfrac{W}{n}\,G^{-1}, \qquad
\mathrm{Cov}(h(\hat\theta)) = \tfrac{W}{n}\,H G^+ H^\top, \quad H = \partial h , \]

the second by the delta method. If \(G\) is singular, a row of \(H\) outside the range of \(G\) is
not estimable: its variance is infinite. For rows inside the range every generalised inverse gives
the same number.

\(A\) is decomposed, not \(G\), with its columns scaled to length one: which functions are estimable
then does not depend on the units of the parameters.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._base.pairs import is_complex
from .._base.tree import Structure, split, structure
from .._base.types import Params, Scalar
from .._base.vector import finite_or_nan
from .._rows.rows import AbstractRows


def function_at(
    rows: AbstractRows, of: Callable[[Params], Any] | None
) -> tuple[Structure, Float[Array, "k P"]]:
    """Return how the values of a function of the parameters lie, and its Jacobian H there."""
    like, (moving, carried) = rows.structure, split(rows.params)
    flat = like.ravel(moving)
    if of is None:
        return like, jnp.eye(like.size, dtype=flat.dtype)
    values = lambda x: split(of(eqx.combine(like.unravel(x), carried)))[0]
    shape = structure(values(flat))
    if shape.size == 0:
        raise ValueError(
            "covariance(of=...): of must return floating arrays, functions of the parameters, e.g. "
            "of=lambda params: params['a'] - params['b']."
        )
    return shape, jax.jacobian(lambda x: shape.ravel(values(x)))(flat)


def observations_per_weight(rows: AbstractRows, observations: float | Scalar | None) -> Scalar:
    """Return n/W, how many observations a weight of one stands for."""
    one = jnp.ones((), rows.dtype)
    if rows.objective.labels:
        # The Fisher information of independent observations adds: G itself, if L is their sum.
        raise ValueError(
            "covariance of several Terms: how many observations a weight stands for differs from "
            "term to term. Use one Composite, or scale pullback(...).matrix() yourself."
        )
    (term,) = rows.terms
    if not term.objective.has_data:
        return one if observations is None else observations * one
    measure, count = term.objective.problem.measure, rows.count
    weight = jnp.sum(measure.weights(count, rows.dtype))
    own = observations is None
    number = measure.observations(count, rows.dtype) if own else observations * one
    # Without any weight there is no information, whatever a weight stands for.
    return jnp.where(weight > 0, number / jnp.where(weight > 0, weight, 1.0), one)


def covariance_of(
    a: Float[Array, "m P"], h: Float[Array, "k P"], rtol: float | None
) -> tuple[Float[Array, "k k"], Bool[Array, " k"]]:
    """Return H (AᵀA)⁺ Hᵀ, and which rows of H are estimable; NaN if A has one."""
    lengths = jnp.linalg.norm(a, axis=0)
    lengths = jnp.where(lengths > 0, lengths, 1.0)
    scaled, h = a / lengths[None, :], h / lengths[None, :]
    _, s, vt = jnp.linalg.svd(finite_or_nan(scaled), full_matrices=False)
    eps = jnp.finfo(a.dtype).eps
    cutoff = (max(a.shape) * eps if rtol is None else rtol) * jnp.max(s, initial=0.0)
    kept = s > cutoff
    inside = jnp.where(kept[None, :], h @ vt.T, 0.0)
    w = inside / jnp.where(kept, s, 1.0)[None, :]
    size = jnp.linalg.norm(h, axis=1)
    outside = jnp.linalg.norm(h - inside @ vt, axis=1)
    # Both sides are zero for a function that is constant: its variance is zero.
    estimable = outside <= jnp.sqrt(eps) * size
    known = jnp.isfinite(size)[:, None] & jnp.all(jnp.isfinite(a))
    return jnp.where(known, w @ w.T, jnp.nan), estimable


def unidentifiable(
    covariance: Float[Array, "k k"], estimable: Bool[Array, " k"]
) -> Float[Array, "k k"]:
    """Return the covariance with infinite variances, and no covariances, where not estimable."""
    both = estimable[:, None] & estimable[None, :]
    own = jnp.eye(estimable.shape[0], dtype=bool)
    rest = jnp.where(own, jnp.inf, jnp.nan).astype(covariance.dtype)
    return jnp.where(both | jnp.isnan(covariance), covariance, rest)


def warning(shape: Structure, estimable: np.ndarray, of: Any) -> str:
    """Return the text about what is not estimable, with the first places of it."""
    names = []
    for path, size, dtype in zip(shape.paths, shape.shapes, shape.dtypes, strict=True):
        parts = (".real", ".imag") if is_complex(dtype) else ("",)
        for index in np.ndindex(size):
            inside = f"[{', '.join(map(str, index))}]" if index else ""
            names += [f"{jax.tree_util.keystr(path)}{inside}{part}" for part in parts]
    bad = [names[i] for i in np.flatnonzero(~estimable)]
    shown = ", ".join(bad[:3]) + (", ..." if len(bad) > 3 else "")
    what = "parameters" if of is None else "values of the function"
    return (
        f"{len(bad)} of {len(names)} {what} are not identifiable ({shown}): the metric is singular "
        "along them, and their variance is infinite. Functions of the parameters that the data "
        "determine have a finite one: standard_errors(of=lambda params: ...)."
    )
