"""Validates problem, parameters and batch before anything is compiled, each in one place."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.dtypes
import jax.numpy as jnp
import numpy as np

from .._base.stateful import Stateful
from .._base.tree import has_half, is_half, split, structure
from .._base.types import Outputs, Params
from .batch import AnyBatch, Batches, sample_count
from .form import about
from .layout import here
from .problem import AbstractObjective, AbstractProblem, check_stateful


def is_traced(tree: Any) -> bool:
    """Return whether a leaf is a tracer: then nothing can be raised or compared."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))


def validate(
    problem: AbstractProblem, params: Params, batch: Any = None, spread: bool = False
) -> tuple[Params, Any]:
    """Return parameters and batch as arrays; raise if one of the three cannot be used.

    Unless samples may be `spread` over devices, each device is given all of them.
    """
    check_problem(problem)
    point = check_point(problem, params), _arrays(problem.as_batch(batch))
    return point if spread else here(problem, point)


def validate_metric_batch(problem: AbstractProblem, metric_batch: Any, batch: AnyBatch) -> Any:
    """Return the batch of the metric as arrays, `None` if it is that of the loss."""
    if metric_batch is None:
        return None
    if all(part.inputs is None for part in batch.parts):
        raise ValueError(
            "metric_batch is for models with data; this problem was called without a batch."
        )
    return _arrays(problem.as_batch(metric_batch))


@contextlib.contextmanager
def half_explained(params: Params) -> Iterator[None]:
    """Explain a promotion that is forbidden and that the user did not write.

    Leaves in half precision arrive in the model as float32.
    """
    try:
        yield
    except jax.dtypes.TypePromotionError as error:
        if not has_half(params):
            raise
        raise ValueError(
            "params has leaves in half precision, which are computed with in float32, and the "
            "model combines them with numbers in half precision, which "
            "jax_numpy_dtype_promotion='strict' forbids. Make those like the parameters, "
            "x.astype(p.dtype), or hand float32 parameters over."
        ) from error


def check_problem(problem: Any) -> None:
    """Raise a `ValueError` if this is not a problem."""
    if not isinstance(problem, AbstractProblem):
        raise ValueError(
            "problem must be a pullback.Composite(model=..., loss=..., metric=...), or a "
            f"pullback.Terms(...) of several, got {type(problem).__name__}."
        )


def check_point(problem: AbstractProblem, params: Params) -> Params:
    """Return parameters, and state if the problem has one, as JAX arrays; raise if unusable."""
    check_stateful(problem, params)
    if not isinstance(params, Stateful):
        return check_params(params)
    return Stateful(check_params(params.params), params.state)


def check_params(params: Params) -> Params:
    """Return the parameters as JAX arrays of at least float32; raise if nothing can move."""
    params = _arrays(params)
    if not jax.tree.leaves(split(params)[0]):
        leaves = jax.tree.leaves(params)
        kinds = sorted({str(getattr(x, "dtype", type(x).__name__)) for x in leaves})
        raise ValueError(
            f"params has no floating array among its leaves ({', '.join(kinds) or 'none at all'}); "
            "integers and Python numbers are carried as constants. Convert what should move: "
            "jnp.asarray(x, float)."
        )
    if structure(params).size == 0:
        raise ValueError(
            f"params has no parameters: its floating arrays are empty, of shapes "
            f"{list(structure(params).shapes)}."
        )
    return params


def check_batch(problem: AbstractProblem, params: Params, batch: AnyBatch) -> None:
    """Raise a `ValueError` if a batch does not fit the model, which is traced for its shapes."""
    check_inputs(batch)
    outputs, state = eqx.filter_eval_shape(problem.outputs_and_state, params, batch.inputs)
    check_outputs(problem.at(batch), outputs)
    check_state(params, state)


def check_inputs(batch: AnyBatch) -> None:
    """Raise a `ValueError` if leading axes disagree."""
    labels = batch.form.labels if isinstance(batch, Batches) else (None,)
    for label, part in zip(labels, batch.parts, strict=True):
        with about(label):
            sample_count(part)


