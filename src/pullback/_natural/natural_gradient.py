"""`natural_gradient`: the solution of a `Subproblem`, with its statistics and its outcome."""

from functools import partial
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from .._base.results import RESULTS, describe, failed, outcome
from .._base.show import columns, number, several, table
from .._base.tree import all_finite, cast_like, has_half
from .._base.types import Covector, OutputVector, Params, Scalar, Vector
from .._compat.devices import Layout, shared
from .._compat.xla import jit
from .._problem.batch import AnyBatch
from .._problem.layout import find_layout
from .._problem.padding import of_samples
from .._problem.problem import AbstractProblem
from .._problem.spread import spread
from .._problem.validate import half_explained, is_traced, validate, validate_metric_batch
from .._rows.rows import MEMORY
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractSolver
from ..solver._strategy import Strategy
from .effort import EFFORTS, effort
from .failure import raise_failure
from .leafwise import compute_leafwise
from .outcome import retried, warn_of_precision
from .reported import reported
from .stats import Stats
from .subproblem import subproblem


class NaturalGradient(eqx.Module):
    """A natural gradient and its statistics. Steepest *ascent*: step along `-vector`.

    ```python
    ng = pb.natural_gradient(problem, params, (x, y))
    ng.vector, ng.value, ng.stats, ng.result
    ```
    """

    vector: Vector
    """δ, a vector on the parameters; `None` for leaves that are neither floating nor complex."""
    value: Scalar
    """L, the loss."""
    covector: Covector
    """g = Jᵀc, the ordinary gradient; complex leaves as `jax.grad` returns them."""
    pushforward: OutputVector
    """J δ, how the outputs move: the projection of the ambient gradient on what the model can do.

    A sample of weight zero has its own entry, zero if its inputs are not finite."""
    result: RESULTS
    """A code that is data; `RESULTS[result]` is its message."""
    stats: Stats
    losses: PyTree = None
    """The loss of each of several `Terms`, without its weight, by name or by place."""
    weights: PyTree = None
    """The weight of each of several `Terms`, by name or by place."""

    def __repr__(self) -> str:
        loss = f"{several(self.value)}loss {number(self.value, '.6g')}"
        return f"NaturalGradient({loss}, {self.stats._text()}, {outcome(self.result)})"

    def __str__(self) -> str:
        lines = "".join(f"{name:<15} {value}\n" for name, value in self._losses())
        return f"{lines}{self.stats}\n{'result':<16}{self.message}"

    def _repr_html_(self) -> str:
        return table([*self._losses(), *self.stats._lines(), ("result", self.message)])

    def _losses(self) -> list[tuple[str, str]]:
        """Return the loss, and that of each term with its weight, as lines of a table."""
        losses = columns("  ", self.losses)
        weights = columns("", self.weights).values()
        each = [
            (name, f"{number(loss, '.6g')}, weight {number(weight, '.3g')}")
            for (name, loss), weight in zip(losses.items(), weights, strict=True)
        ]
        return [("loss", number(self.value, ".6g")), *each]

    @property
    def message(self) -> str:
        """The name of the result, and what to do about it if it is a failure."""
        return describe(self.result)


def compute(
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    strategy: Strategy,
    metric_batch: AnyBatch | None = None,
    check_samples: bool = False,
    careful: bool = True,
) -> NaturalGradient:
    """Return the natural gradient, a pure function of arrays."""
    sub = subproblem(problem, params, batch, strategy, metric_batch, careful=careful)
    stats, result = sub.judge(check_samples)
    evaluation = sub.evaluation
    like, linear = evaluation.rows.structure, reported(problem, params, batch) or evaluation.linear
    return NaturalGradient(
        vector=like.unravel(sub.solution),
        value=evaluation.value,
        covector=like.unravel_covector(evaluation.covector),
        pushforward=linear.own(linear.pushforward(sub.solution.astype(like.dtype))),
        result=result,
        stats=stats,
        losses=evaluation.losses,
        weights=problem.reported_weights,
    )


