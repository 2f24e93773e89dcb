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
from .._gram.kernel import tile_count
from .._gram.structured import analyse, find, program_of, unusable, walk_of
from .._gram.walk import Walk
from .._rows.cut import Cut
from .._rows.rows import Rows
from ..inverse._base import AbstractInverse

CHOLESKY, EIGEN, SINGULAR = 0.5, 40.0, 40.0
KRYLOV_STEPS = 300
"""The iterations assumed of a Krylov solver; the true number depends on the spectrum."""


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


def setting_of(rows: Rows) -> tuple[Setting, Rows]:
    """Return the shapes that decide the cost, and the rows with the program that was walked."""
    rows = analyse(rows)
    m, size = rows.shape
    walked = walk_of(rows)
    if walked is None:
        forward = float(operations(program_of(rows)))
    else:
        forward = float(operations(walked.program)) * rows.count
    setting = Setting(
        m, size, rows.count, rows.dtype, forward, find(rows), find(rows, single=True),
        rows.by_sample, rows.cut if isinstance(rows.cut, Cut) else None, walked, unusable(rows),
    )  # fmt: skip
    return setting, rows


def svd_cost(setting: Setting) -> Cost:
    """Return the cost of the singular value decomposition of A."""
    m, size = setting.rows, setting.size
    return Cost(
        setting.jacobian + SINGULAR * m * size * min(m, size), 3.7 * m * size * setting.item
    )


def dual_cost(setting: Setting, inverse: AbstractInverse, structured: bool) -> Cost:
    """Return the cost of K and its factors."""
    m, n = setting.rows, setting.count
    q = m // n
    solve, copies = _factorisation(m, inverse)
    if not structured or setting.dual is None:
        flops = (
            setting.jacobian
            + (1 + 1 / tile_count(m, m, setting.dtype)) * m * m * setting.size
            + solve
        )
        return Cost(flops, (2.2 * m * setting.size + copies * m * m) * setting.item)
    plan = setting.dual
    pairs, held, widest = 0.0, 0.0, 1
    for group in plan.factors:
        t, (i, o) = group.positions, group.order.shape
        held += n * t * ((1 if group.codes else i) + q * o)
        if group.formed:
            pairs += 1.0 * m * m * i * o + 2.0 * m * t * i * o
            continue
        pairs += n * n * t * t * ((0 if group.codes else i) + q * q * o)
        widest = max(widest, t)
    rows = plan.row_size
    pairs += 1.0 * m * m * rows
    memory = copies * m * m + held + 2 * m * rows + setting.statistics * setting.size
    pulls = (q + 2 * setting.statistics) * setting.forward + 2.0 * m * setting.statistics * rows
    flops = (1 + 1 / tile_count(n, m, setting.dtype, widest)) * pairs + pulls + solve
    return Cost(
        flops,
        memory * setting.item,
        structured=bool(plan.factors),
        remark=_remark(bool(plan.factors)),
    )


def primal_cost(
    setting: Setting, inverse: AbstractInverse, structured: bool, workspace: int
) -> Cost:
    """Return the cost of G and its factors."""
    size = setting.size
    solve, copies = _factorisation(size, inverse)
    memory = copies * size * size * setting.item + workspace
    if not structured or setting.primal is None:
        return Cost(setting.jacobian + 2.0 * setting.rows * size * size + solve, memory)
    q = setting.rows // setting.count
    plan = setting.primal
    # Leaves kept as rows are contracted over outputs at full price.
    flops = (
        1.0 * setting.count * size * size
        + 2.0 * (setting.rows - setting.count) * plan.row_size * size
    )
    pulls = (q + 2 * setting.statistics) * setting.forward
    return Cost(flops + pulls + solve, memory, structured=True, remark=_remark(True))


def krylov_cost(setting: Setting) -> Cost:
    """Return the cost of the matrix-free solver, with `KRYLOV_STEPS` iterations assumed."""
    return Cost(
        KRYLOV_STEPS * 4 * setting.forward,
        12.0 * (setting.size + setting.rows) * setting.item,
        remark=f"A is never formed, {KRYLOV_STEPS} iterations assumed",
    )


def _remark(structured: bool) -> str:
    return "A is never formed" if structured else "forms A, at least in blocks"


def _factorisation(n: int, inverse: AbstractInverse) -> tuple[float, float]:
    """Operations, and how many n × n matrices are there at once."""
    if inverse.damping is not None:
        return CHOLESKY * n**3, 3.0
    # Of several factorisations, one per damping, the matrix is kept. Eigenvectors are for the rest.
    return (CHOLESKY if inverse.factorised_per_damping else EIGEN) * n**3, 5.0