def check_present(objective: AbstractObjective, what: str) -> None:
    """Raise a `ValueError` if a sample or a term has the weight zero; does nothing under `jit`."""
    for term, weight in zip(objective.terms, objective.weights, strict=True):
        weights = [] if weight is None else [weight]
        if term.has_data and not term.problem.measure.positive:
            weights.append(term.problem.measure.weights(term.count, jnp.result_type(float)))
        if any(not is_traced(w) and not bool(jnp.all(w > 0)) for w in weights):
            raise ValueError(
                f"samples (and terms) of weight zero are absent and have no place in a {what}: "
                "leave them out of the batch."
            )


def like_outputs(outputs: Outputs, given: Any, call: str) -> Any:
    """Return an output vector or covector; raise a `ValueError` if it is not like the outputs."""
    wanted, found = (split(tree)[0] for tree in (outputs, given))
    shapes = lambda tree: [jnp.shape(x) for x in jax.tree.leaves(tree)]
    same = jax.tree.structure(wanted) == jax.tree.structure(found)
    if not same or shapes(wanted) != shapes(found):
        words = [f"{jax.tree.structure(x)} of shapes {shapes(x)}" for x in (wanted, found)]
        raise ValueError(f"{call}: expected a tree like the outputs, {words[0]}; got {words[1]}.")
    return given


def check_outputs(objective: AbstractObjective, outputs: Outputs) -> None:
    """Raise a `ValueError` if the outputs (or their shapes) are none of a model on the batch."""
    parts = objective.parts(outputs)
    for label, term, part in zip(objective.labels or (None,), objective.terms, parts, strict=True):
        with about(label):
            _check_outputs(term, part)


def _check_outputs(objective: AbstractObjective, outputs: Outputs) -> None:
    """Raise a `ValueError` if the outputs of one term (or their shapes) are none of a model."""
    arrays = [x for x in jax.tree.leaves(outputs) if hasattr(x, "dtype")]
    if not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays):
        raise ValueError("the model returns no floating array: nothing to differentiate.")
    short = sorted({str(x.dtype) for x in arrays if is_half(x.dtype)})
    if short:
        raise ValueError(
            f"the outputs of the model are {', '.join(short)}, although parameters and inputs are "
            "given to it in float32 or more, which the linear algebra needs. Compute in float32 "
            "inside."
        )
    if not objective.has_data:
        return
    count = objective.count
    bad = [x.shape for x in arrays if x.ndim == 0 or x.shape[0] != count]
    if bad:
        raise ValueError(
            f"the leading axis of every output must be the sample axis, {count} samples, got "
            f"output shapes {bad}. A model of one sample is batched by jax.vmap: "
            "model=lambda params, x: jax.vmap(f, (None, 0))(params, x)."
        )


def check_state(params: Params, state: Any) -> None:
    """Raise a `ValueError` if a new state (or its shapes) cannot take the place of the old one."""
    if not isinstance(params, Stateful):
        return
    describe = lambda x: f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else repr(x)
    (old, like), (new, found) = (jax.tree.flatten(tree) for tree in (params.state, state))
    advice = (
        "The new state must have the structure, shapes and dtypes of the old one. Under jax.vmap a "
        "model of one sample returns one state per sample unless out_axes=(0, None); Flax makes "
        "running statistics in float32, which a model in float64 returns in float64: cast them "
        "before, jax.tree.map(lambda x: x.astype(float), batch_stats)."
    )
    if like != found:
        raise ValueError(f"the model returned a state {found} for a state {like}. {advice}")
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(params.state)]
    for path, a, b in zip(paths, map(describe, old), map(describe, new), strict=True):
        if a != b:
            raise ValueError(f"the model returned state{path}: {b} for {a}. {advice}")


def _arrays(tree: Any) -> Any:
    def convert(x):
        x = jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x
        # There is no linear algebra in half precision, and the Jacobian needs the digits, too.
        return x.astype(jnp.float32) if eqx.is_array(x) and is_half(x.dtype) else x

    return jax.tree.map(convert, tree)
