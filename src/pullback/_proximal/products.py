r"""Gauss-Newton products: \(J^\top W J v\) and \(J^\top (\nabla_z^2 L)\, J v\), without a matrix.

The second is the pullback metric of the Hessian of the loss, and equals the pullback of a Bregman
divergence of \(\varphi = L\); for a likelihood in natural parameters it is the Fisher metric.
"""

from typing import Any

import equinox as eqx
import jax

from .._base.tangent import CotangentVector, TangentVector, vector_tree
from .._base.tree import split, structure
from .._base.types import Covector, Params, Vector
from .._natural.pullback_metric import pullback
from .._problem.composite import Composite
from .._problem.problem import AbstractProblem
from .._problem.validate import check_batch, check_problem, validate
from ..metric import Euclidean


def gauss_newton(
    problem: AbstractProblem, params: Params, vector: Vector, batch: Any = None
) -> Covector:
    """Return JᵀWJ v, W the weights of the measure: Gauss-Newton for half the squared error.

    **Arguments:**

    - `problem`: model and measure; loss and metric are not used.
    - `params`: the point.
    - `vector`: v, a vector on the parameters.
    - `batch`: as for `natural_gradient`.
    """

    def plain(term):
        loss = lambda z, *_: 0.0
        declared = term.coupled, term.stateful
        return Composite(term.model, loss, Euclidean(), term.measure, *declared)

    check_problem(problem)
    return pullback(problem.mapped(plain), params, batch).flat(vector)


def generalised_gauss_newton(
    problem: AbstractProblem, params: Params, vector: Vector, batch: Any = None
) -> Covector:
    """Return Jᵀ(∇²L)J v, the Hessian of the loss in the outputs, pulled back.

    It is indefinite if the loss is not convex in the outputs.

    **Arguments:**

    - `problem`: model, loss and measure; the metric is used only if the loss is its own.
    - `params`: the point.
    - `vector`: v, a vector on the parameters.
    - `batch`: as for `natural_gradient`.
    """
    params, data = validate(problem, params, batch)
    check_batch(problem, params, data)
    objective = problem.at(data)
    moving, carried = split(params)
    rest = split(objective.outputs(params))[1]
    model = lambda p: split(objective.outputs(eqx.combine(p, carried)))[0]
    slope = jax.grad(lambda z: problem.value(eqx.combine(z, rest), objective.batch))
    like = structure(params)
    v = like.unravel(like.ravel(vector_tree(vector, "generalised_gauss_newton")))
    z, pushed = jax.jvp(model, (moving,), (v,))
    curved = jax.jvp(slope, (z,), (pushed,))[1]
    product = jax.vjp(model, moving)[1](curved)[0]
    return CotangentVector(product) if isinstance(vector, TangentVector) else product
