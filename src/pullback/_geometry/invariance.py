r"""Is a step invariant, in which sense, and to what order? Measured, for any method.

The problem \(\varphi\) at \(\theta\) and \(\psi = \varphi \circ f\) at \(\xi = f^{-1}(\theta)\),
\(F = \partial f\); a method moves \(\theta\) by \(u\) and \(\xi\) by \(w\). What is compared, and
what holds for the natural gradient:

- on the model (Definition 5), \(J u\) with \(J F w\): equal (Theorem 2);
- what the metric sees, \(A u\) with \(A F w\): equal, also where the metric of the outputs is
  singular;
- on the parameters (Definition 6), \(u\) with \(F w\): not equal if overparametrised;
- the same in the gauge \(F^{-\top}F^{-1}\) (Remark 2), \(u_{\text{gauge}}\) with \(F w\): equal;
- parametrisation independence (Definition 4), \(J u\) with \(J F w\) for the cubic map, \(F = 0\):
  never equal (Proposition 2);
- a finite step \(h\), \(z(\theta + hu)\) with \(z(f(\xi + hw))\): \(O(h^2)\); exactly 0 if \(f\) is
  affine and \(u = Fw\), that is if \(G\) is invertible or \(f\) an isometry;
- a fixed time, \(n\) steps of \(T/n\), the ends: \(O(1/n)\), as the flow is invariant.

For a method that is not invariant, such as gradient descent, the finite step differs at \(O(h)\)
and the ends by as much as the flows do, \(O(1)\). Numbers are relative to the displacement.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.checks import instance, integer, positive
from .._base.results import RESULTS
from .._base.show import table
from .._base.tree import all_finite, split, structure
from .._base.types import Flat, Params
from .._compat.xla import jit
from .._natural.failure import raise_failure
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._problem.validate import check_batch, validate
from .._rows.rows import rows_at
from ..inverse._moore_penrose import MoorePenrose
from .adapters import AbstractMethod, as_method
from .probes import Probes
from .reparametrisation import AbstractReparametrisation, Cubic, reparametrise

EXACT = 1e-12
"""Discrepancies below this, relative, count as none."""
CUBIC, NEW = "in the cubic map (Definition 4)", "in the new parameters"
WALK, GAUGE = "along trajectories", "in the gauge of f"


class Invariance(eqx.Module):
    """The measurements of `check_invariance`. NaN where a notion does not apply."""

    diffeomorphism: bool
    """Whether f is a local diffeomorphism at the point; if not, only Definition 4 applies."""
    jacobian_condition: float
    """The condition number of F."""
    model: float
    """Definition 5: the discrepancy of the directions on the model, relative."""
    seen: float
    """What the metric sees of it, relative."""
    parameters: float
    """Definition 6: the discrepancy on the parameters, relative."""
    gauged: float
    """Definition 6 in the gauge of Remark 2; natural gradients only."""
    independence: float
    """Definition 4: the discrepancy on the model for the cubic map."""
    order: float
    """The order in h of the discrepancy of one step; infinite if it is zero."""
    trajectory_order: float
    """The order in 1/n of the discrepancy of the ends after a fixed time."""
    steps: np.ndarray
    """The step sizes h."""
    discrepancies: np.ndarray
    """The discrepancy of one step of each size on the model, absolute."""
    counts: np.ndarray
    """The numbers n of steps of the trajectories."""
    ends: np.ndarray
    """The discrepancy of the ends of the trajectories on the model, relative to the way."""
    failures: tuple[tuple[str, str], ...] = ()
    """Which probes the method failed in, and why; their numbers are NaN."""

    @property
    def message(self) -> str:
        """The finding in one sentence."""
        if not self.diffeomorphism:
            return (
                "f is not a local diffeomorphism at the point (condition of its Jacobian "
                f"{self.jacobian_condition:.1e}): only parametrisation independence applies, and "
                "nothing but zero has it."
            )
        if np.isnan(self.model):
            return f"not judged: the method failed {self.failures[-1][0]}: {self.failures[-1][1]}"
        if self.model < 1e-6:
            exact = "exactly" if np.isinf(self.order) else f"to order {self.order:.2f} in the step"
            return f"invariant on the model; one step is so {exact}."
        if self.seen < 1e-6:
            return (
                "invariant as far as the metric sees, not beyond: the metric of the outputs is "
                "singular."
            )
        return f"not invariant: the directions differ by {self.model:.1e} on the model."

    def plot(self, *, axes: Any = None) -> Any:
        """Draw the discrepancies against the step size; returns `(figure, axes)`.

        **Arguments:**

        - `axes`: the axes to draw on; defaults to new ones.
        """
        from ..plot import orders

        return orders({"one step": (self.steps, self.discrepancies)}, axes=axes)

    def __repr__(self) -> str:
        return f"Invariance({self.message})"

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"{name:<46}{text}" for name, text in self._lines())])

    def _repr_html_(self) -> str:
        return table([("finding", self.message), *self._lines()])

    def _lines(self) -> list[tuple[str, str]]:
        rows = [
            ("on the model (Definition 5)", self.model),
            ("what the metric sees", self.seen),
            ("on the parameters (Definition 6)", self.parameters),
            ("the same, in the gauge of f (Remark 2)", self.gauged),
            ("parametrisation independence (Definition 4)", self.independence),
            ("order of one step", self.order),
            ("order of trajectories", self.trajectory_order),
            ("condition of the Jacobian of f", self.jacobian_condition),
        ]
        lines = [(name, "-" if np.isnan(x) else f"{x:.3g}") for name, x in rows]
        return lines + [(f"failed {probe}", why) for probe, why in self.failures]


class _Pair(eqx.Module):
    """The problem in old and new parameters."""

    problem: AbstractProblem
    twin: AbstractProblem
    old: Params
    new: Params
    batch: AnyBatch
    f: AbstractReparametrisation

    def outputs(self, params: Params) -> np.ndarray:
        return np.asarray(_outputs(self.problem, params, self.batch))

    def in_old(self, flat: Flat) -> Params:
        return _add(self.old, flat)

    def in_new(self, flat: Flat) -> Params:
        return self.f(_add(self.new, flat))

    def tangents(self, u: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return J and A at the old point times both vectors, one column each."""
        vectors = jnp.asarray(np.stack([u, w], axis=1), structure(self.old).dtype)
        pushed, seen = _tangents(self.problem, self.old, self.batch, vectors)
        return np.asarray(pushed), np.asarray(seen)


