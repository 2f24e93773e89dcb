r"""`Auto`: the solver by its bill (`_cost.py`), with the reason.

The rule, with n = min(m, P):

1. m P n ≤ 5·10⁹ (10⁸ if damped), some seconds of work, and A fits: `SVD`, which does not square the
condition number and reports the rank;
2. of `Dual` and `Primal`, those that fit: the one with fewer operations;
3. otherwise `Krylov`, O(m + P).
"""

from typing import Any, NamedTuple

import equinox as eqx

from ..inverse._base import AbstractInverse, MoorePenrose, Tikhonov
from ._base import AbstractSolver, whiten
from ._cost import Setting, svd_cost
from ._dual import Dual
from ._krylov import Krylov
from ._primal import Primal
from ._structured import setting
from ._svd import SVD

SVD_WORK, DAMPED_SVD_WORK = 5 * 10**9, 10**8


class Choice(NamedTuple):
    """What `Auto` takes, and why."""

    solver: AbstractSolver
    reason: str


class Auto(AbstractSolver):
    """Choose by size."""

    memory: int = eqx.field(static=True, default=4 * 2**30)
    """What the solver may take, in bytes."""

    def check(self, inverse):
        pass

    def select(
        self, rows: int, size: int, dtype: Any, inverse: AbstractInverse | None = None
    ) -> Choice:
        """What would run on a whitened Jacobian of this shape, of a model without structure, and
        why. `pullback.plan` knows the model.

        **Arguments:**

        - `rows`, `size`: the shape (m, P) of A.
        - `dtype`: the dtype of the linear algebra.
        - `inverse`: which inverse; `MoorePenrose()` if left out.
        """
        return self.choose(
            Setting(rows, size, rows, dtype, 2.0 * rows * size),
            MoorePenrose() if inverse is None else inverse,
        )

    def choose(self, setting: Setting, inverse: AbstractInverse) -> Choice:
        """What would run, and why.

        **Arguments:**

        - `setting`: the shapes.
        - `inverse`: which inverse.
        """
        rows, size = setting.rows, setting.size
        shape, budget = f"A is {rows} x {size}", f"{self.memory / 2**30:.3g} GiB"
        damped = isinstance(inverse, Tikhonov)
        limit = DAMPED_SVD_WORK if damped else SVD_WORK
        if (
            rows * size * min(rows, size) <= limit
            and svd_cost(setting, inverse).memory <= self.memory
        ):
            kind = "damped" if damped else "undamped"
            return Choice(
                SVD(),
                f"{shape}: {kind} and m P min(m, P) <= {limit:.0e}, so the SVD of A, which squares no condition number",
            )
        direct: list[Dual | Primal] = [Dual(), Primal()]
        bills = [(solver.cost(setting, inverse), solver) for solver in direct]
        fitting = [
            (bill.flops, solver.name, solver, bill)
            for bill, solver in bills
            if bill.memory <= self.memory
        ]
        if fitting:
            _, _, solver, bill = min(fitting)
            what = (
                f"the {rows} x {rows} kernel"
                if isinstance(solver, Dual)
                else f"the {size} x {size} metric"
            )
            how = (
                "from factors of the layers"
                if bill.structured
                else "from the dense A"
                if isinstance(solver, Dual)
                else "from blocks of A"
            )
            return Choice(
                solver, f"{shape}: {what}, {how}, takes the fewest operations that fit in {budget}"
            )
        krylov = Krylov()
        least = min(bill.memory for bill, _ in bills) / 2**30
        try:
            krylov.check(inverse)
        except ValueError as error:
            raise ValueError(
                f"{shape}: {least:.1f} GiB at least, more than Auto(memory={self.memory}) allows, and {error}"
            ) from None
        return Choice(
            krylov,
            f"{shape}: factors would take {least:.3g} GiB or more, {budget} are allowed, so matrix-free",
        )

    def resolve(self, operator, inverse):
        return self.choose(setting(operator), inverse).solver

    def factorise(self, metric, inverse):
        return self.resolve(whiten(metric, inverse), inverse).factorise(metric, inverse)
