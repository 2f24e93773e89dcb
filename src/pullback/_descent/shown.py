"""The optimiser, its state and its records as texts and tables."""

from typing import Any

import jax
import numpy as np

from .._base.results import describe, outcome
from .._base.show import brief, columns, facts, known, number, several

MINOR = ("step", "loss", "loss_after", "solver", "result", "accepted", "losses", "weights")
"""The fields of a record that have a line of their own."""
SHOWN = 6
"""How many sizes of blocks are shown."""


def solvers(codes: Any, names: tuple[str, ...]) -> str:
    """Return the names of the solvers that ran."""
    values = known(codes)
    if values is None:
        return "a traced solver"
    found = [names[code] if 0 <= code < len(names) else "another" for code in np.ravel(values)]
    return ", ".join(dict.fromkeys(found))


def taken(accepted: Any) -> str:
    """Return whether a step was taken, in words; empty if it was."""
    values = known(accepted)
    if values is None or values.all():
        return ""
    return ", not taken" if values.ndim == 0 else f", {number(values)} taken"


def line(record: Any, names: tuple[str, ...]) -> str:
    """Return a record in one line."""
    loss = f"loss {number(record.loss, '.6g')} -> {number(record.loss_after, '.6g')}"
    ran = solvers(record.solver, names)
    found = facts(damping=record.damping, rate=record.rate, rank=record.rank)
    parts = [f"step {number(record.step, 'd')}", loss + taken(record.accepted), *found, ran]
    if known(record.loss) is None:
        parts = [f"loss {number(record.loss)}"]
    return f"Record({several(record.loss)}{', '.join([*parts, outcome(record.result)])})"


def lines(record: Any, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return a record as the lines of a table, without what does not apply."""
    others = [name for name in record.__dataclass_fields__ if name not in MINOR]
    # `facts` leaves out what does not apply; its text is the name and the number.
    found = [(name, facts(x=getattr(record, name))) for name in others]
    return [
        ("step", number(record.step, "d")),
        ("loss", f"{number(record.loss, '.6g')} -> {number(record.loss_after, '.6g')}"),
        *terms(record),
        ("taken", number(record.accepted, "")),
        *((name.replace("_", " "), text[0].removeprefix("x ")) for name, text in found if text),
        ("solver", solvers(record.solver, names)),
        ("result", describe(record.result)),
    ]


def terms(record: Any) -> list[tuple[str, str]]:
    """Return the losses of several terms, each with its weight, as lines of a table."""
    losses, weights = columns("loss of ", record.losses), columns("", record.weights)
    return [
        (name, f"{number(loss, '.6g')}, weight {number(weight, '.3g')}")
        for (name, loss), weight in zip(losses.items(), weights.values(), strict=True)
    ]


def state(kept: Any) -> str:
    """Return the state of the optimiser in one line."""
    parts = [f"steps made {number(kept.count, 'd')}"]
    if jax.tree.leaves(kept.rule):
        parts.append(brief(kept.rule))
    sizes = [x.shape[-1] for x in jax.tree.leaves(kept.previous) if x.ndim]
    if max(sizes, default=0):
        parts.append(f"the last direction of size {max(sizes)}")
    return f"DescentState({several(kept.count)}{', '.join(parts)})"


def parts(opt: Any) -> list[tuple[str, str]]:
    """Return the parts of an optimiser: their names as arguments, and how they print."""
    found = [
        ("problem", repr(opt.problem)),
        ("inverse", repr(opt.strategy.inverse)),
        ("solver", repr(opt.strategy.solver)),
        ("step", repr(opt.rule)),
    ]
    if opt.momentum.remembers:
        found.append(("momentum", repr(opt.momentum)))
    if opt.metric_memory is not None:
        found.append(("metric_memory", repr(opt.metric_memory)))
    others = ("metric_batch", "constraint", "penalty", "weighting")
    given = ((name, getattr(opt, name)) for name in others)
    return found + [(name, brief(value)) for name, value in given if value is not None]


def block_line(record: Any) -> str:
    """Return the record of a block descent in one line."""
    parts = [f"step {number(record.step, 'd')}", f"loss {number(record.loss, '.6g')}"]
    parts += facts(damping=record.damping, rate=record.rate, residual=record.residual)
    words = ", ".join(parts) + taken(record.accepted)
    return f"BlockRecord({several(record.loss)}{words}, {outcome(record.result)})"


def block_lines(record: Any) -> list[tuple[str, str]]:
    """Return the record of a block descent as the lines of a table."""
    names = ("loss", "norm", "metric_norm", "rate", "damping", "residual")
    return [
        ("step", number(record.step, "d")),
        *((name.replace("_", " "), number(getattr(record, name), ".4g")) for name in names),
        *terms(record),
        ("taken", number(record.accepted, "")),
        ("result", describe(record.result)),
    ]


def block_state(kept: Any) -> str:
    """Return the state of a block descent in one line."""
    sizes = ", ".join(str(metric.shape[-1]) for metric in kept.metrics[:SHOWN])
    more = ", ..." if len(kept.metrics) > SHOWN else ""
    blocks = f"{len(kept.metrics)} blocks of sizes {sizes}{more}"
    steps = f"steps made {number(kept.count, 'd')}, averages of {number(kept.updates, 'd')}"
    return f"BlockState({several(kept.count)}{steps}, {blocks})"
