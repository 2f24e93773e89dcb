"""A check of invariance for test suites: `assert_invariant(problem, params, batch,
method=my_optimiser)`.
"""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from .._base.types import Params
from .._geometry.invariance import Invariance, check_invariance
from .._geometry.reparametrisation import random_reparametrisation
from .._problem.problem import AbstractProblem


def assert_invariant(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    method: Any = None,
    count: int = 3,
    key: PRNGKeyArray | None = None,
    rtol: float = 1e-9,
    order: float = 2.0,
    seen_only: bool = False,
) -> list[Invariance]:
    """Assert that a method is reparametrisation invariant on the model, under random changes of
    parameters, and to what order.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `method`: any optimiser, as for `check_invariance`.
    - `count`: how many random changes of parameters.
    - `key`: a PRNG key; fixed if left out.
    - `rtol`: the bound on the relative discrepancy of the directions on the model.
    - `order`: the least order of one step, up to 0.1.
    - `seen_only`: whether only what the metric sees must agree.

    **Returns:**

    What was measured, one record for each change of parameters.
    """
    found = []
    for draw in jax.random.split(jax.random.key(0) if key is None else key, count):
        f = random_reparametrisation(params, draw)
        record = check_invariance(
            problem, params, batch, reparametrisation=f, method=method, counts=()
        )
        off = record.seen if seen_only else record.model
        assert off <= rtol, (
            f"not invariant: the directions differ by {off:.1e} > {rtol:.1e}.\n{record}"
        )
        assert seen_only or record.order >= order - 0.1, (
            f"one step agrees to order {record.order:.2f} < {order}.\n{record}"
        )
        found.append(record)
    return found
