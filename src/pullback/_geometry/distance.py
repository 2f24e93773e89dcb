r"""How far apart two sets of parameters are as *functions*: the divergence of the metric, pulled
back and averaged by the measure,

\[ \rho(u, \theta) = \sum_i w_i\, \rho_z\bigl(f(u, x_i),\, f(\theta, x_i)\bigr), \]

beside \(\lVert u - \theta \rVert\), which depends on the parametrisation, and \(\tfrac12 (u -
\theta)^\top G(\theta)\, (u - \theta)\), which is \(\rho\) to second order.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import integer
from .._base.results import RESULTS
from .._base.show import grid, is_single, known, number, several, table
from .._base.tree import all_finite, split, structure
from .._base.types import Params, Scalar
from .._compat.xla import jit
from .._natural.failure import raise_failure
from .._natural.outcome import first, is_metric, nonfinite
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._problem.validate import check_inputs, check_point, validate
from .._rows.rows import rows_at

NAMES = ("as functions", "quadratic estimate", "parameters")


class Distance(eqx.Module):
    """Three distances between two points: of functions, quadratic, of parameters.

    ```python
    found = pb.distance(problem, params, other, (x, y))
    found.function, found.quadratic, found.parameters
    ```

    Arrays if `other` is a list of points.
    """

    function: Float[Array, "..."]
    """ρ(other, params), in the units of the metric's divergence (nats for a Fisher metric)."""
    quadratic: Float[Array, "..."]
    """½‖other - params‖² in the metric at params: ρ to second order."""
    parameters: Float[Array, "..."]
    """‖other - params‖, Euclidean."""

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {value}" for name, value in self._row())
        return f"Distance({several(self.function)}{found})"

    def __str__(self) -> str:
        if np.ndim(self.function) == 1 and known(self.function) is not None:
            return "\n".join(str(point) for point in self._points())
        if not is_single(self.function):
            return repr(self)
        function, quadratic, parameters = (value for _, value in self._row())
        return f"as functions {function} (quadratic estimate {quadratic}), parameters {parameters}"

    def _repr_html_(self) -> str:
        if np.ndim(self.function) != 1 or known(self.function) is None:
            return table(self._row())
        return grid(NAMES, [[value for _, value in point._row()] for point in self._points()])

    def _row(self) -> list[tuple[str, str]]:
        values = (self.function, self.quadratic, self.parameters)
        return [(name, number(x, ".6g")) for name, x in zip(NAMES, values, strict=True)]

    def _points(self) -> "list[Distance]":
        columns = (self.function, self.quadratic, self.parameters)
        return [Distance(*row) for row in zip(*map(np.asarray, columns), strict=True)]


def distance(
    problem: AbstractProblem, params: Params, other: Params | Sequence[Params], batch: Any = None
) -> Distance:
    """Return how far apart two sets of parameters are: as functions, in the metric, as numbers.

        curve = pullback.distance(problem, params, pullback.line(params, other), (x,))
        curve.function

    **Arguments:**

    - `problem`: model, metric (which must have a divergence) and measure.
    - `params`: the point of reference.
    - `other`: another point; or a list of points (a training run), for a curve of all three.
    - `batch`: `(inputs,)` or `(inputs, targets)` to average over, `None` for a model without data.
    """
    params, data = validate(problem, params, batch)
    check_inputs(data)
    if not problem.at(data).has_divergence:
        raise ValueError(
            f"{problem.at(data).without_divergence} is a metric without a divergence: there is no "
            "distance of functions. The quadratic estimate is "
            "pullback(problem, params, batch).norm(v)**2 / 2."
        )
    several = isinstance(other, list) and structure(other) != structure(params)
    points = [check_point(problem, point) for point in (other if several else [other])]
    if not points:
        raise ValueError("distance(other=[]): other must be a point or a list of at least one.")
    for point in points:
        if structure(point) != structure(params):
            raise ValueError(
                "other must have the structure, shapes and dtypes of params (or be a list of such "
                "trees)."
            )
    for name, point in (("params", params), *(("other", point) for point in points)):
        if not bool(all_finite(point)):
            raise ValueError(f"{name} contains a NaN or an infinity.")
    found = [_checked(problem, params, point, data) for point in points]
    return jax.tree.map(lambda *x: jnp.stack(x), *found) if several else found[0]


def _checked(problem: AbstractProblem, params: Params, other: Params, batch: AnyBatch) -> Distance:
    """Return the distances of one point; raise a `RuntimeError` where they are not defined."""
    found, here, there = _distance(problem, params, other, batch)
    raise_failure(here, problem, params, batch)
    raise_failure(there, problem, other, batch)
    return Distance(*found)


@jit
def _distance(
    problem: AbstractProblem, params: Params, other: Params, batch: AnyBatch
) -> tuple[tuple[Scalar, Scalar, Scalar], RESULTS, RESULTS]:
    """Return the three distances, and what is wrong at either point."""
    rows = rows_at(problem.at(batch), params)
    # Without what absent samples contain.
    objective = rows.objective
    v = rows.structure.ravel(other) - rows.structure.ravel(params)
    quadratic = jnp.sum(rows.mv(v.astype(rows.dtype)) ** 2) / 2
    # Both outputs by the same program, so that the distance of a point from itself is zero.
    z, u = objective.outputs(params), objective.outputs(other)
    function = objective.divergence(u, z)
    inputs = [part.inputs for part in objective.batch.parts]
    here = nonfinite(objective, params, z, inputs)
    here.append((~is_metric(rows) | jnp.isnan(quadratic), RESULTS.bad_metric))
    there = nonfinite(objective, other, u, inputs)
    there.append((jnp.isnan(function), RESULTS.bad_metric))
    found = function, quadratic, jnp.linalg.norm(v)
    return found, first(here, None), first(there, None)


def line(params: Params, other: Params, count: int = 21) -> list[Params]:
    """Return points on the straight line between two sets of parameters, both ends included.

    **Arguments:**

    - `params`, `other`: the ends.
    - `count`: how many points, at least 2.
    """
    integer("line", "count", count, least=2, example="line(params, other, count=21)")
    moving, carried = split(params)
    end = split(other)[0]

    def point(t):
        between = jax.tree.map(lambda a, b: a + jnp.asarray(t, a.dtype) * (b - a), moving, end)
        return eqx.combine(between, carried)

    return [point(t) for t in np.linspace(0.0, 1.0, count)]
