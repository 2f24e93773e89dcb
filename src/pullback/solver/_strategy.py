"""`Strategy`: which inverse, how it is computed, and in how much memory, as one object."""

from typing import Any

import equinox as eqx

from .._base.tree import as_data
from .._base.types import Scalar
from .._rows.rows import MEMORY
from ..inverse._base import AbstractInverse
from ..inverse._contract import check_declarations
from ..inverse._moore_penrose import MoorePenrose
from ._auto import Auto
from ._base import AbstractSolver


class Strategy(eqx.Module):
    """An inverse, a solver that can compute it, and a bound on working storage."""

    inverse: AbstractInverse
    solver: AbstractSolver
    memory: int = eqx.field(static=True)

    def __init__(
        self,
        inverse: AbstractInverse | None = None,
        solver: AbstractSolver | None = None,
        memory: int = MEMORY,
    ):
        """Fill in the defaults and raise a `ValueError` for what cannot work.

        **Arguments:**

        - `inverse`: which generalised inverse; defaults to `MoorePenrose()`.
        - `solver`: how it is computed; defaults to `solver.Auto()`.
        - `memory`: bound in bytes on the working storage of Jacobian blocks.
        """
        inverse = MoorePenrose() if inverse is None else inverse
        solver = Auto() if solver is None else solver
        check_declarations(inverse)
        if not isinstance(solver, AbstractSolver):
            raise ValueError(
                "solver must be one of pullback.solver, e.g. solver=pullback.solver.SVD(), got "
                f"{solver!r}."
            )
        solver.check(inverse)
        if memory < 1:
            raise ValueError(f"memory must be a positive number of bytes, got {memory}.")
        self.inverse = inverse
        self.solver = solver
        self.memory = memory

    def __repr__(self) -> str:
        return f"inverse={self.inverse!r}, solver={self.solver!r}"

    def with_inverse(self, inverse: AbstractInverse) -> "Strategy":
        """Return the same strategy for another inverse.

        **Arguments:**

        - `inverse`: which generalised inverse.
        """
        return Strategy(inverse, self.solver, self.memory)

    def damped_from(self, least: Scalar) -> "Strategy":
        """Return the same strategy, told the least λ with which factors will be damped.

        **Arguments:**

        - `least`: the least λ.
        """
        return eqx.tree_at(lambda s: s.inverse, self, self.inverse.damped_from(least))

    def need_whole(self, owner: str) -> None:
        """Raise a `ValueError` if the solver inverts blocks of G in the place of G.

        **Arguments:**

        - `owner`: what needs G itself.
        """
        if self.solver.inverts_blocks:
            name = self.solver.name
            raise ValueError(
                f"{owner} needs the metric itself, and solver={name}(...) inverts its diagonal "
                "blocks: use solver=pullback.solver.Auto()."
            )

    def obstacle(self, problem: Any, metric_batch: Any = None) -> str | None:
        """Return, in words, what needs the parameters as one flat vector; `None` if nothing does.

        **Arguments:**

        - `problem`: the problem.
        - `metric_batch`: the batch of the metric, if it has one of its own.
        """
        if metric_batch is not None:
            return "metric_batch=..."
        for term in problem.terms:
            if term.metric.centred:
                return f"metric={type(term.metric).__name__}()"
            if term.holomorphic:
                return "Composite(holomorphic=True)"
        return self.solver.obstacle(self.inverse)

    def as_data(self) -> "Strategy":
        """Return the strategy with numbers of the inverse as arrays.

        Another damping is then another input, not another program.
        """
        return eqx.tree_at(lambda s: s.inverse, self, as_data(self.inverse))
