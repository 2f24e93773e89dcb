"""Outcomes: codes that are data, so that they work under `jit` and `vmap`, with their messages."""

import functools
import operator
from collections import Counter
from typing import Any

import jax.core
import lineax as lx
import numpy as np
from jaxtyping import Array

from .show import is_single, known


# An `eqx.Enumeration` may be extended, which pyright does not know.
class RESULTS(lx.RESULTS):  # pyright: ignore[reportGeneralTypeIssues]
    """The outcome of a solve, a code with a message. Extends `lineax.RESULTS`.

    ```python
    ng = pb.natural_gradient(problem, params, (x, y), throw=False)
    ng.result == pb.RESULTS.successful, ng.message
    ```
    """

    rank_zero = (
        "The pullback metric is zero at this point: no direction changes the outputs. The natural "
        "gradient is the zero vector; of a gradient that is not, nothing is in the range of the "
        "metric (`stats.covector_share` is 0)."
    )
    nonfinite_params = "`params` contains a NaN or an infinity."
    nonfinite_batch = (
        "`batch` contains a NaN or an infinity. Give the sample weight zero "
        "(`measure=pullback.Weights(...)`) to leave it out; remove it from the batch if the model "
        "is `coupled`."
    )
    nonfinite_outputs = (
        "The model returned a NaN or an infinity although `params` and `batch` are finite."
    )
    nonfinite_loss = (
        "The loss, or its differential at the outputs, is not finite although the outputs are. A "
        "penalty is part of the loss."
    )
    bad_metric = (
        "The metric on the outputs is not finite or not positive semi-definite at these outputs."
    )
    nonfinite_jacobian = (
        "The gradient Jᵀc is not finite although the outputs and the differential of the loss are: "
        "the Jacobian of the model is not finite (a square root at zero?), or the product "
        "overflowed; or the gradient of a penalty, or one given in its place, is not finite."
    )
    nonfinite_vector = (
        "The natural gradient overflowed: the inputs are finite, the solution is not. If a damping "
        "is below the rounding of G, damp more, or use `solver=pullback.solver.SVD()`."
    )
    unconverged = (
        "The solver did not reach the solution: the recomputed residual (`stats.residual`) is "
        "above sqrt(eps). Use `solver=pullback.solver.SVD()`, damp with `inverse=Tikhonov(...)`, "
        "or allow an iterative solver more `max_steps`."
    )
    unresolved = (
        "Some samples are saturated: their rows of A lie below what this solver resolves "
        "(`stats.cutoff`), and would be dropped. Use `solver=pullback.solver.SVD()`, which keeps "
        "them, or damp: `inverse=Tikhonov(...)`."
    )
    bad_gauge = (
        "`gauge` is not positive definite: a weighted Moore-Penrose inverse needs an inner product "
        "on the parameters."
    )
    bad_filter = (
        "The filter h(s) of the inverse is negative or not finite at a singular value of A. Return "
        "finite numbers >= 0 from `filter(s, cutoff)`, e.g. `jnp.where(s > cutoff, 1 / s**2, 0.0)`."
        " A damping must be positive; that of a step rule, finite and at least zero."
    )
    bad_preconditioner = (
        "The preconditioner is not symmetric positive definite. `build(rows, damping)` must return "
        "such an action: approximate (G + λ)^(-1/2) on parameters, (K + λ)⁻¹ on rows."
    )
    coupled_samples = (
        "The outputs of a sample change when the sample stands alone: the model mixes samples "
        "(batch normalisation?). Declare it: `Composite(..., coupled=True)`."
    )
    not_holomorphic = (
        "The model is not holomorphic at this point: J(iδ) is not iJ(δ). Leave `holomorphic=True` "
        "out of `Composite(...)`."
    )
    saturated = (
        "Some samples are saturated beyond the range of the floating-point type: the differential "
        "of `loss` underflowed to zero there, and with it their part of the step. Leave `loss` out "
        "of `Composite(...)`, so that the metric's own likelihood is used in closed form, or damp: "
        "`inverse=Tikhonov(...)`."
    )
    nonfinite_field = (
        "The loss, its gradient or its Hessian is not finite at this point of the flow."
    )
    flow_event = "The flow met an event and stopped there, before t1."
    rank_changed = (
        "The flow ran into a change of rank and stopped there: beyond, the field is discontinuous. "
        "Damp it (`NaturalFlow(Tikhonov(...))`), fix the rank (`NaturalFlow(TruncatedRank(k))`), "
        "or continue with `rank=None`."
    )
    left_constraint = "The flow reached the boundary of the constraint and stopped there."
    flow_max_steps = (
        "The flow did not reach t1 in `max_steps` steps. If it is stiff, use an implicit "
        "integrator, `solver=diffrax.Kvaerno5()`; if it slows down, `clock=LogTime()`; otherwise "
        "allow more `max_steps`."
    )
    flow_stalled = (
        "The steps of the flow became too small to advance the time: a singularity, or a field "
        "that is not finite nearby. The state before is returned."
    )
    inner_unconverged = (
        "The inner minimisation did not reach a minimum: its gradient is not small (`residual`), "
        "or its Hessian has a negative eigenvalue (`least`). Allow more `max_steps`, or take a "
        "larger `weight`; a loss without a minimum needs one."
    )
    not_a_divergence = (
        "`divergence` is not one at this point: on the diagonal its value and gradient must be "
        "zero and its Hessian positive semi-definite."
    )
    indefinite = (
        "H + weight · G is not positive semi-definite, so that the quadratic model has no minimum: "
        "take a larger `weight`."
    )
    no_mirror_point = (
        "There is no mirror point: the dual coordinates left their range, or the divergence has no "
        "minimum. Take a larger `weight`."
    )
    not_inverse_of_phi = (
        "`BregmanMirror(phi, inverse)`: the dual coordinates of the new point are not those that "
        "`inverse` was given, so that it does not invert the gradient of `phi`. Correct it, or "
        "leave it out: Newton's method takes its place."
    )
    off_simplex = (
        "`params` is not a probability vector along its last axis: project it, "
        "`params = constraint.Simplex()(params)`."
    )
    not_invertible = (
        "Newton's method did not find parameters with these outputs: the model is not invertible "
        "near the point. Take a smaller `step`."
    )
    bad_targets = (
        "`batch` has targets that the likelihood of the metric does not admit: their loss has no "
        "meaning."
    )
    steep = (
        "Some samples of a saturated model are wrong by so much that their lifted covector is "
        "infinite, or drowns the others."
    )
    blurred = (
        "The scores have a mean so much larger than their spread that the rounding of the mean "
        "decides digits of the solution: the rows of A are differences, known to eps times the "
        "mean. Damp more (`inverse=Tikhonov(...)`), drop more (`MoorePenrose(rtol=...)`), compute "
        "in double precision, or take what all samples have in common (a normaliser) off the "
        "outputs of the model: `Scores` does not see it."
    )
    vanished = (
        "The pullback metric is zero in floating point although the gradient is not: the model is "
        "saturated, or its outputs do not depend on the parameters where the loss does. Damp: "
        "`inverse=Tikhonov(...)`."
    )
    underflow = (
        "The gradient, or its part outside the range of the metric, is smaller than the smallest "
        "floating-point number, and its part of the solution is not. Multiply the loss by a large "
        "number, and divide the solution by it; or compute in double precision."
    )
    flow_unstable = (
        "The flow amplifies errors beyond its tolerance here: the heaviest samples leave "
        "directions open, and samples that weigh far less decide them. It stopped there. For "
        "logistic regression call `linear.Logistic().flow`; otherwise damp the flow "
        "(`NaturalFlow(Tikhonov(...))`), or lower `rtol` to get further."
    )
    flow_kink = (
        "The field of the flow jumps here: the model or the loss has a kink (relu, an absolute "
        "value, a maximum), and the steps shrink in proportion to the tolerance."
    )
    nonfinite_state = (
        "The new state of the model contains a NaN, or an infinity where the old one is finite. "
        "Parameters and state are kept."
    )
    nonfinite_direction = (
        "The momentum returned a NaN or an infinity and the natural gradient is finite: as its "
        "direction, its memory, or its limit, which is at least zero. The parameters are kept, and "
        "the memory is that before the first step."
    )
    nonfinite_move = (
        "The step rule returned a move, a loss or a state that is not finite although the natural "
        "gradient is: a rate that is NaN, or parameters that would overflow. The parameters are "
        "kept."
    )
    nonfinite_constraint = (
        "The constraint returned a NaN or an infinity for parameters that are finite."
    )


