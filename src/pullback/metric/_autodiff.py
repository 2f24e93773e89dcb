"""Derivatives of functions of the outputs with respect to their floating leaves, ravelled.

Non-differentiable leaves of the outputs are held fixed.
"""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.tree import split, structure
from .._base.types import OutputCovector, Outputs, Scalar
from ._base import AbstractLikelihood


def on_vector(
    function: Callable[[Outputs], Scalar], z: Outputs, owner: str
) -> Callable[[Float[Array, " k"]], Scalar]:
    """The function of the flat vector of the outputs; raises unless it returns one real number."""
    like = structure(z)
    carried = split(z)[1]

    def flat(x):
        value = jnp.asarray(function(eqx.combine(like.unravel(x), carried)))
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"{owner} must return one real number per sample, got {value.dtype} of shape "
                f"{value.shape}."
            )
        return value.astype(like.dtype)

    return flat


def differential(function: Callable[[Outputs], Scalar], z: Outputs, owner: str) -> OutputCovector:
    """The differential of a scalar function at `z`."""
    like = structure(z)
    return like.unravel(jax.grad(on_vector(function, z, owner))(like.ravel(z)))


def hessian(function: Callable[[Outputs], Scalar], z: Outputs, owner: str) -> Float[Array, "k k"]:
    """The Hessian of a scalar function at `z`, on the ravelled outputs."""
    return jax.hessian(on_vector(function, z, owner))(structure(z).ravel(z))


def bregman(phi: Callable[[Outputs], Scalar], u: Outputs, z: Outputs, owner: str) -> Scalar:
    """D_φ(u, z) = φ(u) - φ(z) - <∇φ(z), u - z>."""
    like = structure(z)
    flat = on_vector(phi, z, owner)
    x = like.ravel(z)
    y = like.ravel(u)
    value, slope = jax.value_and_grad(flat)(x)
    return flat(y) - value - jnp.sum(slope * (y - x))


def loss_of(
    loss: Callable | AbstractLikelihood, targets: Any, owner: str
) -> Callable[[Outputs], Scalar]:
    """The loss as a function of the outputs alone: `loss(z, targets)`, or `loss(z)`."""
    if isinstance(loss, AbstractLikelihood):
        loss = loss.negative_log_likelihood
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    takes_two = (
        len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters
    )
    if targets is not None and takes_two:
        return lambda z: loss(z, targets)
    if required > 1:
        raise ValueError(
            f"{owner} takes targets, and none were given: put them in the batch, (inputs, targets),"
            f" or call metric.observe(targets, index) for one sample."
        )
    return loss