def _add(params: Params, flat: Flat) -> Params:
    like = structure(params)
    return eqx.combine(like.unravel(like.ravel(params) + flat), split(params)[1])


@jit
def _outputs(problem: AbstractProblem, params: Params, batch: AnyBatch) -> Float[Array, " n"]:
    z = problem.at(batch).outputs(params)
    return structure(z).ravel(z)


@jit
def _tangents(
    problem: AbstractProblem, params: Params, batch: AnyBatch, vectors: Float[Array, "P k"]
) -> tuple[Float[Array, "n k"], Float[Array, "m k"]]:
    """Return J v and A v for the columns v of a matrix."""
    rows = rows_at(problem.at(batch), params)
    like = rows.linear.like
    push = lambda v: (like.ravel(rows.linear.pushforward(v)), rows.mv(v.astype(rows.dtype)))
    return jax.vmap(push, in_axes=1, out_axes=1)(vectors)


def check_invariance(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    reparametrisation: AbstractReparametrisation,
    method: Any = None,
    step: float | None = None,
    halvings: int = 5,
    counts: Sequence[int] = (8, 16, 32),
) -> Invariance:
    """Measure how invariant a method is under a change of parameters, in every sense there is.

    Not for use inside `jit`. A method that fails in one of the probes (g/‖g‖ at a gradient of zero,
    which the cubic map has) is judged by the others; `failures` has the reasons.

        f = pullback.Units(60.0)
        print(pullback.check_invariance(problem, params, (x, y), reparametrisation=f))

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, as for `natural_gradient`.
    - `reparametrisation`: f, from new parameters to these: `Reparametrisation(f)`, `Affine`,
        `Units`, ...
    - `method`: a generalised inverse (the natural gradient with it), an Optax transformation, an
        optimiser with its problem, or a function `direction(problem, params, batch)` of ascent;
        defaults to `MoorePenrose()`.
    - `step`: the largest step h, as a factor of the method's own step; defaults to one that moves
        the outputs by 1 %.
    - `halvings`: how many step sizes, each half of the one before, the order of one step is
        measured with.
    - `counts`: the numbers of steps of trajectories of one length, `4 · step`, to measure their
        order; `()` for none.
    """
    _check(reparametrisation, step, halvings, counts)
    chosen = as_method(MoorePenrose() if method is None else method)
    params, data = validate(problem, params, batch)
    check_batch(problem, params, data)
    if not bool(all_finite(params)):
        code: Any = RESULTS.nonfinite_params
        raise_failure(code, problem, params, data)
    pair = _pair(problem, params, data, reparametrisation)
    jacobian = np.asarray(reparametrisation.jacobian(pair.new))
    condition = _condition(jacobian)
    eps = float(jnp.finfo(structure(params).dtype).eps)
    u = _first(chosen, pair.problem, pair.old, data)
    probes, nan, none = Probes(), float("nan"), np.zeros(0)
    independence = probes.run(CUBIC, lambda: _independence(chosen, pair, u), nan)
    square = jacobian.shape[0] == jacobian.shape[1] and condition < 1 / np.sqrt(eps)
    w = None
    if square:
        w = probes.run(NEW, lambda: _first(chosen, pair.twin, pair.new, data), None)
    if w is None:
        return Invariance(
            square, condition, nan, nan, nan, nan, independence, nan, nan, none, none, none, none,
            tuple(probes.failures),
        )  # fmt: skip
    pushed, seen = pair.tangents(u, jacobian @ w)
    if step is None:
        size = 1 + float(np.linalg.norm(pair.outputs(pair.old)))
        step = 1e-2 * size / max(float(np.linalg.norm(pushed[:, 0])), 1e-300)
    steps = step * 0.5 ** np.arange(halvings)
    discrepancies, order = _one_step(pair, u, w, steps)
    walked = lambda: _trajectories(chosen, pair, 4 * step, counts)
    ends, trajectory_order = probes.run(WALK, walked, (np.full(len(counts), nan), nan))
    in_gauge = lambda: _gauged(chosen, pair, jacobian, jacobian @ w)
    return Invariance(
        diffeomorphism=True,
        jacobian_condition=condition,
        model=_relative(pushed[:, 1], pushed[:, 0]),
        seen=_relative(seen[:, 1], seen[:, 0]),
        parameters=_relative(jacobian @ w, u),
        gauged=probes.run(GAUGE, in_gauge, nan),
        independence=independence,
        order=order,
        trajectory_order=trajectory_order,
        steps=steps,
        discrepancies=discrepancies,
        counts=np.asarray(counts),
        ends=ends,
        failures=tuple(probes.failures),
    )


