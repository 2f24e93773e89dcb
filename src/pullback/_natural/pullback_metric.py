r"""The pullback metric at a point, for users: \(G = J^\top M J\) as a linear operator.

\[ \text{flat: } v \mapsto Gv, \qquad \text{sharp: } g \mapsto G^+ g, \qquad \langle u, v\rangle =
u^\top G v . \]

Nothing is dense until a matrix is asked for.
"""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.pairs import conjugate
from .._base.results import RESULTS
from .._base.show import table
from .._base.tangent import CotangentVector, TangentVector, covector_tree, vector_tree
from .._base.tree import Structure, all_finite
from .._base.types import (
    Count,
    Covector,
    Flat,
    OutputCovector,
    Outputs,
    OutputVector,
    Params,
    Scalar,
    Vector,
)
from .._base.vector import finite_or_nan
from .._compat.xla import jit
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._problem.validate import check_inputs, is_traced, like_outputs, validate
from .._rows.rows import MEMORY, AbstractRows, rows_at
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractSolver
from ..solver._strategy import Strategy
from .certificate import tolerance
from .covariance import covariance_of, function_at, observations_per_weight, unidentifiable, warning
from .factorised import Factorised, factorise
from .failure import raise_failure
from .outcome import first, is_metric, mixes_samples, nonfinite, not_holomorphic
from .reported import Reported, reported


