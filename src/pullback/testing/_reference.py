r"""The natural gradient written down naively: dense, in float64, with NumPy, and sharing no code
with the fast path.

\[ J = \partial z/\partial\theta, \quad M = \mathrm{blockdiag}(w_i M_i), \quad G = J^\top M J, \quad
g = \partial L/\partial\theta, \quad \delta = R^{-1} h(\tilde A^\top \tilde A)\, R^{-\top} g, \quad
\tilde A = M^{1/2} J R^{-1}, \quad W = R^\top R . \]

Complex numbers are pairs, real part first: P and the outputs count real numbers. `J` is a Jacobian
of the batched model, `M` comes from `metric.apply` on basis vectors, `g` from
`jax.grad` of the total loss. It costs what it costs, and it knows no grading: for problems of a few
dozen numbers, away from saturation.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .._base.stateful import Stateful
from .._base.types import Covector, Params, Vector
from .._problem.composite import Composite
from .._problem.measure import Mean, Sum, Weights
from .._problem.terms import Terms
from ..inverse import AbstractInverse, MoorePenrose
from ..metric import AbstractLikelihood


class Reference(NamedTuple):
    """What the naive computation says, in float64."""

    vector: Vector
    """δ, of the structure of the parameters (`None` where they carry a leaf)."""
    rank: int
    """The rank of A that the inverse keeps."""
    matrix: np.ndarray
    """G, (P, P)."""
    covector: Covector
    """g, in the convention of `jax.grad`."""
    value: float
    """L."""
    jacobian: np.ndarray
    """J, (N k, P), sample by sample."""
    metric: np.ndarray
    """M, (N k, N k), with the weights of the measure."""
    spectrum: np.ndarray
    """The singular values of A in the gauge, largest first."""


def reference_natural_gradient(
    problem: Composite | Terms,
    params: Params,
    batch: Any = None,
    inverse: AbstractInverse | None = None,
    metric_batch: Any = None,
) -> Reference:
    """Return the natural gradient, dense and slow, to compare with.

    **Arguments:**

    - `problem`, `params`, `batch`: as for `natural_gradient`.
    - `inverse`: any inverse, in any gauge; defaults to `MoorePenrose()`.
    - `metric_batch`: what the metric is averaged over, if not over `batch`.
    """
    inverse = MoorePenrose() if inverse is None else inverse
    value, g, jacobian, metric, unravel = dense_parts(problem, params, batch, metric_batch)
    gauge = np.linalg.cholesky(dense_gauge(inverse.gauge, g.size, params))
    delta, rank, spectrum = dense_solve(square_root(metric) @ jacobian, g, inverse, gauge)
    matrix = jacobian.T @ metric @ jacobian
    return Reference(
        unravel(jnp.asarray(delta)),
        rank,
        matrix,
        jax.tree.map(jnp.conj, unravel(jnp.asarray(g))),
        value,
        jacobian,
        metric,
        spectrum,
    )


def dense_parts(
    problem: Composite | Terms, params: Params, batch: Any, metric_batch: Any = None
) -> tuple[Any, ...]:
    """L, g, J and M as NumPy arrays, and the map from flat vectors to trees: what does not depend
    on the inverse.
    """
    if isinstance(problem, Terms):
        return _dense_terms(problem, params, batch, metric_batch)
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            "the reference is computed in float64: "
            'jax.config.update("jax_enable_x64", True) before any array is made.'
        )
    params = _double(params)
    moving, carried = eqx.partition(params, eqx.is_inexact_array)
    if problem.stateful:
        still = jax.tree.map(lambda _: None, params.state)
        moving = Stateful(moving.params, still)
        carried = Stateful(carried.params, params.state)
    flat, split_up = ravel_pytree(_in_pairs(moving))
    unravel = lambda flat: _whole(split_up(flat), moving)
    inputs, targets, weights, _ = _present(problem, batch)
    metric_inputs, metric_targets, metric_weights, places = _present(
        problem, batch if metric_batch is None else metric_batch
    )

    def loss(flat):
        return _total(problem, eqx.combine(unravel(flat), carried), inputs, targets, weights)

    def outputs(flat):
        z = eqx.filter(
            _in_pairs(_outputs(problem, eqx.combine(unravel(flat), carried), metric_inputs)),
            eqx.is_inexact_array,
        )
        return _by_sample(z, len(places))

    def everything(flat):
        z = _outputs(problem, eqx.combine(unravel(flat), carried), metric_inputs)
        y = _in_pairs(metric_targets) if _has_complex(z) else metric_targets
        blocks = _metric_blocks(problem, _in_pairs(z), y, metric_weights, places)
        return jax.value_and_grad(loss)(flat), jax.jacfwd(outputs)(flat), blocks

    (value, g), jacobian, blocks = jax.jit(everything)(flat)
    return (
        float(value),
        np.asarray(g),
        np.asarray(jacobian),
        _block_diagonal(np.asarray(blocks)),
        unravel,
    )


def _by_sample(z: Any, count: int) -> Any:
    """The outputs of a batch in one vector, sample by sample."""
    return jnp.concatenate([x.reshape(count, -1) for x in jax.tree.leaves(z)], axis=1).ravel()


def _is_complex(x: Any) -> bool:
    return eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.complexfloating)


def _has_complex(tree: Any) -> bool:
    return any(_is_complex(x) for x in jax.tree.leaves(tree))


def _in_pairs(tree: Any) -> Any:
    """Real and imaginary parts in a last axis, for complex leaves."""
    pair = lambda x: jnp.stack([x.real, x.imag], axis=-1) if _is_complex(x) else x
    return jax.tree.map(pair, tree)


def _whole(tree: Any, like: Any) -> Any:
    """The inverse of `_in_pairs`."""
    whole = lambda old, x: x[..., 0] + 1j * x[..., 1] if _is_complex(old) else x
    with jax.numpy_dtype_promotion("standard"):
        return jax.tree.map(whole, like, tree)


def _dense_terms(problem: Terms, params: Params, batch: Any, metric_batch: Any) -> tuple[Any, ...]:
    """The same of several terms: losses add, Jacobians stack, metrics are diagonal blocks."""
    keys = range(problem.form.count) if problem.form.names is None else problem.form.names
    value, g, rows, blocks, unravel = 0.0, 0.0, [], [], None
    for key, term in zip(keys, problem.terms, strict=True):
        weight = float(problem.weights[key])
        other = None if metric_batch is None else metric_batch[key]
        own, slope, jacobian, metric, unravel = dense_parts(term, params, batch[key], other)
        value, g = value + weight * own, g + weight * slope
        rows.append(jacobian)
        blocks.append(weight * metric)
    whole = np.zeros((sum(map(len, blocks)),) * 2)
    start = 0
    for block in blocks:
        whole[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return value, g, np.concatenate(rows), whole, unravel


def _double(tree: Any) -> Any:
    def one(x):
        x = jnp.asarray(x) if isinstance(x, np.ndarray) else x
        if not eqx.is_inexact_array(x):
            return x
        real = jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(jnp.float64 if real else jnp.complex128)

    return jax.tree.map(one, tree)


def _present(problem: Composite, batch: Any) -> tuple[Any, Any, Any, list[int]]:
    """Inputs and targets of the samples that are there, their weights, and their places in the
    batch.
    """
    if batch is None:
        return None, None, None, [0]
    inputs, targets = (*_double(tuple(batch)), None)[:2]
    if inputs is None:
        return None, targets, None, [0]
    count = next(x.shape[0] for x in jax.tree.leaves(inputs) if eqx.is_array(x))
    if isinstance(problem.measure, Weights):
        weights = np.asarray(problem.measure.values, float)
    else:
        weights = np.full(count, {Mean: 1 / count, Sum: 1.0}[type(problem.measure)])
    places = [i for i in range(count) if weights[i] > 0 or problem.coupled]
    take = lambda x: x[np.asarray(places)] if eqx.is_array(x) else x
    return jax.tree.map(take, inputs), jax.tree.map(take, targets), weights[places], places


def _outputs(problem: Composite, params: Any, inputs: Any) -> Any:
    data = () if inputs is None else (inputs,)
    if not problem.stateful:
        return problem.model(params, *data)
    return problem.model(params.params, jax.tree.map(lambda x: x, params.state), *data)[0]


def _total(problem: Composite, params: Any, inputs: Any, targets: Any, weights: Any) -> Any:
    z = _outputs(problem, params, inputs)
    if problem.loss is None:
        assert isinstance(problem.metric, AbstractLikelihood)
        z, targets = (_in_pairs(z), _in_pairs(targets)) if _has_complex(z) else (z, targets)
        if weights is None:
            return problem.metric.negative_log_likelihood(z, targets)
        values = []
        for i in range(len(weights)):
            take = lambda x, i=i: x[i] if eqx.is_array(x) else x
            values.append(
                problem.metric.negative_log_likelihood(
                    jax.tree.map(take, z), jax.tree.map(take, targets)
                )
            )
        values = jnp.stack(values)
    else:
        values = problem.loss(z) if targets is None else problem.loss(z, targets)
    return values if values.ndim == 0 else jnp.sum(jnp.asarray(weights) * values)


def _metric_blocks(
    problem: Composite, z: Any, targets: Any, weights: Any, places: list[int]
) -> Any:
    """The weighted M of each sample; one block for a metric on the whole batch."""
    if weights is None:
        return _basis(problem.metric.observe(targets, jnp.asarray(0)), z)[None]
    if problem.metric.couples_samples:
        whole = _basis(problem.metric.weigh(jnp.asarray(weights)), z)
        flat, unravel = ravel_pytree(eqx.filter(z, eqx.is_inexact_array))
        order = _by_sample(unravel(jnp.arange(flat.size, dtype=flat.dtype)), len(places))
        return whole[jnp.ix_(order.astype(int), order.astype(int))][None]
    blocks = []
    for i, place in enumerate(places):
        take = lambda x, i=i: x[i] if eqx.is_array(x) else x
        metric = problem.metric.observe(jax.tree.map(take, targets), jnp.asarray(place))
        blocks.append(weights[i] * _basis(metric, jax.tree.map(take, z)))
    return jnp.stack(blocks)


def _block_diagonal(blocks: np.ndarray) -> np.ndarray:
    count, size, _ = blocks.shape
    dense = np.zeros((count, size, count, size))
    for i, block in enumerate(blocks):
        dense[i, :, i, :] = block
    return dense.reshape(count * size, count * size)


def _basis(metric: Any, z: Any) -> Any:
    """M(z) as a matrix on the ravelled floating leaves."""
    flat, unravel = ravel_pytree(eqx.filter(z, eqx.is_inexact_array))
    columns = jax.vmap(lambda e: ravel_pytree(metric.apply(z, unravel(e)))[0])(jnp.eye(flat.size))
    return columns.T


def square_root(metric: np.ndarray) -> np.ndarray:
    """M^{1/2}, eigenvalues at the level of rounding being zero."""
    values, vectors = np.linalg.eigh((metric + metric.T) / 2)
    noise = 10 * len(values) * np.finfo(float).eps * values[-1]
    return (vectors * np.sqrt(np.where(values > noise, values, 0.0))) @ vectors.T


def dense_gauge(gauge: Any, size: int, params: Any = None) -> np.ndarray:
    """W; a real weight of a complex parameter is one of both parts."""
    if gauge is None:
        return np.eye(size)
    if hasattr(gauge, "as_matrix") or hasattr(gauge, "matrix"):
        return np.asarray(
            gauge.as_matrix() if hasattr(gauge, "as_matrix") else gauge.matrix(), float
        )
    if eqx.is_array(gauge) and gauge.shape == (size, size):
        return np.asarray(gauge, float)
    weights, leaves = jax.tree.leaves(gauge), jax.tree.leaves(params)
    if _has_complex(params) and len(weights) == len(leaves):
        both = lambda w, p: w * (1 + 1j) if _is_complex(p) and not _is_complex(w) else w
        pairs = zip(map(np.asarray, weights), leaves, strict=True)
        weights = [np.asarray(_in_pairs(jnp.asarray(both(w, p)))) for w, p in pairs]
    flat = np.concatenate([np.ravel(np.asarray(x, float)) for x in weights])
    return np.diag(np.broadcast_to(flat, size))


def dense_solve(
    a: np.ndarray, g: np.ndarray, inverse: AbstractInverse, cholesky: np.ndarray
) -> tuple[np.ndarray, int, np.ndarray]:
    """Return δ, the rank and the singular values."""
    dense = dense_inverse(a, inverse, cholesky)
    return dense.matrix @ g, dense.rank, dense.spectrum


class DenseInverse(NamedTuple):
    """An inverse of G = AᵀA as a matrix."""

    matrix: np.ndarray
    """R⁻¹ h(ÃᵀÃ) R⁻ᵀ, (P, P)."""
    projection: np.ndarray
    """On what is kept, in orthonormal coordinates of the gauge, (P, P)."""
    rank: int
    spectrum: np.ndarray
    """The singular values of Ã, largest first."""


def dense_inverse(
    a: np.ndarray, inverse: AbstractInverse, cholesky: np.ndarray, damping: float | None = None
) -> DenseInverse:
    """Return h(G) for any filter; with a damping, 1/(s² + λ) on what a pseudo-inverse keeps.

    The filter, the cut-off and h₀ are the mathematics of the inverse, and are taken from it. A
    singular value at the level of rounding is a direction of the kernel.
    """
    rows = np.linalg.solve(cholesky, a.T).T
    _, s, vt = np.linalg.svd(rows, full_matrices=True)
    rounding = max(a.shape) * np.finfo(float).eps * s[0]
    cutoff = inverse.cutoff(jnp.asarray(s[0]), a.shape)
    kept = np.asarray(inverse.kept(jnp.asarray(s), cutoff))
    h = np.asarray(inverse.filter(jnp.asarray(s), cutoff))
    kernel = float(inverse.kernel)
    if not inverse.pseudo_inverse:
        h = np.where(s > rounding, h, kernel)
    if damping is not None:
        h = np.where(kept, 1 / (s**2 + damping), 0.0 if damping == 0 else 1 / damping)
        kernel = 0.0 if damping == 0 else 1 / damping
    missing = vt.shape[0] - s.size
    h = np.concatenate([h, np.full(missing, kernel)])
    selected = vt[: s.size][kept]
    frame = np.linalg.solve(cholesky.T, vt.T)
    return DenseInverse((frame * h) @ frame.T, selected.T @ selected, int(kept.sum()), s)
