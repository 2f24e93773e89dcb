r"""`check_step`: a rule is a pure function whose step is a part of the direction that it names.

Without momentum and on straight curves, a step is \(-t\,\delta\) with the rate \(t\) of the record
and \(\delta = h(G)\,g\), or \((G + λ)^{-1}g\) with the damping of the record where the rule damps.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._descent.descent import NaturalGradientDescent
from ..inverse import AbstractInverse, MoorePenrose, Tikhonov, TruncatedRank
from ..solver import SVD, AbstractSolver, Dual, Primal
from ..step import AbstractStep
from ._filters import random_filter
from ._problems import Example, prescribed
from ._reference import dense_inverse, reference_natural_gradient
from ._solver import SHAPES, close, whitened


def _inverses() -> dict[str, AbstractInverse]:
    return {
        "MoorePenrose": MoorePenrose(),
        "Tikhonov": Tikhonov(0.03),
        "TruncatedRank": TruncatedRank(2),
        "random filter": random_filter(5),
    }


def check_step(rule: AbstractStep, *, tolerance: float = 1e-9) -> list[str]:
    """Check a step rule against its contract; return what was checked.

    Raises an `AssertionError` with the measured numbers. An inverse that `rule.check` refuses is
    left out.

    **Arguments:**

    - `rule`: any step rule.
    - `tolerance`: how large a relative error may be, in float64.
    """
    checked = []
    for name, inverse in _inverses().items():
        for shape, (rank, rows, size) in SHAPES.items():
            example = prescribed(rank, rows, size)
            try:
                opt = NaturalGradientDescent(
                    example.problem, inverse=inverse, solver=_solver(rows, size), step=rule
                )
            except ValueError:
                continue
            what = f"{type(rule).__name__}, {name}, {shape}"
            _check(opt, inverse, example, what, tolerance)
            checked.append(what)
    assert checked, f"{type(rule).__name__} accepts no inverse."
    return checked


def _solver(rows: int, size: int) -> AbstractSolver:
    """Return a solver for each shape, so that rules meet several of them."""
    return Dual() if rows < size else Primal() if rows > size + 1 else SVD()


def _check(
    opt: NaturalGradientDescent,
    inverse: AbstractInverse,
    example: Example,
    what: str,
    tolerance: float,
) -> None:
    params, batch = example.params, example.batch
    state = opt.init(params)
    new, following, record = opt.step(params, state, batch)
    shape = lambda tree: jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)
    assert shape(state) == shape(following), f"{what}: the state changes its structure or dtypes."
    again = opt.step(params, state, batch)
    same = eqx.tree_equal((new, following), again[:2])
    assert bool(same), f"{what}: two steps from one state differ: the rule is not pure."
    assert bool(jnp.all(jnp.isfinite(new))), (
        f"{what}: the step leads to a point that is not finite."
    )
    assert np.isfinite(record.loss_after), f"{what}: the loss after the step is not finite."
    if not bool(record.accepted):
        assert bool(jnp.all(new == params)), (
            f"{what}: a step that is rejected moves the parameters."
        )
        return
    delta = _dense(inverse, example, record)
    if record.curvature == 0:
        close(f"{what}: the step", new - params, -float(record.rate) * delta, tolerance)


def _dense(inverse: AbstractInverse, example: Example, record: Any) -> np.ndarray:
    """Return δ, with the damping of the record if the rule damps."""
    reference = reference_natural_gradient(*example, inverse=inverse)
    if inverse.damping is not None or not np.isfinite(record.damping):
        return np.asarray(reference.vector)
    a = whitened(example)
    dense = dense_inverse(a, inverse, np.eye(a.shape[1]), float(record.damping))
    # The gradient is a lifted covector: what is dropped stays dropped.
    return dense.matrix @ dense.projection @ np.asarray(reference.covector)
