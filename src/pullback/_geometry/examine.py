r"""What kind of point is this? Ranks, null directions, conditioning.

At \(\theta\) the parametrisation has the tangent span \(\mathrm{im} J\). It is *proper* there if
the span is the tangent space of the model, whose dimension is the generic rank: the largest rank of
\(J\) nearby, attained outside a set of measure zero on the model (Sard; Proposition 1 of van
Oostrum, Müller and Ay). Two kernels are told apart:

\[ \ker J \subseteq \ker A, \qquad \ker A \ominus \ker J = \text{directions that move the outputs,
but not as far as the metric sees}. \]

Singular values that count may still be rounding: where numbers cancel inside the model, its
Jacobian has larger errors than its entries show. They are measured in a second precision: what the
step from one to the other changes in A is in proportion to their eps.

Two parameters of one model point whose tangent spans differ (the crossing of a figure eight) show a
singular point of the model: the natural gradient is another one at each of the two.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import integer, positive
from .._base.results import RESULTS, among
from .._base.show import table
from .._base.tree import split, structure
from .._base.types import Count, Params
from .._base.vector import finite_or_nan
from .._compat.xla import jit
from .._natural.failure import raise_failure
from .._natural.natural_gradient import natural_gradient
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem, without_loss
from .._problem.validate import check_point, validate
from .._rows.block_root import BlockRoot
from .._rows.rows import AbstractRows, Rows, rows_at
from ..solver._svd import SVD
from .noise import noise_of
from .plain import plain_objective

DELICATE = (RESULTS.rank_zero, RESULTS.unconverged, RESULTS.unresolved, RESULTS.saturated)
"""Results that become a line of the page; any other failure raises."""


class Meeting(eqx.Module):
    """The comparison of two sets of parameters on the model: distance and angle."""

    distance: float
    """How far apart their outputs are, relative to their size."""
    same_point: bool
    """Whether they are one point of the model, to the square root of the precision."""
    angle: float
    """The largest principal angle between the two tangent spans, in radians."""
    singular: bool
    """One point, two spans: the model is singular there."""

    def __str__(self) -> str:
        if not self.same_point:
            return f"another point of the model, outputs {self.distance:.1e} apart (relative)"
        degrees = np.degrees(self.angle)
        if self.singular:
            return (
                f"the same point of the model with another tangent span ({degrees:.3g} degrees): "
                "a singular point"
            )
        return f"the same point of the model with the same tangent span (to {degrees:.1e} degrees)"

    def __repr__(self) -> str:
        return f"Meeting({self})"


class Examination(eqx.Module):
    """The findings of `examine`, a record that prints as a page."""

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
    noise: float
    """About how far rounding inside the model reaches in the singular values of Â.

    NaN if the model cannot be evaluated in a second precision."""
    resolved_rank: int
    """The number of these singular values above the noise; at most `seen_rank`."""
    kernel: np.ndarray
    """An orthonormal basis of ker J, one column each: the parametrisation is redundant along these.
    """
    unseen: np.ndarray
    """An orthonormal basis of ker A ⊖ ker J: the outputs move, the metric does not see it."""
    condition: float
    """The condition number of the part of A that is kept."""
    output_share: float
    """The fraction of the differential of the loss that the metric sees; NaN without a loss."""
    covector_share: float
    """The fraction of the gradient in the range of G; NaN without a loss."""
    tangent_share: float
    """The fraction of the ambient gradient that the model can follow; NaN without a loss."""
    result: str
    """The message of `natural_gradient`, empty if all is well."""
    nearby: int
    """How many nearby points were examined."""
    radius: float
    """Their distance from the point, as given."""
    meeting: Meeting | None
    """The comparison with `other`."""

    @property
    def proper(self) -> bool:
        """Whether the tangent vectors span as much here as nearby."""
        return self.rank == self.generic_rank

    def plot(self, *, axes: Any = None) -> Any:
        """Draw the spectra of A and J with the cut-off, also on given axes; `(figure, axes)`."""
        from ..plot import spectrum

        curves = {"A (what the metric sees)": self.spectrum, "J (outputs)": self.jacobian_spectrum}
        return spectrum(curves, cutoff=self.cutoff, axes=axes)

    def __repr__(self) -> str:
        kind = "proper" if self.proper else "not proper"
        shape = f"{self.parameters} parameters, {self.outputs} outputs"
        return f"Examination({shape}, rank {self.rank}, {kind})"

    def __str__(self) -> str:
        return "\n".join(f"{name:<16}{text}" for name, text in self._lines())

    def _repr_html_(self) -> str:
        return table(self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        m, p, r = self.outputs, self.parameters, self.rank
        kind = "proper" if self.proper else "not proper: the tangent vectors span less than nearby"
        over = "overparametrised" if r < p else "no redundant direction"
        around = f"in {self.nearby} points at distance {self.radius:g}"
        least = _edge(self.spectrum, self.seen_rank - 1)
        gradient = "no loss"
        if not np.isnan(self.output_share):
            gradient = (
                f"in range: outputs {self.output_share:.6f}, parameters {self.covector_share:.6f}"
            )
        if not np.isnan(self.tangent_share):
            share = f"{self.tangent_share:.6f}"
            gradient += f"; the model can follow {share} of the ambient gradient"
        lines = [
            ("parameters", f"{p}, outputs {m}: {over}"),
            ("rank of J", f"{r} here, {self.generic_rank} at most {around}: {kind}"),
            (
                "null directions",
                f"{self.kernel.shape[1]} of the parametrisation (the outputs do not move)",
            ),
            (
                "",
                f"{self.unseen.shape[1]} of the metric (the outputs move, the metric does not see "
                "it)",
            ),
            (
                "metric",
                f"rank {self.metric_rank} of {m} on the outputs; what it sees of the model has "
                f"rank {self.seen_rank}",
            ),
            (
                "spectrum of A",
                f"{_edge(self.spectrum, 0)} ... {least}, condition {self.condition:.1e}",
            ),
            ("gradient", gradient),
        ]
        if self.resolved_rank < self.seen_rank:
            lines.append(("precision", self._doubt))
        if self.result:
            lines.append(("caution", self.result))
        if self.meeting is not None:
            lines.append(("other", str(self.meeting)))
        return lines

    @property
    def _doubt(self) -> str:
        lost = self.seen_rank - self.resolved_rank
        return (
            f"{lost} of the {self.seen_rank} directions that the metric sees are within the "
            f"rounding of the model (singular values up to about {self.noise:.1e}): damp, cut them "
            "off (`rtol=`), or compute without cancellation"
        )


def _edge(values: np.ndarray, index: int) -> str:
    return f"{values[index]:.3e}" if 0 <= index < values.size else "none"


def examine(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    other: Params | None = None,
    nearby: int = 8,
    radius: float = 1e-3,
    rtol: float | None = None,
    key: PRNGKeyArray | None = None,
) -> Examination:
    """Return what kind of point this is: proper or not, its null directions, its conditioning.

    Dense; not for use inside `jit`.

        page = pullback.examine(problem, params, (x, y))
        print(page), page.proper

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, as for `natural_gradient`; a loss is not
        needed.
    - `other`: other parameters, to be compared on the model.
    - `nearby`: how many random points around it are examined for the generic rank.
    - `radius`: their distance from the point, relative to 1 + the root mean square of the
        parameters.
    - `rtol`: singular values of J at or below `rtol` times the largest count as zero; defaults to
        max(m, P) · eps.
    - `key`: a PRNG key for the nearby points; defaults to `jax.random.key(0)`.
    """
    integer("examine", "nearby", nearby, least=0)
    positive("examine", "radius", radius)
    if rtol is not None:
        positive("examine", "rtol", rtol, zero=True)
    params, data = validate(problem, params, batch)
    has_loss = problem.at(data).has_loss
    whole = problem if has_loss else without_loss(problem)
    ng = natural_gradient(whole, params, data, solver=SVD(), throw=False)
    fraction = lambda share: float(share) if has_loss else float("nan")
    # A differential that is zero everywhere has not underflowed.
    calm = not has_loss and bool(ng.result == RESULTS.saturated)
    if not bool(among(ng.result, DELICATE)):
        raise_failure(ng.result, problem, params, data)
    points = _points(params, nearby, radius, key)
    jacobians, unit, scaled, metric_rank = _matrices(problem, params, data, points)
    j = np.asarray(jacobians[0])
    rank, cutoff, jacobian_spectrum, kernel = _rank(j, rtol)
    seen_rank, _, _, blind = _rank(np.asarray(unit), rtol)
    spectrum = np.linalg.svd(np.asarray(scaled), compute_uv=False)
    kept = seen_rank > 0 and spectrum[seen_rank - 1] > 0
    noise = noise_of(problem, params, data, np.asarray(unit).dtype)
    values = np.linalg.svd(np.asarray(unit), compute_uv=False)[:seen_rank]
    meeting = None
    if other is not None:
        meeting = _meet(problem, params, check_point(problem, other), data, j, rtol)
    return Examination(
        parameters=points.shape[1],
        outputs=j.shape[0],
        rank=rank,
        generic_rank=max(_rank(np.asarray(x), rtol)[0] for x in jacobians),
        seen_rank=seen_rank,
        metric_rank=int(metric_rank),
        spectrum=spectrum,
        jacobian_spectrum=jacobian_spectrum,
        cutoff=cutoff,
        noise=noise,
        resolved_rank=seen_rank if np.isnan(noise) else int(np.sum(values > noise)),
        kernel=kernel,
        unseen=_complement(blind, kernel),
        condition=float(spectrum[0] / spectrum[seen_rank - 1]) if kept else float("nan"),
        output_share=fraction(ng.stats.output_share),
        covector_share=fraction(ng.stats.covector_share),
        tangent_share=fraction(ng.stats.tangent_share),
        result="" if calm else RESULTS[ng.result],
        nearby=nearby,
        radius=radius,
        meeting=meeting,
    )


def _points(
    params: Params, nearby: int, radius: float, key: PRNGKeyArray | None
) -> Float[Array, "n P"]:
    """Return the point itself and random points around it, flat."""
    like = structure(params)
    flat = like.ravel(params)
    size = radius * (1 + jnp.linalg.norm(flat) / np.sqrt(like.size))
    key = jax.random.key(0) if key is None else key
    offsets = jax.random.normal(key, (nearby, like.size), flat.dtype)
    offsets = offsets / jnp.linalg.norm(offsets, axis=1, keepdims=True)
    return jnp.concatenate([flat[None], flat[None] + size * offsets])


@jit
def _matrices(
    problem: AbstractProblem, params: Params, batch: AnyBatch, points: Float[Array, "n P"]
) -> tuple[Float[Array, "n m P"], Float[Array, "q P"], Float[Array, "q P"], Count]:
    """Return J at the points; at `params` also Â, A and the rank of M."""
    like, carried = structure(params), split(params)[1]
    plain = plain_objective(problem, batch, like)

    def jacobian(flat):
        rows = rows_at(plain, eqx.combine(like.unravel(flat), carried))
        return rows.scale[:, None] * rows.unit_rows()

    rows = rows_at(problem.at(batch), params)
    unit = rows.unit_rows()
    return jax.lax.map(jacobian, points), unit, rows.scale[:, None] * unit, _metric_rank(rows)


def _metric_rank(rows: AbstractRows) -> Count:
    """Return the rank of Ŝ on the rows that are present."""
    found = [_term_rank(term) for term in rows.terms]
    return found[0] if len(found) == 1 else jnp.sum(jnp.stack(found))


def _term_rank(rows: Rows) -> Count:
    """Return the rank of Ŝ of one term, by sample where M is block diagonal."""
    like = rows.linear.like
    if isinstance(rows.root, BlockRoot):
        one = structure(jax.tree.map(lambda x: x[0], split(rows.outputs)[0]))
        basis = jnp.eye(rows.shape[0] // rows.count, dtype=like.dtype)
        unit = lambda root: jax.vmap(lambda w: one.ravel(root.unit(w)))(basis)
        blocks = jax.vmap(unit)(rows.root.roots)
    else:
        basis = jnp.eye(rows.shape[0], dtype=like.dtype)
        blocks = jax.vmap(lambda w: like.ravel(rows.root.unit(w)))(basis)[None]
    active = rows.active.reshape(blocks.shape[0], blocks.shape[1], 1)
    s = jnp.linalg.svd(finite_or_nan(jnp.where(active, blocks, 0.0)), compute_uv=False)
    return jnp.sum(s > max(blocks.shape[1:]) * jnp.finfo(s.dtype).eps * jnp.max(s))


def _rank(matrix: np.ndarray, rtol: float | None) -> tuple[int, float, np.ndarray, np.ndarray]:
    """Return rank, cut-off, singular values and an orthonormal basis of the kernel."""
    _, s, vt = np.linalg.svd(matrix, full_matrices=True)
    relative = max(matrix.shape) * np.finfo(matrix.dtype).eps if rtol is None else rtol
    cutoff = float(relative * (s[0] if s.size else 0.0))
    rank = int(np.sum(s > cutoff))
    return rank, cutoff, s, vt[rank:].T


def _complement(space: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return the orthogonal complement of a part in a space, both given by orthonormal columns."""
    rest = space - part @ (part.T @ space)
    u, s, _ = np.linalg.svd(rest, full_matrices=False)
    return u[:, s > 0.5]


