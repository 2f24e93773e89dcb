"""The bill before anything is compiled: what each route would cost, which one runs, and why."""

import math
from typing import Any

import equinox as eqx
import jax

from .._base.tree import split
from .._base.types import Params
from .._gram import Layout
from .._natural.outcome import prepare
from .._problem.composite import check_batch
from .._rows.pullback import at_point
from ..inverse._base import AbstractInverse
from . import SVD, AbstractSolver, Auto, Dual, Krylov, Primal
from ._base import whiten
from ._cost import Setting
from ._structured import setting


class Route(eqx.Module):
    """One way to compute, and its bill."""

    solver: str
    flops: float
    """Operations, as of matrix products (see `pullback.solver`)."""
    memory: float
    """Bytes above the model and one gradient."""
    structured: bool
    """Whether A is never formed."""
    fits: bool
    remark: str


class Plan(eqx.Module):
    """What would run. Prints as a table."""

    shape: tuple[int, int]
    """(m, P), the shape of A."""
    samples: int
    dtype: str
    gradient: float
    """The operations of one gradient of the loss."""
    routes: tuple[Route, ...]
    chosen: str
    reason: str
    fits: bool
    """Whether what is chosen fits in the memory that was allowed."""
    memory: int
    leaves: tuple[tuple[str, str], ...]
    """How each parameter leaf enters the kernel: as factors, as rows by products, or as rows by
    automatic differentiation, and why.
    """

    @property
    def route(self) -> Route:
        """The bill of what would run."""
        return next(route for route in self.routes if route.solver == self.chosen)

    def __str__(self) -> str:
        m, size = self.shape
        lines = [
            f"A is {m} x {size} ({self.samples} samples, {self.dtype}); one gradient takes {_si(self.gradient)}flop",
            f"{'route':<10}{'operations':>14}{'/ gradient':>12}{'memory':>12}   how",
        ]
        for route in self.routes:
            mark = "> " if route.solver == self.chosen else "  "
            lines.append(
                f"{mark + route.solver:<10}{_si(route.flops) + 'flop':>14}{route.flops / max(self.gradient, 1.0):>12.3g}"
                f"{_si(route.memory) + 'B':>12}   {route.remark}"
            )
        lines.append(f"runs: {self.chosen}. {self.reason}")
        if not self.fits:
            others = [route.solver for route in self.routes if route.fits]
            offer = (
                f"use solver=pullback.solver.{others[0]}()"
                if others
                else "no route fits: take fewer samples or more memory"
            )
            lines.append(f"does not fit in {_si(self.memory)}B: {offer}.")
        lines += [f"  {name}: {how}" for name, how in self.leaves]
        return "\n".join(lines)


def plan(
    problem: Any,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    memory: int | None = None,
) -> Plan:
    """What a natural gradient would cost, from shapes alone; nothing is compiled.

    **Arguments:**

    - `problem`, `params`, `batch`: as for `natural_gradient`; only their shapes are looked at.
    - `inverse`: which generalised inverse; `MoorePenrose()` if left out.
    - `solver`: how; `solver.Auto()` if left out.
    - `memory`: the bytes that may be taken above the model and one gradient; what `Auto` allows if
        left out.
    """
    solver = Auto() if solver is None else solver
    if memory is None:
        memory = solver.memory if isinstance(solver, Auto) else Auto().memory
    if memory < 1:
        raise ValueError(f"memory={memory} must be a number of bytes, e.g. memory=4 * 2**30.")
    if isinstance(solver, Auto):
        solver = Auto(memory)
    problem, params, data, _, inverse, solver = prepare(
        problem, params, batch, inverse, solver, None, memory
    )
    found: list[Setting] = []

    def look(params, data):
        check_batch(problem, params, data)
        found.append(setting(whiten(at_point(problem, params, data, inverse, solver), inverse)))

    eqx.filter_eval_shape(look, params, data)
    shapes = found[0]
    routes = tuple(
        _route(candidate, shapes, inverse, memory)
        for candidate in (SVD(), Dual(), Primal(), Krylov())
    )
    if isinstance(solver, Auto):
        choice = solver.choose(shapes, inverse)
        chosen, reason = choice.solver, choice.reason
    else:
        chosen, reason = solver, "Asked for."
    if chosen.name not in {route.solver for route in routes}:
        routes = (*routes, _route(chosen, shapes, inverse, memory))
    fits = next(route.fits for route in routes if route.solver == chosen.name)
    return Plan(
        shape=(shapes.rows, shapes.size),
        samples=shapes.count,
        dtype=str(shapes.dtype),
        gradient=3 * shapes.forward,
        routes=routes,
        chosen=chosen.name,
        reason=reason,
        fits=fits,
        memory=memory,
        leaves=_leaves(shapes.primal if chosen.name == "Primal" else shapes.dual, params),
    )


def _route(solver: AbstractSolver, shapes: Setting, inverse: AbstractInverse, memory: int) -> Route:
    bill = solver.cost(shapes, inverse)
    try:
        solver.check(inverse)
    except ValueError:
        return Route(
            solver.name,
            math.nan,
            math.nan,
            False,
            False,
            f"cannot compute {type(inverse).__name__} with a cut-off",
        )
    if bill is None:
        return Route(solver.name, math.nan, math.nan, False, True, "its cost is not known")
    remark = (
        "A is never formed"
        if bill.structured or isinstance(solver, Krylov)
        else "forms A, at least in blocks"
    )
    if isinstance(solver, Krylov):
        remark += ", 300 iterations assumed"
    return Route(
        solver.name, bill.flops, bill.memory, bill.structured, bill.memory <= memory, remark
    )


def _leaves(found: Layout | None, params: Params) -> tuple[tuple[str, str], ...]:
    names = [
        jax.tree_util.keystr(path) or "params"
        for path, _ in jax.tree_util.tree_leaves_with_path(split(params)[0])
    ]
    if found is None:
        return tuple((name, "generic") for name in names)
    how = {
        leaf: f"rows by automatic differentiation: {found.walk.free.get(leaf, 'cheaper')}"
        for leaf in found.free
    }
    for group in found.products:
        how[group.leaf] = f"rows by products at {group.positions} positions"
    for group in found.factors:
        how[group.leaf] = f"factors {group.order.shape[0]} x {group.order.shape[1]}" + (
            f" at {group.positions} positions" if group.positions > 1 else ""
        )
        if (shift := group.uses[0].shift) is not None:
            how[shift.leaf] = f"with {names[group.leaf]}"
    return tuple((name, how[leaf]) for leaf, name in enumerate(names))


def _si(number: float) -> str:
    """1.2 G, with three digits."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if not abs(number) >= 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} E"
