r"""Tangent kernels: how the outputs move in answer to a covector \(-c\) on the outputs.

\[ \text{Euclidean: } \dot z = \underbrace{JJ^\top}_{\Theta}(-c), \qquad \text{natural: } \dot z =
\underbrace{J G^+ J^\top}_{N}(-c), \qquad G = J^\top M J. \]

If \(J\) is onto and \(M\) invertible, \(N = M^{-1}\) in every parametrisation: with \(M = I\) the
identity, only the entry that is pushed moves. If \(M\) is singular (a mask), or \(J\) is not onto,
the parametrisation and the gauge decide what else moves, and `reason` says so. The discrete
versions are \((f(\theta + \eta v) - f(\theta))/\eta\) with \(v = J^\top c\) or \(G^+J^\top c\),
which differ by \(O(\eta)\).

A natural kernel reads a `Subproblem`: \(A\) is factorised when the kernel is made, and every
product is one solve with the same factors.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import positive
from .._base.pairs import conjugate
from .._base.results import RESULTS
from .._base.show import facts, ratio, table
from .._base.tree import all_finite, split, structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params, Scalar
from .._compat.xla import jit
from .._natural.evaluate import Evaluation, evaluate
from .._natural.factorised import Factorised, factorise
from .._natural.failure import raise_failure
from .._natural.subproblem import Subproblem
from .._problem.problem import AbstractProblem, without_loss
from .._problem.validate import check_present, like_outputs, validate
from .._rows.rows import AbstractRows
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractSolver
from ..solver._strategy import Strategy
from .examine import examine


class TangentKernel(eqx.Module):
    """A tangent kernel at a point. Made by `ntk` and `natural_ntk`.

    ```python
    kernel = pb.natural_ntk(problem, params, (x, y))
    kernel.matrix()
    ```
    """

    # A method without its call is shown with the fields; these would fill a page.
    rows: AbstractRows = eqx.field(repr=False)
    """A at the point, and with it the model's J."""
    subproblem: Subproblem | None = eqx.field(repr=False)
    """What solves G⁺Jᵀc; `None` for the Euclidean kernel."""
    at: Any
    """Other inputs at which the outputs are watched; `None` for those of the batch."""

    def __repr__(self) -> str:
        m, size = self.rows.linear.like.size, self.rows.shape[1]
        shape = f"{m} outputs, {size} parameters"
        watched = "" if self.at is None else ", watched at other inputs"
        if self.subproblem is None:
            return f"TangentKernel(JJᵀ, {shape}{watched})"
        factorised = self.subproblem.factorised
        how = ", ".join([repr(factorised.inverse), factorised.solver, *self._numbers()])
        return f"TangentKernel(JG⁺Jᵀ, {shape}{watched}, {how})"

    def _repr_html_(self) -> str:
        m, size = self.rows.linear.like.size, self.rows.shape[1]
        name = "JJᵀ" if self.subproblem is None else "JG⁺Jᵀ"
        lines: list[tuple[str, Any]] = [(name, f"{m} outputs, {size} parameters")]
        if self.at is not None:
            lines.append(("watched at", "other inputs than those of the batch"))
        if self.subproblem is not None:
            factorised = self.subproblem.factorised
            lines += [("inverse", factorised.inverse), ("solver", factorised.solver)]
            lines.append(("spectrum", ", ".join(self._numbers())))
        return table(lines)

    def _numbers(self) -> list[str]:
        """Return what is known of the spectrum that is inverted, in words."""
        assert self.subproblem is not None
        factorised = self.subproblem.factorised
        found = factorised.factors.spectrum
        condition = ratio(found.largest, found.smallest)
        return facts(damping=factorised.damping, rank=found.rank, condition=condition)

    def direction(self, c: OutputCovector) -> Flat:
        """Return the vector on the parameters that answers to c: Jᵀc or G⁺Jᵀc, flat and real.

        **Arguments:**

        - `c`: an output covector.
        """
        return _direction(self, self._real(c, "direction(c)"))

    def product(self, c: OutputCovector) -> OutputVector:
        """Return the kernel times c: how the outputs move.

        **Arguments:**

        - `c`: an output covector of the batch.
        """
        return self.rows.linear.own(_product(self, self._real(c, "product(c)")))

    def column(self, *index: int) -> OutputVector:
        """Return how the outputs, which must be one array, move in answer to one entry of them.

        **Arguments:**

        - `*index`: the entry, sample first if there is a batch.
        """
        return self.product(self._unit(index))

    def matrix(self) -> Float[Array, "m n"]:
        """Return the kernel, dense, on ravelled outputs (pairs, if they are complex).

        Rows are where the outputs are watched, columns where they are pushed.
        """
        return _matrix(self)

    def discrete(self, c: OutputCovector, step: float | Scalar) -> OutputVector:
        """Return the discrete kernel times c: (f(θ + step · v) - f(θ))/step, v the direction.

        **Arguments:**

        - `c`: an output covector of the batch.
        - `step`: η > 0.
        """
        positive("discrete", "step", step, example="discrete(c, step=0.1)")
        return self.rows.linear.own(
            _discrete(self, self._real(c, "discrete(c, step)"), jnp.asarray(step))
        )

    def discrete_column(self, *index: int, step: float | Scalar) -> OutputVector:
        """Return a column of the discrete kernel.

        **Arguments:**

        - `*index`: the entry, sample first if there is a batch.
        - `step`: η > 0.
        """
        return self.discrete(self._unit(index), step)

    def plot(self, *, axes: Any = None) -> Any:
        """Draw the dense kernel and its singular values; returns `(figure, axes)`.

        **Arguments:**

        - `axes`: two axes to draw on; defaults to new ones.
        """
        from ..plot import kernel

        return kernel(self.matrix(), axes=axes)

    @property
    def reason(self) -> str:
        """Whether the kernel depends on the parametrisation, and why. Outside `jit`."""
        if self.subproblem is None:
            return "the Euclidean kernel JJᵀ depends on the parametrisation."
        factorised, objective = self.subproblem.factorised, self.rows.objective
        if factorised.damping is not None:
            return (
                "the inverse is damped: the kernel depends on the parametrisation through the "
                "damping."
            )
        page = examine(objective.problem, self.rows.params, objective.batch, nearby=0)
        blind = page.outputs - page.metric_rank
        inverse = factorised.inverse
        drops = inverse.truncates and 0 <= int(factorised.rank) < page.seen_rank
        if drops or not inverse.pseudo_inverse:
            return (
                f"{type(inverse).__name__} changes or drops singular values of A, which depend on "
                "the parametrisation, and so does the kernel."
            )
        if blind:
            return (
                f"the metric does not see {blind} of {page.outputs} output directions. What moves "
                "there is decided by the gauge (the update of least norm), hence by the "
                "parametrisation: the kernel is not the inverse of the metric."
            )
        if page.rank < page.outputs:
            return (
                f"the Jacobian is not onto: its rank is {page.rank} of {page.outputs} outputs. The "
                "kernel is M⁻¹ projected on what the model can do."
            )
        return (
            "the Jacobian is onto and the metric invertible: the kernel is M⁻¹ in every "
            "parametrisation."
        )

    def _unit(self, index: tuple[int, ...]) -> OutputCovector:
        """Return the output covector of one entry; of its real part, if it is complex."""
        outputs = self.rows.linear.own(split(self.rows.outputs)[0])
        leaves, treedef = jax.tree.flatten(outputs)
        if len(leaves) != 1 or len(index) != leaves[0].ndim:
            raise ValueError(
                "column(*index) needs outputs that are one array and one index for each of its "
                f"axes; the outputs have shapes {[x.shape for x in leaves]}, the index is {index}. "
                "Use product(c) with a covector c."
            )
        if not all(-n <= i < n for i, n in zip(index, leaves[0].shape, strict=True)):
            raise ValueError(f"column{index}: the outputs have shape {leaves[0].shape}.")
        return jax.tree.unflatten(treedef, [jnp.zeros_like(leaves[0]).at[index].set(1.0)])

    def _real(self, c: OutputCovector, call: str) -> OutputCovector:
        """Return an output covector, complex as `jax.grad` returns it, in pairs."""
        linear = self.rows.linear
        return linear.real(conjugate(like_outputs(linear.own(self.rows.outputs), c, call)))

    def _outputs(self, flat: Flat) -> Outputs:
        """Return the outputs that are watched, at other parameters."""
        rows = self.rows
        params = eqx.combine(rows.structure.unravel(flat), split(rows.params)[1])
        if self.at is None:
            return rows.objective.outputs(params)
        return rows.objective.problem.outputs(params, self.at)

    def _answer(self, c: OutputCovector) -> Flat:
        """Return `direction` in the dtype of the parameters."""
        rows = self.rows
        v = rows.pull_output(c) if self.subproblem is None else self.subproblem.solve_output(c)
        return v.astype(rows.structure.dtype)

    def _push(self, v: Flat) -> OutputVector:
        """Return J v at the inputs that are watched."""
        if self.at is None:
            return self.rows.linear.pushforward(v)
        point = self.rows.structure.ravel(self.rows.params)
        return jax.jvp(lambda flat: split(self._outputs(flat))[0], (point,), (v,))[1]


