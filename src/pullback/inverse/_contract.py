r"""Checks an inverse against its own declarations when things are built.

Shapes and dtypes always. Where values are concrete, those on a small spectrum: equal to what
`damping`, `homogeneous` and `pseudo_inverse` declare, and admissible (finite, not negative)
somewhere. A filter may be made for the small singular values of one problem; whether it is
admissible on those of A is decided when they are known (`RESULTS.bad_filter`).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.tree import as_data
from ._base import AbstractInverse

PROBES = (3.0, 1.0, 0.5, 0.1, 1e-3, 1e-6)
"""Singular values at which the filter is evaluated, largest first."""
SHAPE = (4, 6)
LARGEST, REMEMBERED = 64, 256
_passed: dict[Any, None] = {}
"""Inverses that have passed, by their numbers; the oldest are forgotten."""


def check_declarations(inverse: AbstractInverse) -> None:
    """Raise a `ValueError` if the filter has a wrong shape or contradicts a declaration."""
    if not isinstance(inverse, AbstractInverse):
        raise ValueError(
            "inverse must be MoorePenrose(), Tikhonov(damping), TruncatedRank(k) or another "
            f"pullback.inverse.AbstractInverse, got {inverse!r}."
        )
    name = type(inverse).__name__
    dtype = jnp.result_type(float)
    leaves, treedef = jax.tree.flatten(inverse)
    # A training loop makes the same inverse again and again, perhaps with another damping.
    _once((treedef, dtype, tuple(_kind(x) for x in leaves)), lambda: _check_shapes(inverse, name))
    if any(isinstance(x, jax.core.Tracer) for x in leaves):
        return
    # A large gauge is not compared.
    small = all(np.size(x) <= LARGEST for x in leaves if eqx.is_array_like(x))
    key = (treedef, dtype, tuple(_known(x) for x in leaves)) if small else None
    _once(key, lambda: _check_values(inverse, name))


def _once(key: Any, check: Callable[[], None]) -> None:
    """Run a check unless it has passed with this key; `None` is never remembered."""
    if key is not None and key in _passed:
        return
    check()
    if key is not None:
        _passed[key] = None
        if len(_passed) > REMEMBERED:
            del _passed[next(iter(_passed))]


def _kind(leaf: Any) -> Any:
    """Return the shape and dtype of an array, and the type of anything else."""
    return (leaf.shape, leaf.dtype.name) if eqx.is_array(leaf) else type(leaf)


def _known(leaf: Any) -> Any:
    """Return what tells a leaf from another one."""
    return (leaf.dtype.name, leaf.tobytes()) if eqx.is_array(leaf) else leaf


def _evaluate(inverse: AbstractInverse, s: Array) -> Array:
    return jnp.asarray(inverse.filter(s, inverse.cutoff(s[0], SHAPE)))


@eqx.filter_jit
def _twice(inverse: AbstractInverse, s: Array) -> tuple[Array, Array]:
    """Return the filter at s and 2s: one program, where each operation would be one of its own."""
    return _evaluate(inverse, s), _evaluate(inverse, 2 * s)


def _check_shapes(inverse: AbstractInverse, name: str) -> None:
    """Raise a `ValueError` if a method returns another shape or dtype than it must."""
    probe = jax.ShapeDtypeStruct((len(PROBES),), jnp.result_type(float))

    def cut(s):
        return jnp.asarray(inverse.cutoff(s[0], SHAPE)), jnp.asarray(inverse.kernel)

    # Before they are used: a cut-off of another shape would end in an error about broadcasting.
    scalars = zip(
        ("cutoff(largest, shape)", "kernel"), eqx.filter_eval_shape(cut, probe), strict=True
    )
    for what, found in scalars:
        real = jnp.issubdtype(found.dtype, jnp.floating) or jnp.issubdtype(found.dtype, jnp.integer)
        if found.shape != () or not real:
            raise ValueError(
                f"{name}.{what} must be one real number, got {found.dtype} of shape {found.shape}."
            )

    def everything(s):
        cutoff = inverse.cutoff(s[0], SHAPE)
        return _evaluate(inverse, s), jnp.asarray(inverse.kept(s, cutoff))

    h, kept = eqx.filter_eval_shape(everything, probe)
    if (h.shape, h.dtype) != (probe.shape, probe.dtype):
        raise ValueError(
            f"{name}.filter(s, cutoff) must return one number per singular value, {probe.dtype} of "
            f"shape {probe.shape} for s of that dtype and shape, got {h.dtype} of shape {h.shape}."
        )
    if (kept.shape, kept.dtype) != (probe.shape, jnp.bool_):
        raise ValueError(
            f"{name}.kept(s, cutoff) must return one boolean per singular value, shape "
            f"{probe.shape}, got {kept.dtype} of shape {kept.shape}."
        )


def _check_values(inverse: AbstractInverse, name: str) -> None:
    """Raise a `ValueError` if a filter contradicts a declaration, or is none anywhere."""
    s = np.asarray(PROBES)
    with jax.ensure_compile_time_eval():
        probes = jnp.asarray(s, jnp.result_type(float))
        h, doubled = map(np.asarray, _twice(as_data(inverse), probes))
    kernel = float(inverse.kernel)
    nowhere = not np.any(np.isfinite(h) & (h >= 0))
    if nowhere or not (np.isfinite(kernel) and kernel >= 0):
        raise ValueError(
            f"{name}.filter must be finite and not negative, and so must {name}.kernel: at the "
            f"singular values {PROBES} it returned {h.tolist()}, kernel is {kernel}."
        )
    if inverse.damping is not None:
        damping = float(inverse.damping)
        _agree(name, f"damping = {damping}", h, 1 / (s * s + damping))
        _agree(name, f"damping = {damping}", np.asarray([kernel]), np.asarray([1 / damping]))
    if inverse.homogeneous:
        _agree(name, "homogeneous", 4 * doubled, h)
        _agree(name, "homogeneous", np.asarray([kernel]), np.zeros(1))
    if inverse.pseudo_inverse:
        _agree(name, "pseudo_inverse", h, np.where(h > 0, 1 / s**2, 0.0))
        _agree(name, "pseudo_inverse", np.asarray([kernel]), np.zeros(1))


def _agree(name: str, declared: str, found: np.ndarray, expected: np.ndarray) -> None:
    if not np.allclose(found, expected, rtol=1e-4, atol=0.0):
        raise ValueError(
            f"{name} declares {declared}, but its filter disagrees: at the singular values "
            f"{PROBES} it returns {found.tolist()}, expected {expected.tolist()}. Leave the "
            "declaration out; the inverse then works with the solvers that compute singular values."
        )
