"""The cost estimate before anything is compiled: each route, which one runs, and why."""

import math
import numbers
from typing import Any

import equinox as eqx
import jax

from .._base.show import grid, paragraph
from .._base.tree import split
from .._base.types import Params
from .._compat.devices import manual_axes
from .._gram.factors import Layout
from .._problem.layout import find_layout
from .._problem.validate import check_inputs, validate
from .._rows.rows import rows_at
from ..inverse._base import AbstractInverse
from ._auto import Auto
from ._base import AbstractSolver
from ._cost import Setting, setting_of
from ._cost_devices import kept_of
from ._dual import Dual
from ._krylov import Krylov
from ._primal import Primal
from ._strategy import Strategy
from ._svd import SVD


class Route(eqx.Module):
    """One way to compute a natural gradient, and its cost estimate."""

    solver: str
    flops: float
    """Operations, as of matrix products (see `pullback.solver`)."""
    memory: float
    """Bytes above the model and one gradient."""
    structured: bool
    """Whether A is never formed."""
    fits: bool
    remark: str
    sent: float = 0.0
    """Bytes that a device is sent by the others."""

    def __repr__(self) -> str:
        return f"Route({self._text()}, {self.remark})"

    def _text(self) -> str:
        """Return the solver and its cost estimate."""
        return f"{self.solver}, {_si(self.flops)}flop, {_si(self.memory)}B"


class Plan(eqx.Module):
    """The cost estimate of each route, and the chosen one. Prints as a table.

    ```python
    plan = pb.plan(problem, params, (x, y))
    plan.route, plan.routes
    ```
    """

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
    """How each parameter leaf enters the kernel: as factors or as rows, and why."""
    devices: int = 1
    """On how many devices the samples are; operations and bytes are those of one of them."""
    sharded: bool = False
    """Whether parameters stay sharded, and vectors on them."""

    @property
    def route(self) -> Route:
        """The cost estimate of what would run."""
        return next(route for route in self.routes if route.solver == self.chosen)

    def __str__(self) -> str:
        m, size = self.shape
        several = self.devices > 1
        sent = f"{'sent':>12}" if several else ""
        lines = [
            f"A is {m} x {size} ({self.samples} samples, {self.dtype}); one gradient takes "
            f"{_si(self.gradient)}flop",
            f"{'route':<10}{'operations':>14}{'/ gradient':>12}{'memory':>12}{sent}   how",
        ]
        if several:
            lines.insert(1, self._shared())
        for route in self.routes:
            mark = "> " if route.solver == self.chosen else "  "
            sent = f"{_si(route.sent) + 'B':>12}" if several else ""
            lines.append(
                f"{mark + route.solver:<10}{_si(route.flops) + 'flop':>14}"
                f"{route.flops / max(self.gradient, 1.0):>12.3g}"
                f"{_si(route.memory) + 'B':>12}{sent}   {route.remark}"
            )
        lines.append(f"runs: {self.chosen}. {self.reason}")
        if not self.fits:
            lines.append(f"does not fit in {_si(self.memory)}B: {self._offer()}.")
        lines += [f"  {name}: {how}" for name, how in self.leaves]
        return "\n".join(lines)

    def __repr__(self) -> str:
        m, size = self.shape
        return f"Plan(A is {m} x {size}, runs {self.route._text()})"

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{route.solver} (runs)" if route.solver == self.chosen else route.solver,
                f"{_si(route.flops)}flop",
                f"{route.flops / max(self.gradient, 1.0):.3g}",
                f"{_si(route.memory)}B",
                *([f"{_si(route.sent)}B"] if self.devices > 1 else []),
                route.remark,
            )
            for route in self.routes
        ]
        m, size = self.shape
        words = [f"A is {m} x {size} ({self.samples} samples, {self.dtype}). {self.reason}"]
        if self.devices > 1:
            words.append(f"{self._shared().capitalize()}.")
        if not self.fits:
            words.append(f"Does not fit in {_si(self.memory)}B: {self._offer()}.")
        sent = ("sent",) if self.devices > 1 else ()
        routes = grid(("route", "operations", "/ gradient", "memory", *sent, "how"), rows)
        leaves = grid(("parameters", "how they enter"), self.leaves)
        return routes + "".join(map(paragraph, words)) + leaves

    def _shared(self) -> str:
        """Return what each of several devices has, in one line."""
        (m, size), n = self.shape, self.devices
        has = f"has {m // n} rows"
        rest = "and vectors of both; the numbers below are those of one device"
        if self.sharded:
            return f"each device of {n} shares of the samples {has}, its parameters, {rest}"
        return f"each of {n} devices {has}, all {size} parameters, {rest}"

    def _offer(self) -> str:
        others = [route.solver for route in self.routes if route.fits]
        if others:
            return f"use solver=pullback.solver.{others[0]}()"
        return "no route fits: take fewer samples or more memory"


