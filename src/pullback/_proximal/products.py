r"""Gauss-Newton products: \(J^\top W J v\) and \(J^\top (\nabla_z^2 L)\, J v\), without a matrix.

The second is the pullback metric of the Hessian of the loss, and equals the pullback of a Bregman
divergence of \(\varphi = L\); for a likelihood in natural parameters it is the Fisher metric.
"""

from typing import Any

import equinox as eqx
import jax

from .._base.tree import split
from .._base.types import Covector, Params, Vector
from .._natural.natural_gradient import pullback
from .._natural.outcome import prepare
from .._problem.composite import Composite, presented
from .._rows.pullback import MEMORY
from ..metric import Euclidean


def gauss_newton(problem: Composite, params: Params, vector: Vector, batch: Any = None) -> Covector:
    """JᵀWJ v, W the weights of the measure: the Gauss-Newton matrix of half the squared error.

    **Arguments:**

    - `problem`: model and measure; loss and metric are not looked at.
    - `params`: the point.
    - `vector`: v, a vector on the parameters.
    - `batch`: as for `natural_gradient`.
    """
    plain = Composite(
        problem.model, lambda z, *_: 0.0, Euclidean(), problem.measure, problem.coupled
    )
    return pullback(plain, params, batch).flat(vector)


def generalised_gauss_newton(
    problem: Composite, params: Params, vector: Vector, batch: Any = None
) -> Covector:
    """Jᵀ(∇²L)J v, the Hessian of the loss in the outputs pulled back; indefinite if the loss is not
    convex in them.

    **Arguments:**

    - `problem`: model, loss and measure; the metric is looked at only if the loss is its own.
    - `params`: the point.
    - `vector`: v, a vector on the parameters.
    - `batch`: as for `natural_gradient`.
    """
    problem, params, data, *_ = prepare(problem, params, batch, None, None, None, MEMORY)
    data = presented(problem, data)
    moving, carried = split(params)
    model = lambda p: split(problem.outputs(eqx.combine(p, carried), data.inputs))[0]
    rest = split(problem.outputs(params, data.inputs))[1]
    z, pushed = jax.jvp(model, (moving,), (vector,))
    slope = jax.grad(lambda z: problem.value(eqx.combine(z, rest), data))
    curved = jax.jvp(slope, (z,), (pushed,))[1]
    return jax.vjp(model, moving)[1](curved)[0]