@jit
def _direction(kernel: TangentKernel, c: OutputCovector) -> Flat:
    return kernel._answer(c)


@jit
def _product(kernel: TangentKernel, c: OutputCovector) -> OutputVector:
    return kernel._push(kernel._answer(c))


@jit
def _matrix(kernel: TangentKernel) -> Float[Array, "m n"]:
    like = kernel.rows.linear.like

    def column(c):
        moved = kernel._push(kernel._answer(like.unravel(c)))
        return structure(moved).ravel(moved)

    return jax.lax.map(column, jnp.eye(like.size, dtype=like.dtype)).T


@jit
def _discrete(kernel: TangentKernel, c: OutputCovector, step: Scalar) -> OutputVector:
    v = kernel._answer(c)
    point = kernel.rows.structure.ravel(kernel.rows.params)
    moved = split(kernel._outputs(point + step.astype(v.dtype) * v))[0]
    here = split(kernel._outputs(point))[0]
    return jax.tree.map(lambda a, b: (a - b) / step.astype(a.dtype), moved, here)


def ntk(
    problem: AbstractProblem, params: Params, batch: Any = None, *, at: Any = None
) -> TangentKernel:
    """Return the empirical neural tangent kernel JJᵀ: dense, columns, products, discrete version.

    **Arguments:**

    - `problem`: for its model.
    - `params`: the point.
    - `batch`: `(inputs,)` or `(inputs, targets)`; `None` for a model without data.
    - `at`: other inputs at which the outputs are watched.
    """
    evaluation, _, at = _evaluation(problem, params, batch, at, Strategy())
    return TangentKernel(evaluation.rows, None, at)