def plan(
    problem: Any,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    step: Any = None,
    memory: int | None = None,
) -> Plan:
    """Return what a natural gradient would cost, from shapes alone; nothing is compiled.

    If the samples are spread over devices, the cost is that of one of them. With
    `solver=Krylov()` sharded parameters stay sharded, as in `natural_gradient`.

    **Arguments:**

    - `problem`, `params`, `batch`: as for `natural_gradient`; only their shapes are used.
    - `inverse`: which generalised inverse; defaults to `MoorePenrose()`.
    - `solver`: how; defaults to `solver.Auto()`.
    - `step`: a step rule, for the factorisation of a step of an optimiser: one that damps
        (`LevenbergMarquardt`) factorises otherwise. Its trials are not counted.
    - `memory`: the bytes that may be taken above the model and one gradient; defaults to what
        `Auto` allows.
    """
    number = isinstance(memory, numbers.Real) and not isinstance(memory, bool)
    if memory is not None and not (number and memory >= 1):
        raise ValueError(f"memory={memory!r} must be a number of bytes, e.g. memory=4 * 2**30.")
    memory = memory if memory is None or math.isinf(memory) else int(memory)
    if solver is None or isinstance(solver, Auto):
        auto = Auto() if solver is None else solver
        solver = auto if memory is None else Auto(memory)
    limit = getattr(solver, "memory", Auto().memory) if memory is None else memory
    strategy = Strategy(inverse, solver)
    obstacle = strategy.obstacle(problem) if step is None else "step=..."
    setting, inverse = _setting(problem, params, batch, strategy, obstacle), strategy.inverse
    inverse = _of_rule(step, problem, inverse, setting.dtype)
    chosen, reason = strategy.solver, "Asked for."
    if isinstance(chosen, Auto):
        chosen, reason = chosen.choose(setting, inverse)
    candidates: dict[str, AbstractSolver] = {
        solver.name: solver for solver in (SVD(), Dual(), Primal(), Krylov())
    }
    candidates[chosen.name] = chosen
    routes = tuple(_route(solver, setting, inverse, limit) for solver in candidates.values())
    return Plan(
        shape=(setting.rows, setting.size),
        samples=setting.count,
        dtype=str(setting.dtype),
        gradient=3 * setting.forward / setting.devices,
        routes=routes,
        chosen=chosen.name,
        reason=reason,
        fits=next(route.fits for route in routes if route.solver == chosen.name),
        memory=limit,
        leaves=_leaves(setting, isinstance(chosen, Primal), params),
        devices=setting.devices,
        sharded=setting.kept is not None,
    )


def _of_rule(step: Any, problem: Any, inverse: AbstractInverse, dtype: Any) -> AbstractInverse:
    """Return what an optimiser with this step rule factorises with; numbers are fixed rates."""
    number = eqx.is_array_like(step) and not isinstance(step, bool)
    rule_like = hasattr(step, "least_damping") and not isinstance(step, type)
    schedule = callable(step) and not isinstance(step, type) and not rule_like
    if step is None or number or schedule:
        return inverse
    if not rule_like:
        raise ValueError(
            "plan(step=...): step must be one of pullback.step, e.g. "
            f"step=pullback.step.LevenbergMarquardt(), a number or a schedule, got {step!r}."
        )
    rule: Any = step
    rule.check(problem, inverse)
    inverse, least = rule.factorises(inverse), rule.least_damping(rule.init(dtype))
    return inverse if least is None else inverse.damped_from(least)


