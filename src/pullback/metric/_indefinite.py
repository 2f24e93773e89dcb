"""Why a matrix on the outputs of one sample is not a metric, in words: eigenvalues and entries."""

from typing import Any

import jax
import numpy as np

from .._base.tree import split

SHOWN = 3
"""How many outputs are named."""


def describe(matrix: Any, what: str, cure: str, z: Any = None) -> str:
    """Return why a matrix is not positive semi-definite; `z` names the outputs it acts on."""
    entries = np.asarray(matrix)
    if not np.all(np.isfinite(entries)):
        bad = np.sum(~np.isfinite(entries))
        return f"{what} is not finite: {bad} of its {entries.size} entries are NaN or infinite."
    values, vectors = np.linalg.eigh((entries + entries.T) / 2)
    place = "" if z is None else f" along {_named(z, vectors[:, 0])}"
    return (
        f"{what} is not positive semi-definite{place}: its eigenvalues go from {values[0]:.6g} to "
        f"{values[-1]:.6g}. {cure}"
    )


def is_indefinite(matrix: Any) -> bool:
    """Return whether a finite matrix has a negative eigenvalue beyond rounding."""
    entries = np.asarray(matrix)
    if not entries.size or not np.all(np.isfinite(entries)):
        return False
    values = np.linalg.eigvalsh((entries + entries.T) / 2)
    noise = 64 * entries.shape[0] * np.finfo(entries.dtype).eps
    return bool(values[0] < -noise * np.max(np.abs(values)))


def _named(z: Any, vector: np.ndarray) -> str:
    """Return the largest entries of a vector on the outputs, with their places in them."""
    places = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(split(z)[0]):
        name = jax.tree_util.keystr(path)
        for index in np.ndindex(np.shape(leaf)):
            inside = f"[{', '.join(map(str, index))}]" if index else ""
            places.append(f"{name}{inside}")
    order = np.argsort(-np.abs(vector))
    large = [i for i in order if abs(vector[i]) >= 0.1 * abs(vector[order[0]])]
    named = ", ".join(f"{places[i] or 'z'} ({vector[i]:.2g})" for i in large[:SHOWN])
    more = f" and {len(large) - SHOWN} more" if len(large) > SHOWN else ""
    return f"outputs {named}{more}"