def natural_ntk(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    at: Any = None,
) -> TangentKernel:
    """Return the natural neural tangent kernel J G⁺Jᵀ of any metric, factorised once.

        kernel = pullback.natural_ntk(problem, params, (x,))
        kernel.matrix(), kernel.reason

    **Arguments:**

    - `problem`: for its model, metric and measure.
    - `params`: the point.
    - `batch`: `(inputs,)` or `(inputs, targets)`; `None` for a model without data.
    - `inverse`, `solver`: as for `natural_gradient`.
    - `at`: other inputs at which the outputs are watched.
    """
    strategy = Strategy(inverse, solver)
    strategy.need_whole("natural_ntk(...)")
    evaluation, _, at = _evaluation(problem, params, batch, at, strategy)
    factorised = factorise(evaluation.rows, strategy)
    result = _probe(evaluation, factorised)
    rows = evaluation.rows
    raise_failure(result, rows.objective.problem, rows.params, rows.objective.batch)
    return TangentKernel(rows, Subproblem(evaluation, factorised, None), at)


def _evaluation(
    problem: AbstractProblem, params: Params, batch: Any, at: Any, strategy: Strategy
) -> tuple[Evaluation, Any, Any]:
    """Return the problem at the point with a loss that plays no part, the batch, and `at`."""
    params, data = validate(problem, params, batch)
    objective = problem.at(data)
    if at is not None and not objective.has_data:
        raise ValueError("at=... is for models with data; this problem was called without a batch.")
    if not bool(all_finite(params)):
        raise ValueError("params contains a NaN or an infinity.")
    check_present(objective, "kernel")
    # With a loss at hand a covector is lifted by the root of the metric, not by the likelihood.
    plain = without_loss(problem)
    watched = None
    if at is not None:
        if objective.labels:
            raise ValueError(
                "at=... is for a problem of one term. Of several, take direction(c), and watch the "
                "outputs of one of their models along it."
            )
        watched = validate(problem, params, (at,))[1].inputs
    return _evaluate(plain, params, data, strategy), data, watched


_evaluate = jit(evaluate)


@jit
def _probe(evaluation: Evaluation, factorised: Factorised) -> RESULTS:
    """Return the outcome of one solve whose solution is of order one, judged by its certificate.

    A kernel has no result of its own; a solver that fails here would fail in every product.
    """
    rows = factorised.rows
    u = jax.random.normal(jax.random.key(0), (rows.shape[1],), rows.dtype)
    r = rows.unit_push(u)
    # No loss: its differential, which is zero here, has not underflowed.
    where = lambda e: (e.lifted, e.outside, *(t.objective.problem.loss for t in e.rows.terms))
    none = (None,) * (1 + len(evaluation.rows.terms))
    probed = eqx.tree_at(where, evaluation, (r, *none), is_leaf=lambda x: x is None)
    _, result = Subproblem(probed, factorised, factorised.solve_lifted(r)).judge(True)
    return result
