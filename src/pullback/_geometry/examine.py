r"""What kind of point is this? Ranks, null directions, conditioning.

At \(\theta\) the parametrisation has the tangent span \(\mathrm{im} J\). It is *proper* there if
the span is the tangent space of the model, whose dimension is the generic rank: the largest rank of
\(J\) nearby, attained outside a set of measure zero on the model (Sard; Proposition 1 of van
Oostrum, Müller and Ay). Two kernels are told apart:

\[ \ker J \subseteq \ker A, \qquad \ker A \ominus \ker J = \text{directions that move the outputs,
but not as far as the metric sees}. \]

Two parameters of one model point whose tangent spans differ (the crossing of a figure eight) show a
singular point of the model: there the natural gradient depends on which of the two one stands at.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._base.results import RESULTS
from .._base.tree import split, structure
from .._base.types import Params
from .._natural.natural_gradient import natural_gradient
from .._natural.outcome import prepare
from .._problem.composite import Batch, Composite, sample_count
from .._problem.measure import Weights
from .._rows.pullback import MEMORY, PullbackMetric, at_point
from ..inverse._base import MoorePenrose
from ..metric import Euclidean
from ..solver import SVD


class Meeting(eqx.Module):
    """Two parameters compared on the model."""

    distance: float
    """How far apart their outputs are, relative to their size."""
    same_point: bool
    """Whether they are one point of the model, to the square root of the precision."""
    angle: float
    """The largest principal angle between the two tangent spans, in radians."""
    singular: bool
    """One point, two spans: the model is singular there."""


class Examination(eqx.Module):
    """The page that `examine` writes; also a record for programs."""

    parameters: int
    """P."""
    outputs: int
    """The number of outputs, all samples counted."""
    rank: int
    """The rank of J at the point."""
    generic_rank: int
    """The largest rank of J found at the point and nearby."""
    seen_rank: int
    """The rank of A: of what the metric sees."""
    metric_rank: int
    """The rank of the metric of the outputs, M."""
    spectrum: np.ndarray
    """The singular values of A, largest first."""
    jacobian_spectrum: np.ndarray
    """The singular values of J, largest first."""
    cutoff: float
    """Singular values of J at or below this counted as zero."""
    kernel: np.ndarray
    """An orthonormal basis of ker J, one column each: the parametrisation is redundant along these.
    """
    unseen: np.ndarray
    """An orthonormal basis of ker A ⊖ ker J: the outputs move, the metric does not see it."""
    condition: float
    """The condition number of the part of A that is kept."""
    output_share: float
    """The share of the differential of the loss that the metric sees."""
    covector_share: float
    """The share of the gradient in the range of G."""
    tangent_share: float
    """The share of the ambient gradient that the model can follow."""
    result: str
    """What `natural_gradient` has to say, empty if all is well."""
    nearby: int
    """How many nearby points were looked at."""
    radius: float
    """How near."""
    meeting: Meeting | None

    @property
    def proper(self) -> bool:
        """Whether the tangent vectors span as much here as nearby."""
        return self.rank == self.generic_rank

    def plot(self) -> Any:
        """The spectra of A and J with the cut-off: `(figure, axes)`."""
        from ..plot import spectrum

        return spectrum(
            {"A (what the metric sees)": self.spectrum, "J (outputs)": self.jacobian_spectrum},
            cutoff=self.cutoff,
        )

    def __str__(self) -> str:
        m, p, r = self.outputs, self.parameters, self.rank
        kind = "proper" if self.proper else "not proper: the tangent vectors span less than nearby"
        over = "overparametrised" if r < p else "no redundant direction"
        lines = [
            f"parameters      {p}, outputs {m}: {over}",
            f"rank of J       {r} here, {self.generic_rank} at most in {self.nearby} points at distance {self.radius:g}: {kind}",
            f"null directions {self.kernel.shape[1]} of the parametrisation (the outputs do not move)",
            f"                {self.unseen.shape[1]} of the metric (the outputs move, the metric does not see it)",
            f"metric          rank {self.metric_rank} of {m} on the outputs; what it sees of the model has rank {self.seen_rank}",
            f"spectrum of A   {_edge(self.spectrum, 0)} ... {_edge(self.spectrum, self.seen_rank - 1)}, condition {self.condition:.1e}",
            f"gradient        in range: outputs {self.output_share:.6f}, parameters {self.covector_share:.6f}; "
            f"the model can follow {self.tangent_share:.6f} of the ambient gradient",
        ]
        if self.result:
            lines.append(f"caution         {self.result}")
        if self.meeting is not None:
            lines.append(_sentence(self.meeting))
        return "\n".join(lines)


def _edge(values: np.ndarray, index: int) -> str:
    return f"{values[index]:.3e}" if 0 <= index < values.size else "none"


def _sentence(meeting: Meeting) -> str:
    if not meeting.same_point:
        return f"other           another point of the model, outputs {meeting.distance:.1e} apart (relative)"
    degrees = np.degrees(meeting.angle)
    if meeting.singular:
        return f"other           the same point of the model with another tangent span ({degrees:.3g} degrees): a singular point"
    return f"other           the same point of the model with the same tangent span (to {degrees:.1e} degrees)"


def examine(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    other: Params | None = None,
    nearby: int = 8,
    radius: float = 1e-3,
    rtol: float | None = None,
    key: PRNGKeyArray | None = None,
) -> Examination:
    """Examine a point: is it proper, which directions are null and why, how well conditioned is it.
    Dense; outside `jit`.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, as for `natural_gradient`.
    - `other`: other parameters, to be compared on the model.
    - `nearby`: how many random points around are looked at for the generic rank.
    - `radius`: their distance from the point, relative to 1 + the root mean square of the
        parameters.
    - `rtol`: singular values of J at or below `rtol` times the largest count as zero; max(m, P) ·
        eps if left out.
    - `key`: a PRNG key for the nearby points; fixed if left out.
    """
    if nearby < 0 or not radius > 0:
        raise ValueError(
            f"examine(nearby={nearby}, radius={radius}): nearby must be >= 0 and radius > 0."
        )
    ng = natural_gradient(problem, params, batch, solver=SVD(), throw=False)
    problem, params, data, *_ = prepare(problem, params, batch, None, None, None, MEMORY)
    like = structure(params)
    # A non-finite input raises here with its place; what is merely delicate becomes a line of the
    # page.
    delicate = any(
        bool(ng.result == code)
        for code in (RESULTS.saturated, RESULTS.unresolved, RESULTS.rank_zero)
    )
    if not delicate:
        natural_gradient(problem, params, batch, solver=SVD())
    flat = like.ravel(params)
    size = radius * (1 + jnp.linalg.norm(flat) / np.sqrt(like.size))
    offsets = jax.random.normal(
        jax.random.key(0) if key is None else key, (nearby, like.size), flat.dtype
    )
    points = jnp.concatenate(
        [flat[None], flat[None] + size * offsets / jnp.linalg.norm(offsets, axis=1, keepdims=True)]
    )
    jacobians, unit, scaled, metric_rank = _matrices(problem, params, data, points)
    ranks = [_rank(j, rtol)[0] for j in np.asarray(jacobians)]
    j, unit, scaled = (np.asarray(x) for x in (jacobians[0], unit, scaled))
    rank, cutoff, spectrum_j, kernel = _rank(j, rtol)
    seen_rank, _, _, blind = _rank(unit, rtol)
    unseen = _complement(blind, kernel)
    spectrum = np.linalg.svd(scaled, compute_uv=False)
    meeting = (
        None
        if other is None
        else _meet(
            problem,
            params,
            prepare(problem, other, batch, None, None, None, MEMORY)[1],
            data,
            j,
            rtol,
        )
    )
    return Examination(
        parameters=like.size,
        outputs=j.shape[0],
        rank=rank,
        generic_rank=max(ranks),
        seen_rank=seen_rank,
        metric_rank=int(metric_rank),
        spectrum=spectrum,
        jacobian_spectrum=spectrum_j,
        cutoff=cutoff,
        kernel=kernel,
        unseen=unseen,
        condition=float(spectrum[0] / spectrum[seen_rank - 1])
        if seen_rank and spectrum[seen_rank - 1] > 0
        else float("nan"),
        output_share=float(ng.stats.output_share),
        covector_share=float(ng.stats.covector_share),
        tangent_share=float(ng.stats.tangent_share),
        result="" if bool(ng.result == RESULTS.successful) else RESULTS[ng.result],
        nearby=nearby,
        radius=radius,
        meeting=meeting,
    )


def _plain(problem: Composite, batch: Batch, like: Any) -> Composite:
    """The model alone, in the Euclidean geometry of its outputs, absent samples absent."""
    measure = problem.measure
    if batch.inputs is not None:
        count = next(x.shape[0] for x in jax.tree.leaves(batch.inputs) if eqx.is_array(x))
        measure = Weights((problem.measure.weights(count, like.dtype) > 0).astype(like.dtype))
    return Composite(
        problem.model, lambda z, *_: jnp.zeros(()), Euclidean(), measure, problem.coupled
    )


@eqx.filter_jit
def _matrices(problem: Composite, params: Params, batch: Batch, points: Any) -> Any:
    """J at the points; at the first one also Â, A and the rank of M."""
    like, carried = structure(params), split(params)[1]
    plain = _plain(problem, batch, like)
    build = lambda problem, params: at_point(problem, params, batch, MoorePenrose(), SVD())
    jacobians = jax.lax.map(
        lambda flat: build(plain, eqx.combine(like.unravel(flat), carried)).jacobian(), points
    )
    metric = build(problem, params)
    return jacobians, metric.unit_rows(), metric.jacobian(), _metric_rank(metric)


def _metric_rank(metric: PullbackMetric) -> Any:
    """The rank of Ŝ on the rows that are present, sample by sample where the metric is block
    diagonal.
    """
    like = metric.linear.like
    whole = metric.problem.metric.couples_samples or metric.batch.inputs is None
    if whole:
        blocks = jax.vmap(lambda w: like.ravel(metric.root.unit(w)))(
            jnp.eye(metric.rows, dtype=like.dtype)
        )[None]
    else:
        roots: Any = metric.root.roots  # pyright: ignore[reportAttributeAccessIssue]
        one = structure(jax.tree.map(lambda x: x[0], split(metric.outputs)[0]))
        q = metric.rows // sample_count(metric.outputs)
        basis = jnp.eye(q, dtype=like.dtype)
        blocks = jax.vmap(lambda root: jax.vmap(lambda w: one.ravel(root.unit(w)))(basis))(roots)
    active = metric.active.reshape(blocks.shape[0], blocks.shape[1], 1)
    s = jnp.linalg.svd(jnp.where(active, blocks, 0.0), compute_uv=False)
    return jnp.sum(s > max(blocks.shape[1:]) * jnp.finfo(s.dtype).eps * jnp.max(s))


def _rank(matrix: np.ndarray, rtol: float | None) -> tuple[int, float, np.ndarray, np.ndarray]:
    """Rank, cut-off, singular values and an orthonormal basis of the kernel."""
    _, s, vt = np.linalg.svd(matrix, full_matrices=True)
    cutoff = float(
        (max(matrix.shape) * np.finfo(matrix.dtype).eps if rtol is None else rtol)
        * (s[0] if s.size else 0.0)
    )
    rank = int(np.sum(s > cutoff))
    return rank, cutoff, s, vt[rank:].T


def _complement(space: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The orthogonal complement of a part in a space, both given by orthonormal columns."""
    rest = space - part @ (part.T @ space)
    u, s, _ = np.linalg.svd(rest, full_matrices=False)
    return u[:, s > 0.5]


