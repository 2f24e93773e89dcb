r"""`Auto`: the solver by the shape (m, P) of \(A\), with its reason.

The rule, with n = min(m, P):

1. A fits in memory and m P n ≤ 5·10⁹ (10⁸ if damped), some seconds of work: `SVD`, which does not square the condition number and
   reports the rank;
2. the n × n matrix and (for m < P) A fit in memory: `Dual` if m < P, else `Primal`;
3. otherwise `Krylov`, O(m + P).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from .._inverse import AbstractInverse, MoorePenrose, Tikhonov
from ._base import AbstractSolver
from ._dual import Dual
from ._krylov import Krylov
from ._primal import Primal
from ._svd import SVD

SVD_WORK, DAMPED_SVD_WORK = 5 * 10**9, 10**8


class Choice(NamedTuple):
    """What `Auto` takes, and why."""

    solver: AbstractSolver
    reason: str


class Auto(AbstractSolver):
    """Choose by size."""

    memory: int = eqx.field(static=True, default=4 * 2**30)
    """What A and its Gram matrix may take, in bytes."""

    def check(self, inverse):
        pass

    def select(self, rows: int, size: int, dtype: Any, inverse: AbstractInverse | None = None) -> Choice:
        """What would run on a whitened Jacobian of this shape, and why.

        **Arguments:**

        - `rows`, `size`: the shape (m, P) of A.
        - `dtype`: the dtype of the linear algebra.
        - `inverse`: which inverse; `MoorePenrose()` if left out.
        """
        inverse = MoorePenrose() if inverse is None else inverse
        item = jnp.dtype(dtype).itemsize
        n, dense, gram = min(rows, size), rows * size * item, min(rows, size) ** 2 * item
        shape = f"A is {rows} x {size}"
        damped = isinstance(inverse, Tikhonov)
        limit = DAMPED_SVD_WORK if damped else SVD_WORK
        if rows * size * n <= limit and dense <= self.memory:
            kind = "damped" if damped else "undamped"
            return Choice(
                SVD(), f"{shape}: {kind} and m P min(m, P) <= {limit:.0e}, so the SVD of A, which squares no condition number"
            )
        if rows < size and dense + gram <= self.memory:
            return Choice(Dual(), f"{shape}: more parameters than rows, so the {rows} x {rows} kernel")
        if rows >= size and gram <= self.memory:
            return Choice(Primal(), f"{shape}: at least as many rows as parameters, so the {size} x {size} metric")
        krylov = Krylov()
        try:
            krylov.check(inverse)
        except ValueError as error:
            gib = min(dense, gram) / 2**30
            raise ValueError(f"{shape}: {gib:.1f} GiB dense, more than Auto(memory={self.memory}) allows, and {error}") from None
        return Choice(krylov, f"{shape}: too large for dense factors within {self.memory / 2**30:.3g} GiB, so matrix-free")

    def resolve(self, rows, size, dtype, inverse):
        return self.select(rows, size, dtype, inverse).solver

    def factorise(self, metric, inverse):
        return self.resolve(metric.rows, metric.size, metric.dtype, inverse).factorise(metric, inverse)