HARMLESS = (
    RESULTS.successful,
    RESULTS.rank_zero,
    RESULTS.flow_event,
    RESULTS.rank_changed,
    RESULTS.left_constraint,
)
"""The results that `throw=True` does not raise: the answer is right and complete."""


def names_of(codes: Any) -> np.ndarray:
    """Return the names behind the numbers of results."""
    names = {int(item._value): name for name, item in RESULTS._name_to_item.items()}
    codes = np.asarray(codes)
    return np.array([names.get(int(code), str(code)) for code in codes.flat]).reshape(codes.shape)


def outcome(result: RESULTS) -> str:
    """Return the name of a result; how many there are of each if there are several."""
    codes = known(result._value)  # pyright: ignore[reportAttributeAccessIssue]
    if codes is None:
        return "traced"
    names = names_of(codes)
    if names.ndim == 0:
        return names.item()
    return ", ".join(f"{number} {name}" for name, number in Counter(names.flat).most_common())


def describe(result: RESULTS) -> str:
    """Return the name of a result and its message, if there is something to say."""
    name = outcome(result)
    if not is_single(result._value):  # pyright: ignore[reportAttributeAccessIssue]
        return name
    message = RESULTS[result]
    return f"{name}: {message}" if message else name


def failed(result: RESULTS) -> Array:
    """Return whether a result is one that `throw=True` raises."""
    return ~among(result, HARMLESS)


