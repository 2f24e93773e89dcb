"""How much of the whitened Jacobian is rounding inside the model, from a second precision."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.pairs import like_precision
from .._base.tree import is_coordinate
from .._base.types import Params
from .._compat.xla import jit
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._rows.rows import rows_at

SHIFTS = tuple(1e-3 * k * k / 49 for k in range(8))
"""Relative displacements of the parameters at which rounding is measured."""


@jit
def _unit_rows(problem: AbstractProblem, params: Params, batch: AnyBatch) -> Float[Array, "q P"]:
    return rows_at(problem.at(batch), params).unit_rows()


def noise_of(problem: AbstractProblem, params: Params, batch: AnyBatch, dtype: np.dtype) -> float:
    """Return the norm of the rounding in Â, computed in `dtype`; NaN if it cannot be known."""
    longer = jax.config.read("jax_enable_x64") and dtype == np.float32
    other = np.dtype(np.float64 if longer else np.float32)
    if other == dtype:
        return float("nan")
    cast = lambda x: x.astype(like_precision(x.dtype, other)) if is_coordinate(x) else x
    differences = []
    # One rounding error may be small by chance: some more are made close by.
    for shift in SHIFTS:
        moving, carried = eqx.partition(params, eqx.is_inexact_array)
        near = eqx.combine(jax.tree.map(partial(jnp.multiply, 1 + shift), moving), carried)
        try:
            there = np.asarray(_unit_rows(problem, *jax.tree.map(cast, (near, batch))))
        except (TypeError, ValueError):
            # Somewhere in the model a dtype is fixed.
            return float("nan")
        if there.dtype != other or not np.all(np.isfinite(there)):
            return float("nan")
        here = np.asarray(_unit_rows(problem, near, batch), np.float64)
        differences.append(np.linalg.norm(here - there.astype(np.float64), 2))
    shorter = max(np.finfo(dtype).eps, np.finfo(other).eps)
    return float(2 * max(differences) * np.finfo(dtype).eps / shorter)