def _check(reparametrisation: Any, step: Any, halvings: Any, counts: Sequence[int]) -> None:
    """Raise a `ValueError` for arguments that measure nothing."""
    owner = "check_invariance"
    instance(
        owner,
        "reparametrisation",
        reparametrisation,
        AbstractReparametrisation,
        "a change of parameters",
        "reparametrisation=Reparametrisation(f) or Units(60.0)",
    )
    if step is not None:
        positive(owner, "step", step)
    # An order is a slope: it takes two points.
    integer(owner, "halvings", halvings, least=2)
    if len(counts) == 1 or any(int(n) < 1 for n in counts):
        raise ValueError(
            f"{owner}(counts={counts!r}): counts must be at least two numbers of steps, or (), "
            f"e.g. {owner}(counts=(8, 16, 32))."
        )


def _pair(problem: Any, params: Params, data: AnyBatch, f: AbstractReparametrisation) -> _Pair:
    """Return the problem in both parameters; raise if the inverse is not that of f."""
    new = f.inverse(params)
    like = structure(params)
    back = f(new)
    off = float(jnp.linalg.norm(like.ravel(back) - like.ravel(params)))
    if not off <= 1e-6 * (1 + float(jnp.linalg.norm(like.ravel(params)))):
        raise ValueError(
            f"reparametrisation: f(inverse(params)) is {off:.1e} away from params; the inverse is "
            "not that of f."
        )
    # From here on the old point is f(new): the rounding of the inverse is not a discrepancy.
    return _Pair(problem, reparametrise(problem, f), back, new, data, f)


