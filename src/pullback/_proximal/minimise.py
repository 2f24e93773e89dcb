r"""Minimise a smooth function of a few variables to the end, with a certificate: Newton's method
with \(|H|\) and backtracking.

The step is \(-|H|^+ g\), where \(|H|\) is the Hessian with the absolute values of its eigenvalues.
It is a descent direction off critical points. Directions in which \(H\) is numerically zero do not
move: of all solutions of the equation for the step, the shortest one is taken.
The certificate is the gradient at the end and the least eigenvalue of the Hessian there.

All of this is done in units of the variables in which the diagonal of the Hessian at the start is
one: beside a variable in nanometres, one in metres would count as flat. What is shortest is decided
in the units of the caller.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.types import Count, Flat, Scalar

HALVINGS = 40
"""How often a step is halved before the minimisation stops."""


class Minimum(eqx.Module):
    """Where a minimisation ended."""

    point: Flat
    gradient: Scalar
    """The norm of the gradient, relative to that of the covector."""
    least: Scalar
    """The least eigenvalue of the Hessian, relative to the largest in absolute value."""
    steps: Count
    converged: Array


def minimise(
    function: Callable[[Flat], Scalar],
    start: Flat,
    covector: Flat,
    rtol: float,
    max_steps: int,
) -> Minimum:
    """Minimise until the norm of the gradient is at most `rtol` times that of a covector.

    A gradient that is the rounding of the point counts as zero, too: no other point has a smaller
    one.
    """
    unit = units(jnp.diagonal(jax.hessian(function)(start)))
    scale = jnp.linalg.norm(unit * covector)
    found = _minimise(lambda y: function(unit * y), start / unit, unit, scale, rtol, max_steps)
    relative = found.gradient / jnp.where(scale > 0, scale, 1.0)
    where = lambda m: (m.point, m.gradient)
    return eqx.tree_at(where, found, (unit * found.point, relative))


def units(diagonal: Flat) -> Flat:
    """Return the units in which a matrix with this diagonal has one of about ±1.

    They are powers of two, so that nothing is rounded; 1 where the diagonal is zero.
    """
    info = jnp.finfo(diagonal.dtype)
    size = jnp.sqrt(jnp.abs(diagonal))
    power = jax.lax.reduce_precision(size, exponent_bits=info.nexp, mantissa_bits=0)
    usable = (power > 0) & jnp.isfinite(power)
    return jnp.where(usable, 1 / jnp.where(usable, power, 1.0), 1.0)


def shortest(x: Flat, vectors: Array, kept: Array) -> Flat:
    """Return x without its part in the span of the vectors, not orthogonal, that are not kept."""
    order = jnp.argsort(kept)
    span = jnp.linalg.qr(vectors[:, order])[0]
    # The first k columns span what the first k vectors do.
    parts = jnp.where(kept[order], 0.0, span.T @ x)
    return x - span @ parts


def _minimise(
    function: Callable[[Flat], Scalar],
    start: Flat,
    unit: Flat,
    scale: Scalar,
    rtol: float,
    max_steps: int,
) -> Minimum:
    """Minimise in units that fit, until the norm of the gradient is at most `rtol · scale`."""
    slope = jax.grad(function)
    eps = jnp.finfo(start.dtype).eps

    def spectrum(x):
        values, vectors = jnp.linalg.eigh(jax.hessian(function)(x))
        return values, vectors, jnp.max(jnp.abs(values))

    def body(carry):
        x, g, steps, _ = carry
        values, vectors, largest = spectrum(x)
        size = jnp.abs(values)
        kept = size > x.size * eps * largest
        inverse = jnp.where(kept, 1 / jnp.where(kept, size, 1.0), 0.0)
        step = -(vectors @ (inverse * (vectors.T @ g)))
        short = shortest(unit * step, unit[:, None] * vectors, kept) / unit
        # A function that is not quadratic may rise along a direction without curvature.
        step = jnp.where(jnp.vdot(g, short) <= jnp.vdot(g, step) / 2, short, step)
        value = function(x)
        decrease = jnp.vdot(g, step)
        # Near the end differences of values are rounding, and not only of the value itself: a
        # divergence is a small sum of terms of order one, with a weight before it. In a bowl, with
        # next to nothing left to gain, the gradient decides.
        bowl = values[0] >= -x.size * eps * largest
        last = bowl & (-decrease <= jnp.sqrt(eps) * (1 + jnp.abs(value)))

        def too_long(state):
            length, tries = state
            new = function(x + length * step)
            shrinks = jnp.linalg.norm(slope(x + length * step)) < jnp.linalg.norm(g)
            fine = (new <= value + 1e-4 * length * decrease) | (last & shrinks)
            return ~(fine & jnp.isfinite(new)) & (tries < HALVINGS)

        halve = lambda state: (state[0] / 2, state[1] + 1)
        length, tries = jax.lax.while_loop(too_long, halve, (jnp.ones((), x.dtype), 0))
        stuck = tries >= HALVINGS
        x = jnp.where(stuck, x, x + length * step)
        return x, slope(x), steps + 1, stuck

    def unfinished(carry):
        _, g, steps, stuck = carry
        long = jnp.linalg.norm(g) > rtol * scale
        return long & (steps < max_steps) & ~stuck & jnp.all(jnp.isfinite(g))

    first = (start, slope(start), jnp.asarray(0, jnp.int32), jnp.asarray(False))
    x, g, steps, _ = jax.lax.while_loop(unfinished, body, first)
    matrix = jax.hessian(function)(x)
    values = jnp.linalg.eigvalsh(matrix)
    largest = jnp.max(jnp.abs(values))
    norm = jnp.linalg.norm(g)
    least = values[0] / jnp.where(largest > 0, largest, 1.0)
    rounding = 4 * eps * jnp.linalg.norm(jnp.abs(matrix) @ jnp.abs(x))
    return Minimum(x, norm, least, steps, norm <= jnp.maximum(rtol * scale, rounding))
