r"""`Auto`: the solver by its cost estimate (`_cost.py`), with the reason.

The rule, with n = min(m, P):

1. m P n ≤ 5·10⁹ (10⁸ if damped), some seconds of work, and A fits: `SVD`, which does not square the
   condition number and reports the rank;
2. of `Dual` and `Primal`, those that fit: the one with fewer operations. Where a step rule damps,
   and declares its least λ, the matrix is factorised for each λ (`_per_damping.py`); for a λ below
   rounding the SVD takes over, up to the work of the first rule without damping;
3. otherwise `Krylov`, O(m + P).
"""

from typing import Any, NamedTuple

import equinox as eqx

from ..inverse._base import AbstractInverse
from ..inverse._moore_penrose import MoorePenrose
from ._base import AbstractSolver
from ._cost import Setting, setting_of
from ._dual import Dual
from ._krylov import Krylov
from ._per_damping import PerDamping
from ._primal import Primal
from ._svd import SVD

SVD_WORK = 5 * 10**9
DAMPED_SVD_WORK = 10**8


class Choice(NamedTuple):
    """The solver that `Auto` takes, and the reason."""

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
        """Return what would run on a whitened Jacobian of this shape, and why.

        The model is taken to have no structure; `pullback.plan` analyses the model.

        **Arguments:**

        - `rows`, `size`: the shape (m, P) of A.
        - `dtype`: the dtype of the linear algebra.
        - `inverse`: which inverse; defaults to `MoorePenrose()`.
        """
        setting = Setting(rows, size, rows, dtype, 2.0 * rows * size)
        return self.choose(setting, MoorePenrose() if inverse is None else inverse)

    def choose(self, setting: Setting, inverse: AbstractInverse) -> Choice:
        """Return what would run, and why.

        **Arguments:**

        - `setting`: the shapes.
        - `inverse`: which inverse.
        """
        choice = self._svd(setting, inverse)
        if choice is not None:
            return choice
        rows, size = setting.rows, setting.size
        shape, budget = f"A is {rows} x {size}", f"{self.memory / 2**30:.3g} GiB"
        dual, primal = (self._form(gram, setting, inverse) for gram in (Dual(), Primal()))
        costs = [
            (dual.cost(setting, inverse), dual, f"the {rows} x {rows} kernel, from the dense A"),
            (
                primal.cost(setting, inverse),
                primal,
                f"the {size} x {size} metric, from blocks of A",
            ),
        ]
        fitting = [
            (cost.flops, solver.name, solver, cost, what)
            for cost, solver, what in costs
            if cost.memory <= self.memory
        ]
        if fitting:
            _, _, solver, cost, what = min(fitting, key=lambda entry: entry[:2])
            if cost.structured:
                what = f"{what.split(',')[0]}, from factors of the layers"
            if inverse.factorised_per_damping:
                what = f"{what}, factorised per damping"
            return Choice(
                solver, f"{shape}: {what}, takes the fewest operations that fit in {budget}"
            )
        krylov = Krylov()
        least = min(cost.memory for cost, *_ in costs) / 2**30
        try:
            krylov.check(inverse)
        except ValueError as error:
            raise ValueError(
                f"{shape}: {least:.1f} GiB at least, more than Auto(memory={self.memory}) allows, "
                f"and {error}"
            ) from None
        return Choice(
            krylov,
            f"{shape}: factors would take {least:.3g} GiB or more, {budget} are allowed, so "
            "matrix-free",
        )

    def resolve(self, rows, inverse):
        m, size = rows.shape
        # The first rule needs the shape only: the program of a small model is not walked.
        setting = Setting(
            m, size, rows.count, rows.dtype, 0.0, devices=rows.shares, graded=rows.graded
        )
        first = self._svd(setting, inverse)
        if first is not None:
            return first.solver, rows
        setting, rows = setting_of(rows)
        return self.choose(setting, inverse).solver, rows

    def factorise(self, rows, inverse):
        solver, rows = self.resolve(rows, inverse)
        return solver.factorise(rows, inverse)

    def _svd(self, setting: Setting, inverse: AbstractInverse) -> Choice | None:
        """Return the choice of the first rule, `None` if it does not apply."""
        rows, size = setting.rows, setting.size
        damped = inverse.damping is not None or inverse.factorised_per_damping
        limit = DAMPED_SVD_WORK if damped else SVD_WORK
        fits = SVD().cost(setting, inverse).memory <= self.memory
        if _svd_work(setting) > limit or not fits:
            return None
        kind = "damped" if damped else "undamped"
        return Choice(
            SVD(),
            f"A is {rows} x {size}: {kind} and m P min(m, P) <= {limit:.0e}, so the SVD of A, "
            "which squares no condition number",
        )

    def _form(
        self, gram: Dual | Primal, setting: Setting, inverse: AbstractInverse
    ) -> "Dual | Primal | PerDamping":
        """Return the solver that factorises K or G, once or for each damping."""
        if not inverse.factorised_per_damping:
            return gram
        exact = PerDamping(gram, svd=True)
        fits = exact.cost(setting, inverse).memory <= self.memory
        return exact if fits and _svd_work(setting) <= SVD_WORK else PerDamping(gram, svd=False)


def _svd_work(setting: Setting) -> int:
    """Return m P min(m, P)."""
    return setting.rows * setting.size * min(setting.rows, setting.size)
