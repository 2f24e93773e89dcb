r"""An exponential moving average of the metric over steps.

\[ M_k = (1 - w_k)\,M_{k-1} + w_k\,A_k^\top A_k , \qquad \delta_k = M_k^+ g_k . \]

With a root \(M_{k-1} = C^\top C\) the averaged metric is that of stacked rows,

\[ M_k = B^\top B, \qquad B = \begin{pmatrix} \sqrt{w_k}\,A_k \\ \sqrt{1 - w_k}\,C \end{pmatrix} ,
\qquad \delta_k = B^+ \begin{pmatrix} r_k/\sqrt{w_k} \\ 0 \end{pmatrix} , \]

so every inverse, solver, rule and certificate applies to it as it is: \(C\theta\) is one more term
of the problem, without a loss. The triangular factor of \(B\) is the next root. It is exact, and
does not square the condition number.

\(w_k = (1 - \beta)/(1 - \beta^k)\) averages over the steps so far, without a bias towards a start.
Published methods take \(w_k = 1 - \beta\) from \(M_0 = I\) or \(M_0 = 0\) (`start`).

With `rank`, the root is cut to its largest singular vectors, \(B = U s V^\top \approx\) the first
rank rows of \(s V^\top\): an approximation, for models with more parameters than a square matrix
allows. The fraction of the trace that is dropped is in the state.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import error, integer, positive
from .._base.pairs import real_outputs
from .._base.results import RESULTS, among
from .._base.show import settings
from .._base.tree import Structure, split, structure
from .._base.types import Count, Outputs, Params, Scalar
from .._natural.derivative import once
from .._natural.evaluate import Evaluation
from .._natural.outcome import admitted
from .._problem.batch import AnyBatch, Batch, Batches
from .._problem.composite import Composite, Objective
from .._problem.form import Form
from .._problem.problem import AbstractProblem
from .._problem.terms import Terms
from .._rows.base import AbstractRows
from ..metric import Euclidean
from .record import USABLE

DERIVATIVE = "a step with metric_memory= is not differentiated: use differences."
LATER = (*USABLE, RESULTS.nonfinite_loss, RESULTS.nonfinite_jacobian, RESULTS.nonfinite_vector)
"""Outcomes that targets which are not admitted may have caused, or hidden behind."""
LARGEST = 4096
"""Up to how many parameters a square root is kept unless a rank is given."""


class Remembered(NamedTuple):
    """What `MetricMemory` keeps."""

    root: Float[Array, "k P"]
    """C with CᵀC the average."""
    count: Count
    """How many metrics were averaged."""
    dropped: Scalar
    """The fraction of the trace that the last cut to `rank` dropped."""


class MetricMemory(eqx.Module):
    """An average of the metric over steps, for `NaturalGradientDescent(metric_memory=...)`.

    ```python
    memory = pb.MetricMemory(0.6)  # of about the last 1/(1 - 0.6) batches
    opt = pb.NaturalGradientDescent(problem, metric_memory=memory)
    ```

    The step is not the natural gradient of its batch: the metric is one of other batches and points
    too.
    """

    factor: float | Scalar
    start: float | Scalar | None
    rank: int | None = eqx.field(static=True)
    numbers_are_data: ClassVar[bool] = True

    def __init__(
        self,
        factor: float | Scalar,
        start: float | Scalar | None = None,
        rank: int | None = None,
    ):
        """Choose the average.

        **Arguments:**

        - `factor`: β, the weight of the past, at least 0 and below 1.
        - `start`: the average starts at this multiple of the identity and forgets it like the rest;
            1 and 0 are published. Defaults to the average over the steps so far, without a start.
        - `rank`: how many singular vectors are remembered, an approximation; defaults to all, for
            models of at most 4096 parameters.
        """
        positive("MetricMemory", "factor", factor, below=1, zero=True)
        if start is not None:
            positive("MetricMemory", "start", start, zero=True)
        if rank is not None:
            integer("MetricMemory", "rank", rank, 1)
            if start is not None:
                raise ValueError(
                    "MetricMemory(rank=..., start=...): a multiple of the identity has full rank. "
                    "Leave start= out, or damp: inverse=pullback.Tikhonov(1e-3)."
                )
        self.factor = factor
        self.start = start
        self.rank = rank

    def __repr__(self) -> str:
        return settings(self, first=True)

    def init(self, size: int, dtype: Any) -> Remembered:
        """Return the memory before the first step.

        **Arguments:**

        - `size`: the number of parameters.
        - `dtype`: the dtype of its numbers.
        """
        if self.rank is None and size > LARGEST:
            wanted = f"given for {size} parameters: a root of the whole metric has {size}² numbers"
            raise error("MetricMemory", "rank", None, wanted, "MetricMemory(0.9, rank=200)")
        rows = size if self.rank is None else min(self.rank, size)
        root = jnp.zeros((rows, size), dtype)
        if self.start is not None:
            root = jnp.sqrt(jnp.asarray(self.start, dtype)) * jnp.eye(size, dtype=dtype)
        return Remembered(root, jnp.zeros((), jnp.int32), jnp.zeros((), dtype))

    def share(self, memory: Remembered) -> Scalar:
        """Return w, the weight of the metric of the next step.

        **Arguments:**

        - `memory`: the memory before the step.
        """
        dtype = memory.root.dtype
        factor = jnp.asarray(self.factor, dtype)
        if self.start is not None:
            return 1 - factor
        return (1 - factor) / (1 - factor ** (memory.count + 1).astype(dtype))

    def stacked(self, problem: AbstractProblem, memory: Remembered, batch: AnyBatch) -> Terms:
        """Return the problem with the averaged metric: its loss is that of the problem.

        **Arguments:**

        - `problem`: the problem, of one term or of several.
        - `memory`: the memory before the step.
        - `batch`: the batch of the problem, which tells models without data.
        """
        share = self.share(memory)
        weights = getattr(problem, "scales", (jnp.ones((), share.dtype),))
        both = zip(problem.terms, batch.parts, strict=True)
        parts = [_scaled(term, share, part.inputs is not None) for term, part in both]
        past = Composite(lambda params: _image(memory.root, params), _nothing, Euclidean())
        scales = [weight.astype(share.dtype) * share for weight in weights]
        return Terms((*parts, past), weights=(*scales, 1 - share))

    def batches(self, batch: AnyBatch) -> Batches:
        """Return the batch of the stacked problem.

        **Arguments:**

        - `batch`: the batch of the problem.
        """
        parts = (*batch.parts, Batch(None, None))
        return Batches(parts, Form(None, len(parts)))

    def judged(self, result: RESULTS, problem: AbstractProblem, evaluation: Evaluation) -> RESULTS:
        """Return the outcome of the stacked problem as one of the problem itself.

        Its likelihoods are losses like others there, which admit every target.

        **Arguments:**

        - `result`: the outcome.
        - `problem`: the problem.
        - `evaluation`: the stacked problem at the point.
        """
        objective, bad = evaluation.objective, jnp.asarray(False)
        parts = objective.parts(evaluation.linear.outputs)[:-1]
        each = zip(problem.terms, objective.terms, objective.weights, parts, strict=False)
        for term, stacked, weight, z in each:
            assert weight is not None
            bad = bad | (~jnp.all(admitted(Objective(term, stacked.batch), z)) & (weight > 0))
        return RESULTS.where(bad & among(result, LATER), RESULTS.bad_targets, result)

    def told(self, record: Any, problem: AbstractProblem, memory: Remembered) -> Any:
        """Return a record of the stacked problem as one of the problem itself.

        **Arguments:**

        - `record`: the record of the step.
        - `problem`: the problem.
        - `memory`: the memory before the step.
        """
        losses, weights = None, problem.reported_weights
        if weights is not None:
            share = self.share(memory).astype(record.loss.dtype)
            names = jax.tree.structure(weights)
            losses = jax.tree.unflatten(names, [share * x for x in record.losses[:-1]])
            weights = jax.tree.map(lambda x: x.astype(record.loss.dtype), weights)
        where = lambda r: (r.losses, r.weights)
        return eqx.tree_at(where, record, (losses, weights), is_leaf=lambda x: x is None)

    def update(self, rows: AbstractRows, memory: Remembered) -> Remembered:
        """Return the memory with the metric of this step in it.

        **Arguments:**

        - `rows`: the rows of the stacked problem, in the Euclidean gauge.
        - `memory`: the memory before the step.
        """
        b = (rows.scale[:, None] * rows.unit_rows()).astype(memory.root.dtype)
        b = once(b, (), DERIVATIVE)
        count, k = memory.count + 1, memory.root.shape[0]
        if self.rank is None:
            root = jnp.linalg.qr(b, mode="r")
            return Remembered(root[: b.shape[1]], count, memory.dropped)
        values, vectors = jnp.linalg.eigh(b @ b.T)
        total = jnp.sum(values)
        dropped = 1 - jnp.sum(values[-k:]) / jnp.where(total > 0, total, 1.0)
        return Remembered(vectors[:, -k:].T @ b, count, jnp.maximum(dropped, 0.0))


def as_memory(memory: Any) -> MetricMemory | None:
    """Return the memory that a user means: a number is its factor."""
    if memory is None or isinstance(memory, MetricMemory):
        return memory
    if eqx.is_array_like(memory) and not isinstance(memory, bool):
        return MetricMemory(memory)
    raise error(
        "NaturalGradientDescent", "metric_memory", memory, "a number or a MetricMemory",
        "NaturalGradientDescent(problem, metric_memory=0.6)",
    )  # fmt: skip


def check_memory(
    memory: MetricMemory | None, problem: AbstractProblem, other: Any, weighting: Any
) -> None:
    """Raise a `ValueError` for what cannot be combined with an average of the metric."""
    if memory is None:
        return
    if other is not None:
        raise ValueError(
            "NaturalGradientDescent(metric_memory=..., metric_batch=...): the metric is averaged "
            "over the batches of earlier steps, or over a batch of its own. Leave one out."
        )
    if weighting is not None:
        raise ValueError(
            "NaturalGradientDescent(metric_memory=..., weighting=...): weights that adapt are not "
            "defined for an averaged metric. Leave one out."
        )
    if problem.stateful:
        raise ValueError(
            "NaturalGradientDescent(metric_memory=...): a model with a state has no averaged "
            "metric. Keep the state fixed: model=lambda params, x: model(params, state, x)[0]."
        )


def updated(memory: MetricMemory | None, rows: AbstractRows, old: Any, failed: Array) -> Any:
    """Return the memory after a step; a failed step leaves it alone, a rejected one does not."""
    if memory is None:
        return old
    new = memory.update(rows, old)
    good = ~failed & jnp.all(jnp.isfinite(new.root))
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)


def _scaled(term: Composite, share: Scalar, has_data: bool) -> Composite:
    """Return a term whose loss, weighted by `share`, is the loss of the term."""

    def loss(z, *y):
        values = _likelihood(term, has_data, z, *y) if term.loss is None else term.loss(z, *y)
        values = jnp.asarray(values)
        return values / share.astype(values.dtype)

    return Composite(
        term.model, loss, term.metric, term.measure, term.coupled, term.stateful, term.holomorphic
    )


def _likelihood(term: Composite, has_data: bool, z: Outputs, *targets: Any) -> Array:
    """Return the negative log-likelihood of each sample, or of the outputs without data."""
    if not targets:
        raise ValueError("loss was left out, so the batch must have targets: batch=(x, y).")
    z, y = real_outputs(z, targets[0])
    nll = term.likelihood.negative_log_likelihood
    return jax.vmap(nll)(z, y) if has_data else nll(z, y)


def _image(root: Float[Array, "k P"], params: Params) -> Float[Array, " k"]:
    """Return C θ."""
    like: Structure = structure(params)
    return root.astype(like.dtype) @ like.ravel(split(params)[0])


def _nothing(z: Float[Array, " k"]) -> Scalar:
    """Return no loss."""
    return jnp.zeros((), z.dtype)