def _first(method: AbstractMethod, problem: Any, params: Params, data: AnyBatch) -> np.ndarray:
    """Return the displacement of a first step."""
    moved, _ = method.displacement(problem, params, data, method.init(problem, params))
    if not np.all(np.isfinite(moved)):
        raise ValueError("the method returned a displacement that is not finite at this point.")
    return np.asarray(moved)


def _condition(jacobian: np.ndarray) -> float:
    s = np.linalg.svd(jacobian, compute_uv=False)
    return float(s[0] / s[-1]) if s.size and s[-1] > 0 else float("inf")


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    size = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / size) if size > 0 else float(np.linalg.norm(a) > 0)


def _independence(method: AbstractMethod, pair: _Pair, u: np.ndarray) -> float:
    """Return the discrepancy of Definition 4, for the cubic map with its critical point here."""
    like = structure(pair.old)
    f = Cubic(like.ravel(pair.old))
    origin = eqx.combine(like.unravel(jnp.zeros(like.size, like.dtype)), split(pair.old)[1])
    moved = _first(method, reparametrise(pair.problem, f), origin, pair.batch)
    pushed, _ = pair.tangents(u, np.asarray(f.jacobian(origin)) @ moved)
    return _relative(pushed[:, 1], pushed[:, 0])


def _gauged(method: AbstractMethod, pair: _Pair, jacobian: np.ndarray, w: np.ndarray) -> float:
    """Return the discrepancy of Definition 6 with the inner product that f carries over."""
    back = np.linalg.inv(jacobian)
    carried = method.in_gauge(jnp.asarray(back.T @ back))
    if carried is None:
        return float("nan")
    return _relative(_first(carried, pair.problem, pair.old, pair.batch), w)


def _one_step(
    pair: _Pair, u: np.ndarray, w: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return the discrepancies of one step of each size along u and w, and their order."""
    start = pair.outputs(pair.old)
    found = np.zeros(steps.size)
    ways = np.zeros(steps.size)
    for i, h in enumerate(steps):
        end = pair.outputs(pair.in_old(h * u))
        found[i] = np.linalg.norm(end - pair.outputs(pair.in_new(h * w)))
        ways[i] = np.linalg.norm(end - start)
    if np.all(found <= EXACT * (1 + np.linalg.norm(start)) + EXACT * ways):
        return found, float("inf")
    return found, _slope(steps, found)


def _slope(h: np.ndarray, d: np.ndarray) -> float:
    """Return the order at the small end, extrapolated: that of consecutive pairs is p + O(h)."""
    slopes = np.diff(np.log(np.maximum(d, 1e-300))) / np.diff(np.log(h))
    return float(2 * slopes[-1] - slopes[-2]) if slopes.size > 1 else float(slopes[-1])


def _trajectories(
    method: AbstractMethod, pair: _Pair, time: float, counts: Sequence[int]
) -> tuple[np.ndarray, float]:
    """Return the discrepancies of the ends of trajectories, and their order."""
    if not counts:
        return np.zeros(0), float("nan")
    start = pair.outputs(pair.old)
    found = np.zeros(len(counts))
    for i, n in enumerate(counts):
        a = pair.outputs(_walk(method, pair.problem, pair.old, pair.batch, time / n, n))
        b = pair.outputs(pair.f(_walk(method, pair.twin, pair.new, pair.batch, time / n, n)))
        found[i] = np.linalg.norm(a - b) / max(np.linalg.norm(a - start), 1e-300)
    if np.all(found <= 1e-11):
        return found, float("inf")
    return found, _slope(1 / np.asarray(counts, float), found)


def _walk(
    method: AbstractMethod, problem: Any, params: Params, batch: AnyBatch, h: float, count: int
) -> Params:
    """Return the parameters after some steps, each h times the method's own."""
    state = method.init(problem, params)
    for _ in range(count):
        moved, state = method.displacement(problem, params, batch, state)
        params = _add(params, h * moved)
    if not bool(all_finite(params)):
        raise ValueError(f"after {count} steps of the method the parameters are not finite.")
    return params