class PullbackMetric(eqx.Module):
    """The metric G = JᵀMJ of a problem at a point. Made by `pullback.pullback`.

    ```python
    G = pb.pullback(problem, params, (x, y))
    G.rank(), G.sharp(pb.differential(problem, params, (x, y)))
    ```
    """

    # A method without its call is shown with the fields; these would fill a page.
    whitened: AbstractRows = eqx.field(repr=False)
    """A, the whitened Jacobian, as an operator on flat vectors; for solvers and preconditioners."""
    strategy: Strategy
    """The default inverse and solver of `sharp`, `project`, `rank` and `factorise`."""
    reported: Reported | None = eqx.field(default=None, repr=False)
    """The model at the inputs of each sample, of weight zero or not; `None` if no weight is."""

    def __repr__(self) -> str:
        shapes = f"G is {self.size} x {self.size}, {self.whitened._text()}"
        return f"PullbackMetric({shapes}, {self.strategy!r})"

    def _repr_html_(self) -> str:
        strategy = self.strategy
        return table(
            [
                ("G", f"{self.size} x {self.size}, the metric on the parameters"),
                ("A", f"{self.whitened._text().removeprefix('A is ')}, G = AᵀA"),
                ("inverse", strategy.inverse),
                ("solver", strategy.solver),
            ]
        )

    @property
    def outputs(self) -> Outputs:
        """z, the outputs at this point."""
        return self._linear.own(self._linear.outputs)

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return self.whitened.shape[1]

    @property
    def rows(self) -> int:
        """m, the number of rows of A."""
        return self.whitened.shape[0]

    def pushforward(self, v: Vector) -> OutputVector:
        """Return J v.

        **Arguments:**

        - `v`: a vector on the parameters.
        """
        flat = self.whitened.structure.ravel(vector_tree(v, "pushforward"))
        return self._linear.own(self._linear.pushforward(flat))

    def pull(self, c: OutputCovector) -> Covector:
        """Return Jᵀ c.

        **Arguments:**

        - `c`: an output covector.
        """
        own = like_outputs(self.outputs, c, "pull(c)")
        return self._cotree(self._linear.pull(self._linear.real(conjugate(own))))

    def flat(self, v: Vector) -> Covector:
        """Return G v, the covector ⟨v, ·⟩.

        **Arguments:**

        - `v`: a vector on the parameters.
        """
        covector = self._cotree(
            self.whitened.rmv(self.whitened.mv(self._flat(vector_tree(v, "flat"))))
        )
        return CotangentVector(covector) if isinstance(v, TangentVector) else covector

    def sharp(
        self,
        g: Covector,
        inverse: AbstractInverse | None = None,
        solver: AbstractSolver | None = None,
        throw: bool = True,
    ) -> Vector:
        """Return G⁺ g, the vector whose flat is g (of the part of g in the range of G).

        **Arguments:**

        - `g`: a covector on the parameters.
        - `inverse`: which generalised inverse; defaults to that of this object.
        - `solver`: how it is computed; defaults to that of this object.
        - `throw`: whether to raise if the recomputed residual of the solution is above √eps.
        """
        factorised = self.factorise(inverse, solver)
        covector = self._flat(conjugate(covector_tree(g, "sharp")))
        found = factorised.solve_covector(covector)
        if throw:
            found = _certified(factorised, found, None, covector)
        vector = self._tree(found)
        return TangentVector(vector) if isinstance(g, CotangentVector) else vector

    def inner(self, u: Vector, v: Vector) -> Scalar:
        """Return ⟨u, v⟩ = uᵀGv.

        **Arguments:**

        - `u`, `v`: vectors on the parameters.
        """
        first, second = (self.whitened.mv(self._flat(vector_tree(x, "inner"))) for x in (u, v))
        return jnp.vdot(first, second)

    def norm(self, v: Vector) -> Scalar:
        """Return ‖v‖ in the metric.

        **Arguments:**

        - `v`: a vector on the parameters.
        """
        return jnp.linalg.norm(self.whitened.mv(self._flat(vector_tree(v, "norm"))))

    def project(
        self,
        ambient: OutputVector,
        inverse: AbstractInverse | None = None,
        solver: AbstractSolver | None = None,
        throw: bool = True,
    ) -> OutputVector:
        """Return Π(ambient), the projection of an output vector on the span of the ∂ᵢ.

        It is orthogonal in the metric of the outputs.

        **Arguments:**

        - `ambient`: an output vector.
        - `inverse`: which generalised inverse; defaults to that of this object.
        - `solver`: how it is computed; defaults to that of this object.
        - `throw`: whether to raise if the recomputed residual of the solution is above √eps.
        """
        factorised = self.factorise(inverse, solver)
        own = like_outputs(self.outputs, ambient, "project(ambient)")
        r = self.whitened.unit_output(self._linear.real(own))
        found = factorised.solve_lifted(r)
        if throw:
            found = _certified(factorised, found, r, None)
        pushed = self._linear.pushforward(found.astype(self.whitened.structure.dtype))
        return self._linear.own(pushed)

    def factorise(
        self, inverse: AbstractInverse | None = None, solver: AbstractSolver | None = None
    ) -> Factorised:
        """Factorise once, solve many: `solve_lifted(r)`, `solve_covector(g)`, `damped(λ)`.

        **Arguments:**

        - `inverse`: which generalised inverse; defaults to that of this object.
        - `solver`: how it is computed; defaults to that of this object.
        """
        mine = self.strategy
        if inverse is not None or solver is not None:
            inverse = mine.inverse if inverse is None else inverse
            mine = Strategy(inverse, mine.solver if solver is None else solver, mine.memory)
            mine.need_whole("PullbackMetric")
        return factorise(self.whitened, mine)

    def rank(
        self, inverse: AbstractInverse | None = None, solver: AbstractSolver | None = None
    ) -> Count:
        """Return the rank of G that the inverse uses; -1 if the solver does not compute it.

        **Arguments:**

        - `inverse`: which generalised inverse; defaults to that of this object.
        - `solver`: how it is computed; defaults to that of this object.
        """
        return self.factorise(inverse, solver).rank

    def jacobian(self) -> Float[Array, "m P"]:
        """Return A = SᵀJ, the whitened Jacobian, dense."""
        return self.whitened.scale[:, None] * self.whitened.unit_rows()

    def matrix(self) -> Float[Array, "P P"]:
        """Return G, dense, summed over blocks of samples."""
        return self.whitened.gram()

    def kernel(self) -> Float[Array, "m m"]:
        """Return K = AAᵀ, dense."""
        a = self.jacobian()
        return a @ a.T

    def spectrum(self) -> Float[Array, " k"]:
        """Return the min(m, P) largest eigenvalues of G: the squared singular values of A."""
        return jnp.linalg.svd(finite_or_nan(self.jacobian()), compute_uv=False) ** 2

    def covariance(
        self,
        of: Callable[[Params], Any] | None = None,
        *,
        dispersion: float | Scalar = 1.0,
        observations: float | Scalar | None = None,
        rtol: float | None = None,
    ) -> Float[Array, "k k"]:
        """Return the covariance of an estimate: the inverse of the Fisher information of the data.

        The metric is that of a likelihood, at the estimate. `Mean()` of N samples stands for N
        observations, and so does `Sum()`; `Weights(w)` for sum(w), each sample w times. A parameter
        that is not identifiable has an infinite variance, NaN covariances, and a warning. Forms A.

        **Arguments:**

        - `of`: a function of the parameters, any pytree of floating arrays, for its covariance by
            the delta method; defaults to the parameters, in the order of their leaves.
        - `dispersion`: a factor, e.g. the variance of the residuals if the metric is `Euclidean()`.
        - `observations`: how many observations the batch stands for, if not as above.
        - `rtol`: singular values at or below `rtol` times the largest, of A with columns of length
            one, count as zero; defaults to max(m, P) · eps.
        """
        return self._covariance(of, dispersion, observations, rtol)[0]

    def standard_errors(
        self,
        of: Callable[[Params], Any] | None = None,
        *,
        dispersion: float | Scalar = 1.0,
        observations: float | Scalar | None = None,
        rtol: float | None = None,
    ) -> Any:
        """Return the square roots of the variances, in a pytree like the parameters, or like `of`.

        **Arguments:**

        - `of`, `dispersion`, `observations`, `rtol`: as of `covariance`.
        """
        covariance, shape = self._covariance(of, dispersion, observations, rtol)
        return shape.unravel(jnp.sqrt(jnp.diagonal(covariance)))

    def _covariance(self, of, dispersion, observations, rtol) -> tuple[Array, Structure]:
        """Return the covariance of a function, and how its values lie."""
        checks.positive("covariance", "dispersion", dispersion)
        if observations is not None:
            checks.positive("covariance", "observations", observations, example="observations=100")
        if rtol is not None:
            checks.positive("covariance", "rtol", rtol, zero=True)
        shape, h = function_at(self.whitened, of)
        a = self.jacobian()
        if not is_traced(a) and not bool(all_finite(a)):
            raise ValueError(
                "covariance: there is a NaN or an infinity in the parameters, the batch, the "
                "outputs or the Jacobian. natural_gradient(problem, params, batch) says where."
            )
        found, estimable = covariance_of(a, h.astype(self.whitened.dtype), rtol)
        scale = dispersion / observations_per_weight(self.whitened, observations)
        found = unidentifiable(found * scale, estimable)
        if not is_traced(estimable) and not bool(jnp.all(estimable)):
            warnings.warn(warning(shape, np.asarray(estimable), of), stacklevel=3)
        return found, shape

    def _flat(self, tree: Any) -> Flat:
        return self.whitened.structure.ravel(tree).astype(self.whitened.dtype)

    def _tree(self, flat: Flat) -> Any:
        return self.whitened.structure.unravel(flat)

    def _cotree(self, flat: Flat) -> Any:
        return self.whitened.structure.unravel_covector(flat)

    @property
    def _linear(self) -> Any:
        return self.reported or self.whitened.linear


