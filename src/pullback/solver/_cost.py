r"""What a solver would cost, from shapes alone: operations and memory, so that `Auto` and
`pullback.plan` can choose before anything is compiled.

Operations are those of matrix products, \(2\) a multiplication (of all entries where there are
fewer in products); a factorisation counts as many as a
product that takes as long here: Cholesky \(\tfrac12 n^3\), eigenvectors \(40\,n^3\), singular
values \(40\, m P \min(m, P)\). They rank the routes; they do not predict seconds. Memory is what is
needed above the model and one gradient.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._gram.factors import Layout
from .._gram.flops import operations
from .._gram.joint import analyse, find
from .._gram.kernel import tile_count
from .._gram.structured import find as find_term
from .._gram.structured import program_of, unusable, walk_of
from .._gram.walk import Walk
from .._rows.cut import Cut
from .._rows.rows import AbstractRows, Rows
from ..inverse._base import AbstractInverse

CHOLESKY, EIGEN, SINGULAR = 0.5, 40.0, 40.0
KRYLOV_STEPS = 300
"""The iterations assumed of a Krylov solver; the true number depends on the spectrum."""
VECTORS = 12.0
"""How many vectors on rows and on parameters it holds."""


class Kept(NamedTuple):
    """How many numbers of sharded parameters are on a device, where they stay so."""

    own: float
    """In its blocks."""
    gathered: float
    """In leaves that are cut over the devices that share the samples, each as a whole."""
    whole: float
    """In all leaves, as the model gets them."""


class Setting(NamedTuple):
    """The shapes that decide the cost."""

    rows: int
    """m, the rows of A."""
    size: int
    """P, the parameters."""
    count: int
    """N, the samples."""
    dtype: Any
    forward: float
    """The operations of the model on the batch."""
    dual: Layout | None = None
    """The structure for K, if the model has one."""
    primal: Layout | None = None
    """The structure for G, if the model has one."""
    by_sample: bool = True
    """Whether A is formed sample by sample."""
    cut: Cut | None = None
    """The statistics through which the samples of a model mix."""
    walk: Walk | None = None
    """How parameters enter the program of a sample, if that is of use."""
    unusable: str | None = None
    """Why it is of no use."""
    parts: tuple[Any, ...] = ()
    """The settings of several terms; none for a problem of one term."""
    labels: tuple[str, ...] = ()
    """What to call them."""
    devices: int = 1
    """On how many devices the samples are."""
    graded: bool = False
    """Whether the scales of rows may differ by more than a float resolves."""
    joint: bool = False
    """Whether the metric couples the samples, so that every device has the outputs of all."""
    kept: Kept | None = None
    """Where parameters are that stay sharded; `None` if every device has all of them."""

    @property
    def terms(self) -> "tuple[Setting, ...]":
        """The settings of the terms: this one, if there are no others."""
        return self.parts or (self,)

    @property
    def statistics(self) -> int:
        """The number of statistics through which the samples of a model mix."""
        return 0 if self.cut is None else self.cut.structure.size

    @property
    def item(self) -> int:
        """The bytes of a number."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def jacobian(self) -> float:
        """The operations that form A."""
        if self.parts:
            return sum(part.jacobian for part in self.parts)
        rows = self.rows // self.count if self.by_sample else self.rows
        return 2 * self.forward * (max(1, min(rows, self.size)) + self.statistics)


class Cost(NamedTuple):
    """A cost estimate."""

    flops: float
    """Operations, as of matrix products."""
    memory: float
    """Bytes above the model and one gradient."""
    structured: bool = False
    """Whether A is never formed."""
    remark: str = "forms A, at least in blocks"
    """How it is done, in a few words."""
    sent: float = 0.0
    """Bytes that a device is sent by the others."""


def setting_of(rows: AbstractRows) -> tuple[Setting, AbstractRows]:
    """Return the shapes that decide the cost, and the rows with the programs that were walked."""
    rows = analyse(rows)
    found = find(rows)
    duals = [None] * len(rows.terms) if found is None else found.parts
    parts = tuple(
        _term(term, dual, rows.shares) for term, dual in zip(rows.terms, duals, strict=True)
    )
    if len(parts) == 1:
        return parts[0], rows
    reasons = zip(rows.objective.labels, parts, strict=True)
    others = [f"term {label!r}: {x.unusable}" for label, x in reasons if x.unusable is not None]
    if others:
        # Without a program of every term there is no kernel from the layers of any.
        parts = tuple(part._replace(walk=None, unusable=others[0]) for part in parts)
    m, size = rows.shape
    forward = sum(part.forward for part in parts)
    setting = Setting(
        m, size, rows.count, rows.dtype, forward, by_sample=rows.by_sample, parts=parts,
        labels=rows.objective.labels, devices=rows.shares, graded=rows.graded,
    )  # fmt: skip
    return setting, rows


def _term(rows: Rows, dual: Layout | None, shares: int) -> Setting:
    """Return the shapes of one term, whose samples are spread over as many devices."""
    m, size = rows.shape
    m, count = m * shares, rows.count * shares
    walked = walk_of(rows)
    if walked is None:
        forward = float(operations(program_of(rows))) * shares
    else:
        forward = float(operations(walked.program)) * count
    return Setting(
        m, size, count, rows.dtype, forward, dual, find_term(rows, single=True),
        rows.by_sample, rows.cut if isinstance(rows.cut, Cut) else None, walked, unusable(rows),
        devices=shares, graded=rows.graded, joint=rows.objective.problem.metric.couples_samples,
    )  # fmt: skip