def among(result: RESULTS, codes: tuple[Any, ...]) -> Array:
    """Return whether a result is one of some codes."""
    value = result._value  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(value, jax.core.Tracer):
        value = np.asarray(value)  # nothing to compile
    return functools.reduce(operator.or_, [value == code._value for code in codes])


def successful_if(fine: Any, otherwise: Any) -> Any:
    """Return success where `fine`, and the given code elsewhere."""
    success: Any = RESULTS.successful
    return RESULTS.where(fine, success, otherwise)


class Result(type(RESULTS.successful)):  # pyright: ignore[reportGeneralTypeIssues]
    """A result that prints by its name; those of Equinox print a module and the message."""

    def __repr__(self) -> str:
        name = outcome(self)  # pyright: ignore[reportArgumentType]
        return f"RESULTS.{name}" if name in RESULTS._name_to_item else f"RESULTS({name})"

    def __str__(self) -> str:
        return describe(self)  # pyright: ignore[reportArgumentType]


def _by_name(make: Any) -> Any:
    """Return a function that makes a result, with a result that prints by its name."""

    @functools.wraps(make)
    def named(*args: Any, **options: Any) -> Any:
        return Result(make(*args, **options)._value, RESULTS)

    return staticmethod(named)


# These are all the ways in which a result is made.
RESULTS._name_to_item.update(
    {name: Result(item._value, RESULTS) for name, item in RESULTS._name_to_item.items()}
)
RESULTS.where, RESULTS.promote = _by_name(RESULTS.where), _by_name(RESULTS.promote)