def compute_shared(
    layout: Layout,
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    strategy: Strategy,
    metric_batch: AnyBatch | None = None,
    check_samples: bool = False,
    careful: bool = True,
) -> NaturalGradient:
    """Return the natural gradient of samples that are spread over devices."""

    def one(common, samples):
        problem, params, strategy = common
        batch, metric_batch = samples
        ng = compute(
            spread(problem, layout), params, batch, strategy, metric_batch, check_samples, careful
        )
        return eqx.tree_at(lambda n: n.pushforward, ng, None), ng.pushforward

    ng, pushforward = shared(layout, one, (problem, params, strategy), (batch, metric_batch))
    pushforward = of_samples(batch, pushforward, layout)
    return eqx.tree_at(lambda n: n.pushforward, ng, pushforward, is_leaf=lambda x: x is None)


def compute_kept(
    layout: Layout,
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    strategy: Strategy,
    metric_batch: AnyBatch | None = None,
    check_samples: bool = False,
    careful: bool = True,
) -> NaturalGradient:
    """Return the natural gradient of parameters that stay sharded."""
    assert metric_batch is None
    return NaturalGradient(
        **compute_leafwise(layout, problem, params, batch, strategy, check_samples, careful)
    )


_jitted = {level: jit(compute, level) for level in EFFORTS}
_shared = {level: jit(compute_shared, level) for level in EFFORTS}
_kept = {level: jit(compute_kept, level) for level in EFFORTS}


def natural_gradient(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    metric_batch: Any = None,
    memory: int = MEMORY,
    throw: bool = True,
) -> NaturalGradient:
    """Return the exact natural gradient of a composite problem: vector, statistics and outcome.

        ng = pullback.natural_gradient(problem, params, (x, y))
        params = jax.tree.map(lambda p, d: p - d, params, ng.vector)

    **Arguments:**

    - `problem`: a `Composite`, or `Terms` of several.
    - `params`: the parameters; any pytree. Floating and complex array leaves are differentiated.
    - `batch`: `(inputs, targets)`, `(inputs,)`; for a model without data `(None, targets)` or
        `None`. For `Terms` a dictionary, or a tuple, of one such batch per term.
    - `inverse`: which generalised inverse; defaults to `MoorePenrose()`. Nothing is damped unless
        you say so.
    - `solver`: how it is computed; defaults to `solver.Auto()`.
    - `metric_batch`: `(inputs,)` or `(inputs, targets)` to average the metric over; defaults to
        `batch`.
    - `memory`: bound in bytes on the working storage of Jacobian blocks; the result does not depend
        on it.
    - `throw`: whether a failure raises; with `False`, check `result`. Inside `jit` a failure raises
        through a host callback: pass `False` there if the arrays are sharded over devices.
    """
    given = params
    params, data = validate(problem, params, batch, spread=True)
    other = validate_metric_batch(problem, metric_batch, data)
    strategy = Strategy(inverse, solver, memory).as_data()
    traced = is_traced((problem, params, data, strategy, other))
    unkept = strategy.obstacle(problem, other)
    layout, (common, (data, other)) = find_layout(
        problem, params, (data, other), (problem, params, strategy), obstacle=unkept
    )
    problem, params, strategy = common
    arguments = (problem, params, data, strategy, other, not traced)
    with half_explained(given):
        level = None if traced else effort(problem, params, data, other).first
        if layout is None:
            run = _jitted[level]
        else:
            run = partial((_shared if layout.params is None else _kept)[level], layout)
        # Inside somebody's `jit` there is no second try.
        ng = run(*arguments, careful=traced)
    if not traced and retried(ng.result):
        ng = run(*arguments, careful=True)
    # Leaves in half precision were computed with in float32.
    on_params = lambda n: (n.vector, n.covector)
    ng = eqx.tree_at(on_params, ng, tuple(cast_like(x, given) for x in on_params(ng)))
    if has_half(given):
        # What is finite in float32 may overflow there.
        kept = all_finite((ng.vector, ng.covector)) | failed(ng.result)
        result = RESULTS.where(kept, ng.result, RESULTS.nonfinite_vector)
        ng = eqx.tree_at(lambda n: n.result, ng, result)
    # Inside somebody's `jit` the result is traced even if the arguments are not.
    if is_traced(ng):
        if not throw:
            return ng
        # On all, so that whoever uses one of them alone still sees the failure.
        where = lambda n: (n.vector, n.value, n.covector, n.pushforward)
        return eqx.tree_at(where, ng, ng.result.error_if(where(ng), failed(ng.result)))
    if throw:
        raise_failure(ng.result, problem, params, data, other)
    warn_of_precision(ng.stats, stacklevel=3)
    return ng