def svd_cost(setting: Setting) -> Cost:
    """Return the cost of the singular value decomposition of A."""
    m, size = setting.rows, setting.size
    return Cost(
        setting.jacobian + SINGULAR * m * size * min(m, size), 3.7 * m * size * setting.item
    )


def dual_cost(setting: Setting, inverse: AbstractInverse, structured: bool) -> Cost:
    """Return the cost of K and its factors."""
    m = setting.rows
    solve, copies = factorisation(m, inverse)
    if not structured or any(term.dual is None for term in setting.terms):
        flops = (
            setting.jacobian
            + (1 + 1 / tile_count(m, m, setting.dtype)) * m * m * setting.size
            + solve
        )
        return Cost(flops, (2.2 * m * setting.size + copies * m * m) * setting.item)
    pairs, held, widest, kept = _of_factors(setting)
    rows = setting.size - kept
    pairs += 1.0 * m * m * rows
    statistics = sum(term.statistics for term in setting.terms)
    memory = copies * m * m + held + 2 * m * rows + statistics * setting.size
    pulls = sum(
        (term.rows // term.count + 2 * term.statistics) * term.forward
        + 2.0 * term.rows * term.statistics * rows
        for term in setting.terms
    )
    flops = (1 + 1 / tile_count(setting.count, m, setting.dtype, widest)) * pairs + pulls + solve
    return Cost(flops, memory * setting.item, structured=kept > 0, remark=_remark(kept > 0))


def held_of(setting: Setting, structured: bool) -> float:
    """Return how many numbers the factors of the layers are, or A where it is formed."""
    if not structured or any(term.dual is None for term in setting.terms):
        return 1.0 * setting.rows * setting.size
    _, held, _, kept = _of_factors(setting)
    return held + 1.0 * setting.rows * (setting.size - kept)


def _of_factors(setting: Setting) -> tuple[float, float, int, int]:
    """Return operations and numbers of the factors of all terms, the most positions, and how many
    parameters they stand for.
    """
    formed, held, widest, sizes = 0.0, 0.0, 1, {}
    places: dict[int, float] = {}
    outputs: dict[int, float] = {}
    for term in setting.terms:
        assert term.dual is not None
        n, q = term.count, term.rows // term.count
        for group in term.dual.factors:
            t, (i, o) = group.positions, group.order.shape
            if group.formed:
                formed += 1.0 * (n * q) ** 2 * i * o + 2.0 * n * q * t * i * o
                held += n * t * (i + q * o)
                sizes[group.leaf] = (0, 0, group.order.size)
                continue
            places[group.leaf] = places.get(group.leaf, 0.0) + n * t
            outputs[group.leaf] = outputs.get(group.leaf, 0.0) + n * q * t
            sizes[group.leaf] = (0 if group.codes else i, o, group.order.size)
            held += n * t * ((1 if group.codes else i) + q * o)
            widest = max(widest, t)
    pairs = sum(
        places.get(leaf, 0.0) ** 2 * i + outputs.get(leaf, 0.0) ** 2 * o
        for leaf, (i, o, _) in sizes.items()
    )
    return formed + pairs, held, widest, sum(size for _, _, size in sizes.values())


def primal_cost(
    setting: Setting, inverse: AbstractInverse, structured: bool, workspace: int
) -> Cost:
    """Return the cost of G and its factors."""
    size = setting.size
    solve, copies = factorisation(size, inverse)
    memory = copies * size * size * setting.item + workspace
    used = structured and any(term.primal is not None for term in setting.terms)
    if not used:
        return Cost(setting.jacobian + 2.0 * setting.rows * size * size + solve, memory)
    flops = sum(_primal_term(term, size) for term in setting.terms)
    whole = all(term.primal is not None for term in setting.terms)
    return Cost(flops + solve, memory, structured=whole, remark=_remark(whole))


def _primal_term(term: Setting, size: int) -> float:
    """Return the operations of the part of G of one term."""
    if term.primal is None:
        return term.jacobian + 2.0 * term.rows * size * size
    # Leaves kept as rows are contracted over outputs at full price.
    flops = (
        1.0 * term.count * size * size
        + 2.0 * (term.rows - term.count) * term.primal.row_size * size
    )
    return flops + (term.rows // term.count + 2 * term.statistics) * term.forward


def krylov_cost(setting: Setting) -> Cost:
    """Return the cost of the matrix-free solver, with `KRYLOV_STEPS` iterations assumed."""
    return Cost(
        KRYLOV_STEPS * 4 * setting.forward,
        VECTORS * (setting.size + setting.rows) * setting.item,
        remark=f"A is never formed, {KRYLOV_STEPS} iterations assumed",
    )


def _remark(structured: bool) -> str:
    return "A is never formed" if structured else "forms A, at least in blocks"


def factorisation(n: int, inverse: AbstractInverse) -> tuple[float, float]:
    """Operations, and how many n × n matrices are there at once."""
    if inverse.damping is not None:
        return CHOLESKY * n**3, 3.0
    # Of several factorisations, one per damping, the matrix is kept. Eigenvectors are for the rest.
    return (CHOLESKY if inverse.factorised_per_damping else EIGEN) * n**3, 5.0
