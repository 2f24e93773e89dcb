"""Why a step of a run failed, and where in its batch, in words."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._base.results import RESULTS, names_of
from .._descent.moved import due_to
from .._natural.failure import place_of
from .._problem.problem import AbstractProblem
from .batches import AbstractConstant, AbstractSource, Carried
from .checkpoint import Snapshot
from .history import History
from .outcome import message


def reason(rows: History, opt: Any, source: AbstractSource, now: Snapshot) -> str:
    """Return why the last of some steps failed; `now` is the run as that step left it."""
    if "result" in rows:
        code = int(rows["result"][-1])
        leaf = int(rows["leaf"][-1]) if "leaf" in rows else -1
        name = str(names_of(code))
        found = due_to(name, opt, now.params, leaf)
        return message(code) + (found or _place(code, int(rows["step"][-1]), opt, source, now))
    if not np.isfinite(rows["loss"][-1]):
        return f"the loss is {rows['loss'][-1]}."
    if "failed" in rows:
        return "the record of the optimiser reports a failure."
    return "the parameters after it are not finite."


def _place(code: int, step: int, opt: Any, source: AbstractSource, now: Snapshot) -> str:
    """Return the leaf or the sample of a failure, if the batch of the step can be drawn again.

    A step that failed keeps its parameters. The batches of an iterator are used up, and a sampler
    has moved on.
    """
    problem = getattr(opt, "problem", None)
    if not isinstance(source, AbstractConstant) or isinstance(source, Carried):
        return ""
    if not isinstance(problem, AbstractProblem):
        return ""
    key = jax.random.fold_in(now.key, step)
    batch, _ = source.draw(source.data, key, now.params, None, jnp.asarray(0))
    result: Any = jax.tree.map(lambda _: np.asarray(code, np.int32), RESULTS.successful)
    return place_of(result, problem, now.params, batch)