def _meet(
    problem: Composite,
    params: Params,
    other: Params,
    batch: Batch,
    j: np.ndarray,
    rtol: float | None,
) -> Meeting:
    like = structure(other)
    if like != structure(params):
        raise ValueError("other must have the structure, shapes and dtypes of params.")
    z, w = (problem.outputs(p, batch.inputs) for p in (params, other))
    flat = structure(z)
    difference = float(jnp.linalg.norm(flat.ravel(z) - flat.ravel(w)))
    size = float(jnp.maximum(jnp.linalg.norm(flat.ravel(z)), jnp.linalg.norm(flat.ravel(w))))
    eps = float(np.sqrt(jnp.finfo(like.dtype).eps))
    jacobian = np.asarray(_matrices(problem, other, batch, like.ravel(other)[None])[0][0])
    first, second = (_span(matrix, rtol) for matrix in (j, jacobian))
    angle = _largest_angle(first, second)
    same = difference <= eps * (1 + size)
    return Meeting(difference / size if size > 0 else difference, same, angle, same and angle > eps)


def _span(matrix: np.ndarray, rtol: float | None) -> np.ndarray:
    u = np.linalg.svd(matrix, full_matrices=False)[0]
    return u[:, : _rank(matrix, rtol)[0]]


def _largest_angle(a: np.ndarray, b: np.ndarray) -> float:
    """The largest principal angle; a right angle if the dimensions differ."""
    if a.shape[1] != b.shape[1]:
        return float(np.pi / 2)
    if a.shape[1] == 0:
        return 0.0
    # From sines: cosines lose half of the digits near zero.
    sine = np.linalg.norm(b - a @ (a.T @ b), 2)
    return float(np.arcsin(min(1.0, sine)))
