r"""What every metric on the outputs must satisfy, as measured numbers: run it on yours.

\[ S S^\top = M \succeq 0, \quad S\,S^+ = \Pi_{\mathrm{range}(M)}, \quad S^+ = S^\top M^+, \quad
\rho(z + \varepsilon v, z) = \tfrac12\varepsilon^2 v^\top M v + O(\varepsilon^3), \]

under `jit` and `vmap` as without, in float32 as in float64. The dense reference is NumPy's, and
shares no code with the metric but `apply`, which is itself compared with the divergence and with
the likelihood.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._base.tree import Structure, is_coordinate, split, structure
from .._base.types import Outputs
from ..metric import AbstractLikelihood, AbstractMetric, AbstractRoot

EPSILONS = 2.0 ** -np.arange(2, 9)


def check_metric(
    metric: AbstractMetric,
    z: Outputs,
    targets: Any = None,
    *,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> None:
    """Raise an `AssertionError` with the measured numbers if a metric does not keep its promises at
    a point.

    Give float64 outputs (`jax.config.update("jax_enable_x64", True)`), away from saturation: the
    dense reference knows no grading.

    **Arguments:**

    - `metric`: any metric.
    - `z`: the outputs of one sample (of the whole batch if the metric couples samples).
    - `targets`: the targets of the sample, for metrics and likelihoods that look at them.
    - `tolerance`: how large a relative error may be in float64.
    - `seed`: of the random vectors.
    """
    like = structure(z)
    if like.size == 0 or like.dtype != jnp.float64:
        raise ValueError(
            f"check_metric takes float64 outputs, got {like.dtype} with {like.size} entries."
        )
    metric = metric.observe(targets, jnp.asarray(0))
    vectors = jnp.asarray(np.random.default_rng(seed).standard_normal((2, like.size)))
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]) if eqx.is_array(x) else x, z)
    measured = eqx.filter_jit(eqx.filter_vmap(lambda x: _measure(metric, x, vectors, targets)))(
        stacked
    )
    for name, value in measured.items():
        assert np.all(np.isfinite(value)), f"{name} is not finite: {value}."
        _close(f"{name}: two equal samples under vmap", value[0], value[1], tolerance)
    shape = eqx.filter_eval_shape(eqx.filter_vmap(metric.root), stacked).log_scale.shape
    assert shape == measured["scale"].shape, (
        f"log_scale of two stacked roots has shape {shape}, not {measured['scale'].shape}."
    )
    dense = {name: np.asarray(value[0]) for name, value in measured.items()}
    _check_root(metric, dense, np.asarray(vectors), tolerance)
    v, c = (like.unravel(x) for x in vectors)
    alone = eqx.filter_jit(lambda x: (like.ravel(metric.apply(x, v)), metric.lift(x, c)))(z)
    _close("M v: one sample against vmap", alone[0], dense["M"] @ vectors[0], tolerance)
    _close("S⁺ c: one sample against vmap", alone[1], dense["S⁺"] @ vectors[1], tolerance)
    if metric.has_divergence:
        _check_divergence(dense, tolerance)
    if isinstance(metric, AbstractLikelihood) and targets is not None:
        what = "likelihood_lift against the lifted gradient of the negative log-likelihood"
        _close(what, dense["likelihood_lift"], dense["lifted gradient"], tolerance)
        assert dense["admitted"], f"admits(z, targets) is False for targets of {metric!r}."
        if metric.score_in_range:
            what = "score_in_range: S S⁺ c against c, the gradient of the negative log-likelihood"
            _close(what, dense["S"] @ (dense["S⁺"] @ dense["score"]), dense["score"], tolerance)
    if metric.constant:
        _close("constant: M elsewhere against M", dense["M elsewhere"], dense["M"], tolerance)
    for dtype in (jnp.float32, jnp.float64):
        _check_dtype(metric, z, targets, dtype)


def _measure(metric: AbstractMetric, z: Outputs, vectors, targets: Any) -> dict[str, Any]:
    """Everything the metric says, as dense arrays."""
    like, root, (moving, carried) = structure(z), metric.root(z), split(z)
    eye, small = jnp.eye(like.size, dtype=like.dtype), jnp.eye(root.size, dtype=like.dtype)
    over = lambda function, rows: jax.vmap(function)(rows).T
    found = {
        "scale": jnp.exp(root.log_scale),
        "M": over(lambda v: like.ravel(metric.apply(z, like.unravel(v))), eye),
        "M⁺": over(lambda c: like.ravel(metric.sharp(z, like.unravel(c))), eye),
        "S": over(lambda w: like.ravel(root.mv(w)), small),
        "Sᵀ": over(lambda v: root.transpose(like.unravel(v)), eye),
        "S⁺": over(lambda c: root.lift(like.unravel(c)), eye),
    }
    if root.samples is not None:
        found |= _by_sample(root, like, eye)
    if metric.constant:
        moved = eqx.combine(like.unravel(like.ravel(z) + vectors[0]), carried)
        found["M elsewhere"] = over(lambda v: like.ravel(metric.apply(moved, like.unravel(v))), eye)
    if metric.has_divergence:
        x = like.ravel(z)
        step = vectors[0] / jnp.max(jnp.abs(vectors[0])) * (1 + jnp.max(jnp.abs(x))) / 8
        moved = jnp.concatenate([jnp.zeros(1), EPSILONS, -EPSILONS])[:, None] * step[None, :]
        rho = lambda shift: metric.divergence(eqx.combine(like.unravel(x + shift), carried), z)
        found |= {"ρ": jax.vmap(rho)(moved), "step": step, "rounding": jnp.max(jnp.abs(x))}
    if isinstance(metric, AbstractLikelihood) and targets is not None:
        c = jax.grad(lambda x: metric.negative_log_likelihood(eqx.combine(x, carried), targets))(
            moving
        )
        found |= {
            "likelihood_lift": metric.likelihood_lift(z, targets),
            "lifted gradient": root.unit_lift(c),
            "score": like.ravel(c),
            "admitted": jnp.asarray(metric.admits(z, targets), like.dtype),
        }
    return found


def _by_sample(root: AbstractRoot, like: Structure, eye: Any) -> dict[str, Any]:
    """What a root says that is made of one root per sample and a mean that is taken off."""
    samples, mean = root.samples, root.mean
    assert samples is not None

    def plain(v):
        return jax.vmap(lambda root, v: root.unit_transpose(v))(samples, like.unravel(v))

    def centred(v):
        each = plain(v)
        return each if mean is None else each - jnp.tensordot(mean, each, 1)[None]

    scale = jnp.exp(root.log_scale)[:, None]
    whole = scale * jax.vmap(lambda v: plain(v).ravel())(eye).T
    rows = scale * jax.vmap(lambda v: centred(v).ravel())(eye).T
    taken = jnp.zeros(1) if root.removed is None else jax.vmap(like.ravel)(root.removed)
    return {
        "Sᵀ by sample": rows,
        "taken off": jnp.linalg.norm(whole - rows),
        "removed": jnp.linalg.norm(taken),
    }


def _check_root(
    metric: AbstractMetric, dense: dict[str, Any], vectors: np.ndarray, tolerance: float
) -> None:
    matrix, root = dense["M"], dense["S"]
    _close("M against Mᵀ", matrix, matrix.T, tolerance)
    values, frame = np.linalg.eigh((matrix + matrix.T) / 2)
    top = max(values[-1], np.finfo(float).tiny)
    assert values[0] >= -tolerance * top, (
        f"M is not positive semi-definite: eigenvalues from {values[0]:.3e} to {values[-1]:.3e}."
    )
    kept = values > tolerance * top
    if metric.nonsingular:
        assert kept.all(), (
            f"{type(metric).__name__} says it is nonsingular, but M has eigenvalues from "
            f"{values[0]:.3e} to {values[-1]:.3e}."
        )
    frame, values = frame[:, kept], values[kept]
    inverse, onto = (frame / values) @ frame.T, frame @ frame.T
    v, c = vectors
    _close("S Sᵀ v against M v", root @ (root.T @ v), matrix @ v, tolerance)
    _close("Sᵀ against the transpose of S", dense["Sᵀ"], root.T, tolerance)
    if "Sᵀ by sample" in dense:
        _close("Sᵀ against `samples` less `mean`", dense["Sᵀ by sample"], dense["Sᵀ"], tolerance)
        what = "the norm of `removed` against what is taken off the rows"
        _close(what, dense["removed"], dense["taken off"], tolerance)
    _close(
        "S S⁺ c against c, for c in the range of M",
        root @ (dense["S⁺"] @ (matrix @ v)),
        matrix @ v,
        tolerance,
    )
    _close(
        "S S⁺ c against the projection of c on the range of M",
        root @ (dense["S⁺"] @ c),
        onto @ c,
        tolerance,
    )
    _close("S⁺ against Sᵀ M⁺ (least norm)", dense["S⁺"], root.T @ inverse, tolerance)
    _close(
        "M M⁺ c against c, for c in the range of M",
        matrix @ (dense["M⁺"] @ (matrix @ v)),
        matrix @ v,
        tolerance,
    )
    _close("sharp against the pseudo-inverse of M", dense["M⁺"], inverse, tolerance)


def _check_divergence(dense: dict[str, Any], tolerance: float) -> None:
    values, step = dense["ρ"], dense["step"]
    half = float(step @ dense["M"] @ step) / 2
    size = max(half, float(np.max(np.abs(values))), np.finfo(float).tiny)
    assert abs(values[0]) <= tolerance * size, f"ρ(z, z) = {values[0]:.3e}, not 0."
    assert values.min() >= -tolerance * size, f"the divergence is negative: {values}."
    # Both signs of ε, or the third and fourth order could cancel at one of them and hide the slope.
    errors = np.hypot(*(values[1:].reshape(2, -1) - half * EPSILONS**2))
    noise = 1e-13 * (size + dense["rounding"])  # all that is left along what M does not see
    assert errors[0] <= size + noise, (
        f"|ρ - ε²vᵀMv/2| = {errors[0]:.3e} at ε = {EPSILONS[0]} where ρ = {values[1]:.3e}."
    )
    seen = np.flatnonzero(errors > noise)[-3:]
    if seen.size == 3:
        slope = np.polyfit(np.log(EPSILONS[seen]), np.log(errors[seen]), 1)[0]
        assert slope > 2.8, (
            f"|ρ(z + εv, z) - ε²vᵀMv/2| has order {slope:.2f} in ε, not 3: errors {errors} "
            f"at ε = {EPSILONS}. "
            f"The Hessian of the divergence is not M."
        )


def _check_dtype(metric: AbstractMetric, z: Outputs, targets: Any, dtype: Any) -> None:
    """Only the types are computed, so a strict promotion setting is obeyed, and nothing is
    compiled.
    """
    cast = lambda tree: jax.tree.map(lambda x: x.astype(dtype) if is_coordinate(x) else x, tree)
    z, targets = cast(z), cast(targets)
    metric = metric.observe(targets, jnp.asarray(0))

    def everything(z):
        like, root = structure(z), metric.root(z)
        v = split(z)[0]
        answers = [
            root.log_scale,
            root.mv(root.lift(v)),
            root.transpose(v),
            root.unit_lift(v),
            metric.apply(z, v),
            metric.sharp(z, v),
        ]
        if metric.has_divergence:
            answers.append(metric.divergence(z, z))
        if isinstance(metric, AbstractLikelihood) and targets is not None:
            answers += [
                metric.negative_log_likelihood(z, targets),
                metric.likelihood_lift(z, targets),
            ]
            try:
                answers.append(
                    metric.negative_log_likelihood(z, metric.sample(jax.random.key(0), z))
                )
            except TypeError:  # a family without a sampler says so
                pass
        return answers, like

    try:
        answers, like = eqx.filter_eval_shape(everything, z)
    except jax.dtypes.TypePromotionError as error:  # under strict promotion
        raise AssertionError(f"outputs in {jnp.dtype(dtype)} give mixed dtypes: {error}") from error
    for place, answer in enumerate(answers):
        found = {leaf.dtype for leaf in jax.tree.leaves(answer)}
        assert found == {jnp.dtype(dtype)}, (
            f"outputs in {jnp.dtype(dtype)} give {found} "
            f"(answer {place} of root, apply, sharp, ...)."
        )
    for place in (1, 4, 5):
        _same_structure(answers[place], like)


def _same_structure(tree: Any, like: Structure) -> None:
    found = structure(tree)
    assert found == like, (
        f"a vector or covector has the structure {found}, not that of the outputs, {like}."
    )


def _close(what: str, found: Any, expected: Any, tolerance: float) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}."
    size = max(float(np.max(np.abs(expected), initial=0.0)), np.finfo(float).tiny)
    error = float(np.max(np.abs(found - expected), initial=0.0))
    assert error <= tolerance * max(size, 1e-6), (
        f"{what}: error {error:.3e} where the largest entry is {size:.3e}."
    )