def _meet(
    problem: AbstractProblem,
    params: Params,
    other: Params,
    batch: AnyBatch,
    j: np.ndarray,
    rtol: float | None,
) -> Meeting:
    """Compare two parameters on the model; `j` is the Jacobian at the first."""
    like = structure(other)
    if like != structure(params):
        raise ValueError("other must have the structure, shapes and dtypes of params.")
    objective = problem.at(batch)
    z, w = objective.outputs(params), objective.outputs(other)
    flat = structure(z)
    difference = float(jnp.linalg.norm(flat.ravel(z) - flat.ravel(w)))
    size = float(jnp.maximum(jnp.linalg.norm(flat.ravel(z)), jnp.linalg.norm(flat.ravel(w))))
    eps = float(np.sqrt(jnp.finfo(like.dtype).eps))
    jacobian = np.asarray(_matrices(problem, other, batch, like.ravel(other)[None])[0][0])
    angle = _largest_angle(_span(j, rtol), _span(jacobian, rtol))
    same = difference <= eps * (1 + size)
    return Meeting(difference / size if size > 0 else difference, same, angle, same and angle > eps)


def _span(matrix: np.ndarray, rtol: float | None) -> np.ndarray:
    """Return an orthonormal basis of the column space."""
    u = np.linalg.svd(matrix, full_matrices=False)[0]
    return u[:, : _rank(matrix, rtol)[0]]


def _largest_angle(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest principal angle; a right angle if the dimensions differ."""
    if a.shape[1] != b.shape[1]:
        return float(np.pi / 2)
    if a.shape[1] == 0:
        return 0.0
    # From sines: cosines lose half of the digits near zero.
    sine = np.linalg.norm(b - a @ (a.T @ b), 2)
    return float(np.arcsin(min(1.0, sine)))
