r"""The formula: \(\delta = A^+ r + G^+ g_x\), the natural parameter gradient of a composite
problem.

\(c = \partial L/\partial z\) is lifted to \(r\), \(Sr = c\). If part of \(c\) is outside the range
of \(M\), what that part pulls back to, \(g_x = J^\top(c - Sr)\), is solved as a parameter covector,
so that \(\delta = G^+ J^\top c\) always; the share is reported. So is a gradient whose metric is
averaged over another batch (`metric_batch`): there \(g_x = J^\top c\) and there is no \(r\).
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._base.results import RESULTS, failed
from .._base.types import Covector, Flat, OutputVector, Params, Scalar, Vector
from .._problem.composite import Batch, Composite, check_batch
from .._rows.pullback import MEMORY, PullbackMetric, at_point
from ..inverse._base import AbstractInverse, Tikhonov
from ..solver._base import AbstractSolver, Factorised, Whitened, whiten
from .derivative import attach, stop
from .evaluate import assemble
from .outcome import is_traced, judge, prepare, raise_failure, warn_of_precision
from .stats import Stats, largest_log_scale, measure


class NaturalGradient(eqx.Module):
    """A natural gradient and what is known of it. Steepest *ascent*: step along `-vector`."""

    vector: Vector
    """δ, a vector on the parameters; `None` where the parameters carry a leaf that is not a
    floating array.
    """
    value: Scalar
    """L, the loss."""
    covector: Covector
    """g = Jᵀc, the ordinary gradient."""
    pushforward: OutputVector
    """J δ, how the outputs move: the projection of the ambient gradient on what the model can do.
    """
    result: RESULTS
    stats: Stats


def compute(
    problem: Composite,
    params: Params,
    batch: Batch,
    metric_batch: Batch | None,
    inverse: AbstractInverse,
    solver: AbstractSolver,
    memory: int,
    check: bool,
) -> NaturalGradient:
    """The natural gradient, as a pure function of arrays."""
    a = assemble(problem, params, batch, metric_batch, inverse, solver, memory)
    metric, r, g = a.metric, a.lifted, a.outside
    solver = solver.resolve(whiten(metric, inverse), inverse)

    # Undamped, a common factor of A cancels: divide it out, or a batch that is saturated as a whole
    # would underflow.
    shift = (
        jnp.zeros((), metric.dtype)
        if isinstance(inverse, Tikhonov)
        else stop(largest_log_scale(metric))
    )
    scaled = eqx.tree_at(lambda m: m.log_scale, metric, metric.log_scale - shift)
    g = None if g is None else jnp.exp(-2 * shift) * g
    factorised = stop(scaled).factorise(stop(inverse), solver)
    operator = whiten(scaled, inverse)
    eta = _solve(factorised, operator, inverse, r, g)
    vector = operator.gauge.lower(eta)
    pulled = None if g is None else factorised.operator.gauge.pull(stop(g))
    stats = stop(
        measure(factorised, stop(eta), None if r is None else stop(r), pulled, a.share, shift)
    )
    result = judge(a, vector, factorised, stats, check)
    pushforward = a.linear.pushforward(vector.astype(metric.structure.dtype))
    tree = metric.structure.unravel
    return NaturalGradient(tree(vector), a.value, tree(a.covector), pushforward, result, stats)


def _solve(
    factorised: Factorised,
    operator: Whitened,
    inverse: AbstractInverse,
    r: Array | None,
    g: Flat | None,
) -> Flat:
    """The solution in orthonormal coordinates of the gauge, with its derivative."""
    rows, size = operator.shape
    r = jnp.zeros(rows, operator.metric.dtype) if r is None else r
    pulled = jnp.zeros(size, operator.metric.dtype) if g is None else operator.gauge.pull(g)
    eta = factorised.factors.lifted(stop(r))
    if g is not None:
        eta = eta + factorised.factors.covector(stop(pulled))
    return attach(stop(eta), operator, inverse, r, pulled, factorised=factorised)


def natural_gradient(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    metric_batch: Any = None,
    memory: int = MEMORY,
    throw: bool = True,
) -> NaturalGradient:
    """The exact natural gradient of a composite problem.

    **Arguments:**

    - `problem`: model, loss, metric and measure.
    - `params`: the point, any pytree; floating arrays move, everything else is carried.
    - `batch`: `(inputs, targets)`, `(inputs,)`, or `None` for a model without data.
    - `inverse`: which generalised inverse; `MoorePenrose()` if left out. Nothing is damped unless
        asked for.
    - `solver`: how it is computed; `solver.Auto()` if left out.
    - `metric_batch`: `(inputs,)` or `(inputs, targets)` to average the metric over, if not over
        `batch`.
    - `memory`: bound in bytes on the working storage of Jacobian blocks; the result does not depend
        on it.
    - `throw`: whether a failure raises; otherwise look at `result`. Inside `jit` it raises through
        a host callback: pass `False` there if the arrays are sharded over devices.
    """
    args = prepare(problem, params, batch, inverse, solver, metric_batch, memory)
    traced = is_traced(args)
    ng = _jitted(*args, memory=memory, check=not traced)
    if traced:
        return (
            eqx.tree_at(lambda n: n.value, ng, ng.result.error_if(ng.value, failed(ng.result)))
            if throw
            else ng
        )
    if throw:
        raise_failure(ng.result, problem, *args[1:4])
    warn_of_precision(ng.stats, stacklevel=3)
    return ng


_jitted = eqx.filter_jit(compute)


def pullback(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    memory: int = MEMORY,
) -> PullbackMetric:
    """The pullback metric of a problem at a point: a linear operator, nothing dense until asked.

    **Arguments:**

    - `problem`: model, metric and measure; the loss is not looked at.
    - `params`: the point.
    - `batch`: `(inputs,)` or `(inputs, targets)`, or `None` for a model without data.
    - `inverse`: the default inverse of `sharp`, `project` and `rank`; `MoorePenrose()` if left out.
    - `solver`: the default solver; `solver.Auto()` if left out.
    - `memory`: bound in bytes on the working storage of Jacobian blocks.
    """
    problem, params, data, _, inverse, solver = prepare(
        problem, params, batch, inverse, solver, None, memory
    )
    check_batch(problem, params, data)
    return at_point(problem, params, data, inverse, solver, memory)