def pullback(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    memory: int = MEMORY,
) -> PullbackMetric:
    """Return the pullback metric of a problem at a point, a linear operator.

        G = pullback.pullback(problem, params, (x, y))
        G.inner(u, v), G.rank()

    **Arguments:**

    - `problem`: model, metric and measure; the loss is not used.
    - `params`: the point.
    - `batch`: `(inputs,)` or `(inputs, targets)`, or `None` for a model without data.
    - `inverse`: the default inverse of `sharp`, `project` and `rank`; defaults to `MoorePenrose()`.
    - `solver`: the default solver; defaults to `solver.Auto()`.
    - `memory`: bound in bytes on the working storage of Jacobian blocks.
    """
    params, data = validate(problem, params, batch)
    strategy = Strategy(inverse, solver, memory)
    strategy.need_whole("pullback.pullback(...)")
    check_inputs(data)
    rows = rows_at(problem.at(data), params, memory)
    if not is_traced((params, data, rows.outputs)):
        # Targets are those of the loss, which is not used, or make a metric that is none.
        inputs = [part.inputs for part in rows.objective.batch.parts]
        verdicts = nonfinite(rows.objective, rows.params, rows.outputs, inputs)
        verdicts.append((~is_metric(rows), RESULTS.bad_metric))
        result = first(verdicts, None)
        if not is_traced(result):
            raise_failure(result, problem, params, data)
    if not is_traced(rows.outputs) and bool(not_holomorphic(rows)):
        raise ValueError(RESULTS[RESULTS.not_holomorphic])
    if not is_traced((params, data, rows.outputs)) and bool(_mixes(problem, params, data)):
        raise RuntimeError(RESULTS[RESULTS.coupled_samples])
    return PullbackMetric(rows, strategy, reported(problem, params, data))


@jit
def _mixes(problem: AbstractProblem, params: Params, data: AnyBatch) -> Array:
    """Return whether a model whose rows are formed sample by sample mixes samples."""
    objective = problem.at(data)
    return mixes_samples(objective, params, objective.outputs(params))


def _certified(factorised: Factorised, vector: Flat, r: Array | None, g: Flat | None) -> Flat:
    """Return the solution; raise a `RuntimeError` if its residual is above √eps."""
    residual = factorised.residual(vector, r, g)
    bad = ~(residual <= tolerance(vector.dtype))
    if is_traced(bad):
        unconverged: Any = RESULTS.unconverged
        return unconverged.error_if(vector, bad)
    if bool(bad):
        raise RuntimeError(
            f"{RESULTS[RESULTS.unconverged]} {factorised.solver}: {float(residual):.1e}."
        )
    return vector
