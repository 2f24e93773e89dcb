r"""`check_momentum`: a pure direction, a memory of fixed structure, and steps within the limit.

A step is \(\min(t, \bar t)\,d\): with the rate \(t\) of the record, \(d = \) `direction(sub, m)`,
and the next memory is `remember(sub, m, d)`, or `init` after a rejected step.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._descent.descent import NaturalGradientDescent
from .._natural.subproblem import subproblem
from .._problem.validate import validate
from ..inverse import MoorePenrose, Tikhonov
from ..momentum import AbstractMomentum
from ..step import Fixed, GridSearch, LevenbergMarquardt
from ._problems import Example, prescribed
from ._solver import SHAPES, close

RATE = 0.25


def check_momentum(momentum: AbstractMomentum, *, tolerance: float = 1e-9) -> list[str]:
    """Check a momentum against its contract; return what was checked.

    Raises an `AssertionError` with the measured numbers.

    **Arguments:**

    - `momentum`: any momentum.
    - `tolerance`: how large a relative error may be, in float64.
    """
    name, checked = type(momentum).__name__, []
    for inverse in (MoorePenrose(), Tikhonov(0.03)):
        for shape, sizes in SHAPES.items():
            what = f"{name}, {type(inverse).__name__}, {shape}"
            _check(momentum, inverse, prescribed(*sizes), what, tolerance)
            checked.append(what)
    example = prescribed(*next(iter(SHAPES.values())))
    opt = NaturalGradientDescent(example.problem, step=LevenbergMarquardt(), momentum=momentum)
    _steps(opt, example, 2, f"{name}, LevenbergMarquardt")
    return [*checked, f"{name}, LevenbergMarquardt"]


def _check(
    momentum: AbstractMomentum, inverse: Any, example: Example, what: str, tolerance: float
) -> None:
    """Compare two steps with what the methods of the momentum return, then reject one."""
    opt = NaturalGradientDescent(
        example.problem, inverse=inverse, step=Fixed(RATE), momentum=momentum
    )
    point, state, params = example.params, opt.init(example.params), example.params
    for _ in range(2):
        sub = subproblem(
            example.problem, *validate(example.problem, params, example.batch), opt.strategy
        )
        d = momentum.direction(sub, state.previous)
        assert d.shape == point.shape, f"{what}: direction has shape {d.shape}, not {point.shape}."
        limit = momentum.limit(state.previous, d)
        assert limit is None or float(limit) >= 0, f"{what}: limit is {limit}."
        memory = momentum.remember(sub, state.previous, d) if momentum.remembers else state.previous
        params, state, record = _steps(opt, example, 1, what, params, state)
        rate = RATE if limit is None else min(RATE, float(limit))
        close(f"{what}: the step", params - point, rate * d, tolerance)
        assert np.isclose(record.rate, rate), f"{what}: the rate is {record.rate}, not {rate}."
        for found, expected in zip(
            jax.tree.leaves(state.previous), jax.tree.leaves(memory), strict=True
        ):
            close(f"{what}: the memory", found, expected, tolerance)
        point = params
    refused = NaturalGradientDescent(
        example.problem, inverse=inverse, step=GridSearch((1e12,)), momentum=momentum
    )
    kept, after, record = refused.step(params, state, example.batch)
    if not bool(record.accepted):
        first = opt.init(params).previous
        assert bool(eqx.tree_equal(after.previous, first)), f"{what}: rejected, and not forgotten."
        assert bool(jnp.all(kept == params)), f"{what}: a step that is rejected moves parameters."


def _steps(
    opt: NaturalGradientDescent,
    example: Example,
    count: int,
    what: str,
    params: Any = None,
    state: Any = None,
) -> tuple[Any, Any, Any]:
    """Return the point, state and record after some steps, each made twice and compared."""
    params = example.params if params is None else params
    state = opt.init(params) if state is None else state
    shape = lambda tree: jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)
    record = None
    for _ in range(count):
        made = opt.step(params, state, example.batch)
        same = eqx.tree_equal(made[:2], opt.step(params, state, example.batch)[:2])
        assert bool(same), f"{what}: two steps from one state differ: the momentum is not pure."
        assert shape(made[1]) == shape(state), f"{what}: the state changes structure or dtypes."
        assert bool(jnp.all(jnp.isfinite(made[0]))), f"{what}: a point that is not finite."
        params, state, record = made
    return params, state, record