def _setting(
    problem: Any, params: Params, batch: Any, strategy: Strategy, obstacle: str | None
) -> Setting:
    """Return the shapes that decide the cost; without an `obstacle` parameters stay sharded."""
    spread, kept, layout = 1, None, None
    params, data = validate(problem, params, batch, spread=True)
    if not manual_axes():
        common = (problem, params)
        layout = find_layout(problem, params, (data, None), common, obstacle=obstacle)[0]
    if layout is not None and layout.params is not None:
        kept = kept_of(params, layout)
    if layout is None or not (layout.names or kept):
        params, data = validate(problem, params, batch)
    else:
        # Shapes of all samples, without where they are.
        spread = layout.size
        shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if eqx.is_array(x) else x
        params, data = jax.tree.map(shape, (params, data))
    found: list[Setting] = []

    def analyse(params, data):
        check_inputs(data)
        rows = rows_at(problem.at(data), params).in_gauge(strategy.inverse.gauge)
        found.append(setting_of(rows)[0])

    eqx.filter_eval_shape(analyse, params, data)
    return found[0]._replace(devices=spread, kept=kept)


def _route(
    solver: AbstractSolver, setting: Setting, inverse: AbstractInverse, memory: int
) -> Route:
    try:
        solver.check(inverse)
    except ValueError:
        remark = f"cannot compute {type(inverse).__name__} with a cut-off"
        return Route(solver.name, math.nan, math.nan, False, False, remark)
    kept = setting.kept
    if kept is not None and kept.gathered and solver.obstacle(inverse) is not None:
        remark = "needs all parameters on every device"
        return Route(solver.name, math.nan, math.nan, False, False, remark)
    cost = solver.cost(setting, inverse)
    if cost is None:
        return Route(solver.name, math.nan, math.nan, False, True, "its cost is not known")
    fits = cost.memory <= memory
    return Route(
        solver.name, cost.flops, cost.memory, cost.structured, fits, cost.remark, cost.sent
    )


def _leaves(setting: Setting, primal: bool, params: Params) -> tuple[tuple[str, str], ...]:
    """Return how each leaf is kept, and why, in each term where that differs."""
    paths = jax.tree_util.tree_leaves_with_path(split(params)[0])
    names = [jax.tree_util.keystr(path) or "params" for path, _ in paths]
    each = [_kept(term, term.primal if primal else term.dual, names) for term in setting.terms]
    if len(each) == 1:
        return tuple(zip(names, each[0], strict=True))

    def together(found: tuple[str, ...]) -> str:
        if len(set(found)) == 1:
            return found[0]
        return "; ".join(f"{x}: {how}" for x, how in zip(setting.labels, found, strict=True))

    return tuple(zip(names, map(together, zip(*each, strict=True)), strict=True))


def _kept(setting: Setting, found: Layout | None, names: list[str]) -> tuple[str, ...]:
    """Return how each leaf is kept in one term, and why."""
    if found is None:
        return tuple(f"generic: {_generic(setting, k)}" for k in range(len(names)))
    how = {}
    for leaf in found.free:
        reason = found.walk.free.get(leaf, "cheaper")
        how[leaf] = f"rows by automatic differentiation: {reason}"
    for group in found.products:
        mixed = group.leaf in found.influencing
        reason = "; statistics of the batch depend on it" if mixed else ""
        how[group.leaf] = f"rows by products at {group.positions} positions{reason}"
    for group in found.factors:
        positions = f" at {group.positions} positions" if group.positions > 1 else ""
        formed = ", rows formed in parts" if group.formed else ""
        shape = f"{group.order.shape[0]} x {group.order.shape[1]}"
        how[group.leaf] = f"factors {shape}{positions}{formed}"
        if (shift := group.uses[0].shift) is not None:
            how[shift.leaf] = f"with {names[group.leaf]}"
    return tuple(how[leaf] for leaf in range(len(names)))


def _generic(setting: Setting, leaf: int) -> str:
    """Return why a leaf takes the generic route in a model of which no layer is used."""
    walked = setting.walk
    if walked is None:
        return str(setting.unusable)
    if leaf in walked.free:
        return walked.free[leaf]
    if leaf not in walked.uses:
        return "it is added to a product that takes the generic route"
    if setting.cut is not None and leaf in setting.cut.found.influencing:
        return "statistics of the batch depend on it"
    uses = walked.uses[leaf]
    if uses[0].product.codes:
        return "it is looked up by index"
    positions = sum(use.positions for use in uses)
    return f"it enters products at {positions} positions, and the metric uses those at one only"


def _si(number: float) -> str:
    """Return 1.2 G, with three digits."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if not abs(number) >= 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} E"
