r"""Descent with an average over batches of the diagonal blocks of the metric.

A small batch knows little of \(G\): its rank is at most m, and the solution of its equation follows
its noise. Averaged over the last \(1/(1 - \beta)\) batches, block by block,

\[ M_b \leftarrow \beta M_b + (1 - \beta)\,A_b^\top A_b , \qquad \hat G_b = M_b/(1 - \beta^k) , \]
\[ \delta_b = (\hat G_b + λ)^{-1} g_b , \qquad v \leftarrow \mu v + \delta , \qquad \theta
\leftarrow \theta - t\,v \]

after k updates (the division corrects the bias towards \(M_b = 0\) at the start). The blocks are
dense, \(P_b \times P_b\), and inverted at every update by Cholesky; a solution is refined on its
residual. It is a metric of other points and batches, and block-diagonal: \(\delta\) is not the
natural gradient. What is certified is the residual of the equations above.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array

from .._base.checks import error, function, integer, positive
from .._base.functions import canonical
from .._base.part import Part, join
from .._base.results import RESULTS
from .._base.show import settings
from .._base.stateful import is_spoilt, renewed
from .._base.tree import all_finite, cast_like, has_half, structure
from .._base.types import Count, Flat, Params, Scalar
from .._compat.xla import jit
from .._natural.certificate import relative, tolerance
from .._natural.evaluate import Evaluation, evaluate
from .._natural.outcome import first, is_metric, mixes_samples, unusable
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._problem.validate import (
    check_point,
    check_problem,
    half_explained,
    is_traced,
    validate,
)
from .._rows.part import columns
from .._rows.rows import MEMORY
from ..inverse._tikhonov import Tikhonov
from ..solver._blocks import BlockNames, Blocks, partition
from ..solver._primal import dense_metric
from ..solver._strategy import Strategy
from .block_record import BlockRecord, BlockState
from .half import confined
from .loss import HasLoss

FIRST = 10
"""In so many steps at the beginning the metric is always updated."""


class BlockDescent(HasLoss):
    """Descent with an exponential moving average of the metric of each layer.

    Between Adam, which keeps a diagonal, and the natural gradient, which keeps nothing and solves
    for all layers together; for networks trained on small batches.

    ```python
    opt = pb.BlockDescent(problem, damping=1e-2, rate=0.1)
    fit = pb.fit(opt, params, pb.minibatches((x, y), 64), 1000)
    ```
    """

    problem: AbstractProblem
    blocks: BlockNames = eqx.field(static=True)
    average: float | Scalar
    damping: float | Scalar
    rate: float | Scalar | Callable
    momentum: float | Scalar
    radius: float | Scalar | None
    every: int = eqx.field(static=True)
    largest: int = eqx.field(static=True)
    penalty: Callable[[Params], Scalar] | None
    memory: int = eqx.field(static=True)

    def __init__(
        self,
        problem: AbstractProblem,
        blocks: Callable[[str], str] | Sequence[str] | None = None,
        average: float | Scalar = 0.95,
        damping: float | Scalar = 1e-2,
        rate: float | Scalar | Callable = 0.1,
        momentum: float | Scalar = 0.9,
        radius: float | Scalar | None = None,
        every: int = 1,
        largest: int = 4096,
        penalty: Callable[[Params], Scalar] | None = None,
        memory: int = MEMORY,
    ):
        """Build an optimiser.

        **Arguments:**

        - `problem`: a `Composite`, or `Terms` of several.
        - `blocks`: which leaves form a block, as of `solver.Blocks`; defaults to one per layer.
        - `average`: β, at least 0 and below 1; about 1/(1 - β) updates count.
        - `damping`: λ > 0, the same for all blocks.
        - `rate`: t, a positive number or a schedule, a function of the number of steps made so far.
        - `momentum`: μ, at least 0 and below 1.
        - `radius`: the largest length of t δ in the averaged metric; longer steps are scaled down.
            Defaults to no bound.
        - `every`: the metric is updated and factorised in each of the first ten steps, then in
            every so many; in between, a step costs a gradient and two products with each block.
        - `largest`: blocks of more parameters raise, because their matrices are dense.
        - `penalty`: `penalty(params) -> scalar`, added to the loss (weight decay, a prior); it has
            no part in the metric.
        - `memory`: bound in bytes on the working storage of Jacobian blocks.
        """
        check_problem(problem)
        problem.check_loss()
        owner = "BlockDescent"
        for name, value in (("average", average), ("momentum", momentum)):
            positive(owner, name, value, below=1, zero=True)
        positive(owner, "damping", damping)
        if not callable(rate):
            positive(owner, "rate", rate)
        if radius is not None:
            positive(owner, "radius", radius)
        self.problem = problem
        self.blocks = Blocks(blocks).blocks
        self.average = average
        self.damping = damping
        self.rate = canonical(rate)
        self.momentum = momentum
        self.radius = radius
        self.every = integer(owner, "every", every, least=1)
        self.largest = integer(owner, "largest", largest, least=1)
        if penalty is not None:
            function(owner, "penalty", penalty, "BlockDescent(penalty=lambda params: ...)")
        self.penalty = canonical(penalty)
        self.memory = integer(owner, "memory", memory, least=1)

    def __repr__(self) -> str:
        return settings(self)

    def parts(self, params: Params) -> tuple[Part, ...]:
        """Return the blocks of the parameters; raise a `ValueError` for one that is too large.

        **Arguments:**

        - `params`: the parameters.
        """
        found = partition(structure(params), self.blocks)
        for part in found:
            if (size := part.structure.size) > self.largest:
                raise error(
                    "BlockDescent", "blocks", self.blocks,
                    f"blocks of at most largest={self.largest} parameters, and that of "
                    f"{part.names[0]} has {size}",
                    f"BlockDescent(blocks=lambda path: path) or BlockDescent(largest={size})",
                )  # fmt: skip
        return found

    def init(self, params: Params) -> BlockState:
        """Return the state before the first step.

        **Arguments:**

        - `params`: the parameters.
        """
        params = check_point(self.problem, params)
        like = structure(params)
        sizes = [part.structure.size for part in self.parts(params)]
        zeros = tuple(jnp.zeros((size, size), like.dtype) for size in sizes)
        zero = jnp.zeros((), jnp.int32)
        return BlockState(zero, zero, zeros, zeros, jnp.zeros(like.size, like.dtype))

    def step(
        self, params: Params, state: BlockState, batch: Any = None
    ) -> tuple[Params, BlockState, BlockRecord]:
        """Return the new parameters, the new state and the `BlockRecord` of one step.

        A pure function, compiled once for each shape. A step that failed returns the parameters
        that it was given; its batch does not enter the averages.

        **Arguments:**

        - `params`, `state`: the point, and the state before the step.
        - `batch`: `(inputs, targets)`, `(inputs,)`, or `None` for a model without data.
        """
        given, short = params, params if has_half(params) else None
        params, data = validate(self.problem, params, batch)
        convert = lambda x: jnp.asarray(x) if isinstance(x, float) else x
        numbers = lambda o: (o.average, o.damping, o.rate, o.momentum, o.radius)
        # Numbers travel as data: another rate compiles nothing.
        opt = eqx.tree_at(
            numbers, self, tuple(map(convert, numbers(self))), is_leaf=lambda x: x is None
        )
        # Where the number of the step is known, a step without an update passes the averages on
        # without copying them.
        due = None if is_traced(state.count) else bool(_is_due(self, int(state.count)))
        with half_explained(given):
            moved, new, record = _jitted(opt, params, state, data, due, short)
        return cast_like(moved, given), new, record


def _step(
    opt: BlockDescent,
    params: Params,
    state: BlockState,
    batch: AnyBatch,
    due: bool | None,
    short: Params | None,
) -> tuple[Params, BlockState, BlockRecord]:
    """Step; `due` tells whether the metric is updated, `None` that the count decides.

    `short` has the dtypes of leaves that were given in half precision.
    """
    like, dtype = structure(params), state.velocity.dtype
    strategy = Strategy(Tikhonov(1.0), memory=opt.memory)
    evaluation = evaluate(opt.problem, params, batch, strategy, penalty=opt.penalty)
    parts, g = opt.parts(params), evaluation.covector.astype(dtype)
    damping = jnp.asarray(opt.damping, dtype)
    early = _before_solving(evaluation, params, state.updates)
    if due is None:
        update = (early == RESULTS.successful) & _is_due(opt, state.count)
    else:
        update = (early == RESULTS.successful) if due else None
    updated = _updated(opt, evaluation, parts, state, damping, update)
    delta, residual = _solved(updated, parts, g, _bias(opt, updated.updates, dtype), damping)
    solved_it, fine = residual <= tolerance(delta.dtype), early == RESULTS.successful
    result = RESULTS.where(fine & ~solved_it, RESULTS.unconverged, early)
    result = RESULTS.where(fine & ~all_finite(delta), RESULTS.nonfinite_vector, result)
    velocity = jnp.asarray(opt.momentum, dtype) * state.velocity + delta
    length = jnp.sqrt(jnp.maximum(jnp.vdot(g, delta), 0.0))
    rate = _rate(opt, state.count, length)
    nearest = confined(None, short) or (lambda x: x)
    moving = nearest(like.unravel(like.ravel(params) - rate * velocity))
    there = renewed(eqx.combine(moving, params), evaluation.linear.state)
    own = ~jnp.isfinite(rate) | ~all_finite(velocity)
    lost = (result == RESULTS.successful) & own
    result = RESULTS.where(lost, RESULTS.nonfinite_move, result)
    overflow = (result == RESULTS.successful) & ~all_finite(moving)
    result = RESULTS.where(overflow, RESULTS.nonfinite_vector, result)
    accepted = result == RESULTS.successful
    keep = lambda new, old: jnp.where(accepted, new, old) if eqx.is_array(new) else new
    moved = jax.tree.map(keep, there, params)
    averages = (updated.updates, updated.metrics, updated.inverses)
    if update is not None:
        # An infinity would stay in the averages for good.
        averages = jax.tree.map(keep, averages, (state.updates, state.metrics, state.inverses))
    velocity = jnp.where(accepted, velocity, state.velocity)
    new = BlockState(state.count + 1, *averages, velocity)
    zero = jnp.zeros((), dtype)
    record = BlockRecord(
        step=state.count,
        loss=evaluation.value.astype(dtype),
        gradient_norm=jnp.linalg.norm(g),
        norm=jnp.linalg.norm(like.ravel(moved) - like.ravel(params)).astype(dtype),
        metric_norm=jnp.where(accepted, rate * length, zero),
        rate=jnp.where(accepted, rate, zero),
        damping=damping,
        residual=residual,
        accepted=accepted,
        result=result,
        losses=jax.tree.map(lambda x: x.astype(dtype), evaluation.losses),
        weights=jax.tree.map(lambda x: x.astype(dtype), opt.problem.reported_weights),
    )
    return moved, new, record


_jitted = jit(_step)


def _is_due(opt: BlockDescent, count: Any) -> Any:
    """Return whether the metric is updated after so many steps.

    The first metric of a layer may be zero (that of the first layer, if the last one starts at
    zero): a step with it is g/λ, and the average has to see others before it is left alone.
    """
    return (count % opt.every == 0) | (count < FIRST)


def _updated(
    opt: BlockDescent,
    evaluation: Evaluation,
    parts: Sequence[Part],
    state: BlockState,
    damping: Scalar,
    due: Array | None,
) -> BlockState:
    """Return the state with the metric of this batch in its averages, if that is due."""
    if due is None:
        return state
    rows, average = evaluation.rows, jnp.asarray(opt.average, damping.dtype)

    def update(state: BlockState) -> BlockState:
        updates, metrics, inverses = state.updates + 1, [], []
        bias = _bias(opt, updates, damping.dtype)
        for part, old in zip(parts, state.metrics, strict=True):
            metric = dense_metric(columns(rows, part)).astype(damping.dtype)
            metrics.append(average * old + (1 - average) * metric)
            unit = jnp.eye(metric.shape[0], dtype=damping.dtype)
            factor = jnp.linalg.cholesky(metrics[-1] / bias + damping * unit)
            inverses.append(cho_solve((factor, True), unit))
        return BlockState(state.count, updates, tuple(metrics), tuple(inverses), state.velocity)

    return jax.lax.cond(due, update, lambda state: state, state)


def _bias(opt: BlockDescent, updates: Count, dtype: Any) -> Scalar:
    """Return 1 - β^k."""
    return 1 - jnp.asarray(opt.average, dtype) ** updates.astype(dtype)


def _solve(
    product: Callable[[Flat], Flat], inverse: Array, g: Flat, refinements: int = 3
) -> tuple[Flat, Scalar]:
    """Return (Ĝ + λ)⁻¹ g, refined where its residual is too large, and the residual over ‖g‖."""
    norm, enough = jnp.linalg.norm, tolerance(g.dtype) / 10

    def refine(state):
        turn, delta, rest, _ = state
        delta = delta + inverse @ rest
        rest = g - product(delta)
        return turn + 1, delta, rest, relative(norm(rest), norm(g), 0.0)

    def again(state):
        # A NaN ends it.
        return (state[0] == 0) | ((state[3] > enough) & (state[0] <= refinements))

    start = (jnp.zeros((), jnp.int32), jnp.zeros_like(g), g, jnp.zeros((), g.dtype))
    _, delta, _, residual = jax.lax.while_loop(again, refine, start)
    return delta, residual


def _solved(
    updated: BlockState, parts: Sequence[Part], g: Flat, bias: Scalar, damping: Scalar
) -> tuple[Flat, Scalar]:
    """Return the solutions of all blocks as one vector, and the largest of their residuals."""
    blocks = zip(parts, updated.metrics, updated.inverses, strict=True)
    solved = [
        _solve(lambda x, metric=metric: metric @ x / bias + damping * x, inverse, part.take(g))
        for part, metric, inverse in blocks
    ]
    return join(parts, [x for x, _ in solved]), jnp.max(jnp.stack([x for _, x in solved]))


def _rate(opt: BlockDescent, count: Count, length: Scalar) -> Scalar:
    """Return t, so that a step of a length in the metric stays within the radius."""
    given = opt.rate(count) if callable(opt.rate) else opt.rate
    if jnp.shape(given) != ():
        raise ValueError(
            f"BlockDescent: rate(count) must return one number, got shape {jnp.shape(given)}."
        )
    rate = jnp.asarray(given, length.dtype)
    if opt.radius is None:
        return rate
    longest = jnp.asarray(opt.radius, length.dtype)
    return rate * jnp.minimum(1.0, longest / jnp.where(length > 0, rate * length, longest))


def _before_solving(evaluation: Evaluation, params: Params, updates: Count) -> RESULTS:
    """Return the first thing that went wrong before anything is solved for.

    A model that mixes samples shows it before the first average, which a failed step puts off.
    """
    rows, objective = evaluation.rows, evaluation.objective
    mixes = lambda: mixes_samples(rows.objective, rows.params, rows.outputs)
    mixed = jax.lax.cond(updates == 0, mixes, lambda: jnp.asarray(False))
    verdicts = [
        *unusable(objective, params, rows.outputs),
        (mixed, RESULTS.coupled_samples),
        (~all_finite((evaluation.value, evaluation.differential)), RESULTS.nonfinite_loss),
        (~is_metric(rows), RESULTS.bad_metric),
        (~all_finite(evaluation.covector), RESULTS.nonfinite_jacobian),
        (is_spoilt(params, evaluation.linear.state), RESULTS.nonfinite_state),
    ]
    return first(verdicts, None)
