"""A fuzzed problem for pullback: the model as a JAX function, the metric, the call."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import pullback
from pullback import metric as m
from pullback import solver as s

from .geometry import EDGES, METRICS
from .problem import Leaf, Problem, Structure, Values


class Model(eqx.Module):
    """The program of a structure; two of the same structure are one to the compiler."""

    structure: Structure = eqx.field(static=True)

    def __call__(self, params: Any, x: Any = None) -> Any:
        """Return the outputs of a batch."""
        structure = self.structure
        leaves = named_leaves(structure.layout, params)
        if x is None:
            return arranged(structure, run(structure, leaves, None))
        z = jax.vmap(lambda one: run(structure, leaves, one))(x)
        return arranged(structure, z)


def long(structure: Structure) -> str:
    """Return the dtype with which a model computes."""
    return {"float64": "complex128", "float32": "complex64"}[structure.dtype]


def run(structure: Structure, params: dict[str, Any], x: Any) -> Any:
    """Return the output vector of one sample."""
    h = jnp.ones(structure.inputs, structure.dtype) if x is None else x
    if structure.is_complex:
        h = h.astype(long(structure))
        params = {k: p if p is None else _complex(structure, p) for k, p in params.items()}
    functions = {
        "tanh": jnp.tanh,
        "softplus": jax.nn.softplus,
        "sin": jnp.sin,
        "square": lambda h: h * h,
        "cube": lambda h: h * h * h,
        "exp": jnp.exp,
    }
    for op, *args in structure.program:
        if op == "affine":
            names, bias = args
            h = _matrix([params[name] for name in names]) @ h
            h = h if bias is None else h + params[bias]
        elif op == "act":
            h = functions[args[0]](h)
        elif op == "scale":
            h = params[args[0]] * h
        elif op == "powers":
            h = jnp.concatenate([jnp.ones_like(h), *(h**k for k in range(1, args[0] + 1))])
        elif op == "softmax":
            h = jax.nn.softmax(h)
        elif op == "shared":
            power, *shared = args
            for name in shared:
                h = h + jnp.asarray(2.0**power, h.dtype) * jnp.sum(params[name])
        elif op in COMPLEX:
            h = COMPLEX[op](h)
        else:
            h = jnp.zeros_like(h)
    return h


COMPLEX: dict[str, Callable[[Any], Any]] = {
    "real": jnp.real,
    "abs2": lambda h: jnp.real(h) ** 2 + jnp.imag(h) ** 2,
    "conj": jnp.conj,
    "pairs": lambda h: h,
}
"""Functions of complex numbers; of complex outputs pairs are made by pullback."""


def _complex(structure: Structure, leaf: Any) -> Any:
    """Return a leaf that moves as complex numbers; all others as they are."""
    moves = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)
    return jnp.asarray(leaf).astype(long(structure)) if moves else leaf


def _matrix(parts: list[Any]) -> Any:
    total = jnp.asarray(parts[0])
    for part in parts[1:]:
        total = total + part
    return total


def arranged(structure: Structure, z: Any) -> Any:
    """Return the outputs in the form that the metric takes."""
    half = structure.outputs // 2
    if structure.metric == "mean_scale":
        return {"mean": z[..., :half], "log_scale": z[..., half:]}
    if structure.metric == "wasserstein":
        return {"mean": z[..., :half], "scale": z[..., half:]}
    if structure.metric in ("product", "independent"):
        return {"a": z[..., :3], "b": z[..., 3:]}
    return z[..., 0] if structure.metric == "scores" else z


def named_leaves(layout: Any, tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their names in the layout."""
    if isinstance(layout, str):
        return {layout: tree}
    kind, *items = layout
    parts = [tree[f"k{i}"] for i in range(len(items))] if kind == "dict" else list(tree)
    found = {}
    for item, part in zip(items, parts, strict=True):
        found.update(named_leaves(item, part))
    return found


def tree_of(layout: Any, leaves: dict[str, Any]) -> Any:
    """Return the tree of a layout."""
    if isinstance(layout, str):
        return leaves[layout]
    kind, *items = layout
    parts = [tree_of(item, leaves) for item in items]
    if kind == "dict":
        return {f"k{i}": part for i, part in enumerate(parts)}
    return parts if kind == "list" else tuple(parts)


def leaf_value(leaf: Leaf, values: Values, dtype: str) -> Any:
    """Return what stands in the parameters at a leaf."""
    if leaf.kind == "numpy":
        return np.asarray(values.params[leaf.name]).astype(jnp.dtype(dtype))
    if leaf.kind == "complex":
        both = (np.real(values.params[leaf.name]), np.imag(values.params[leaf.name]))
        return _joined(*both, dtype)
    if leaf.kind == "float":
        return jnp.asarray(values.params[leaf.name]).astype(dtype)
    carried = {
        "int": lambda: jnp.arange(3, dtype=jnp.int32),
        "bool": lambda: np.array([True, False]),
        "none": lambda: None,
        "python": lambda: 2.5,
        "text": lambda: "carried",
    }
    return carried[leaf.kind]()


def _joined(real: Any, imaginary: Any, dtype: str) -> Any:
    """Return complex numbers; a product with i would make NaN of an infinity."""
    return jax.lax.complex(*(jnp.asarray(part).astype(dtype) for part in (real, imaginary)))


# ---- losses -------------------------------------------------------------------------------------


def _rows(x: Any) -> Any:
    return jnp.sum(x.reshape(x.shape[0], -1), axis=1)


def _flat(z: Any) -> Any:
    order = ("mean", "log_scale", "scale", "a", "b")
    leaves = [z[k] for k in order if k in z] if isinstance(z, dict) else [z]
    return jnp.concatenate([x[..., None] if x.ndim == 1 else x for x in leaves], axis=-1)


def _one(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the loss of a batch, and of a model without data."""

    def batched(z, y=None):
        z = z if not isinstance(z, dict) else _flat(z)
        if z.ndim == 1 and y is not None and y.ndim == 2:
            z = z[:, None]
        return _rows(loss(z, y))

    return batched


def _picked(z: Any, y: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(z, axis=-1), y[:, None], axis=-1)


def _mean_scale(z: Any, y: Any) -> Any:
    half = z.shape[-1] // 2
    mean, log_scale = z[..., :half], z[..., half:]
    return ((y - mean) * jnp.exp(-log_scale)) ** 2 / 2 + log_scale


def _product(z: Any, y: Any) -> Any:
    label = y[:, 0].astype(jnp.int32)
    first = _picked(z[:, :3], label)
    return first + jnp.sum((z[:, 3:] - y[:, 1:]) ** 2 / 2, axis=-1, keepdims=True)


def _log_sum_exp(z: Any, y: Any) -> Any:
    return jax.nn.logsumexp(z, axis=-1, keepdims=True) - jnp.sum(y * z, axis=-1, keepdims=True)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "square": _one(lambda z, y: (z - y) ** 2 / 2),
    "linear": _one(lambda z, y: z * y),
    "bernoulli": _one(lambda z, y: (1 - y) * jax.nn.softplus(z) + y * jax.nn.softplus(-z)),
    "categorical": _one(_picked),
    "soft": _one(lambda z, y: -y * jax.nn.log_softmax(z, axis=-1)),
    "poisson": _one(lambda z, y: jnp.exp(z) - y * z),
    "mean_scale": _one(_mean_scale),
    "cosh": _one(lambda z, y: jnp.cosh(z - y)),
    "log_sum_exp": _one(_log_sum_exp),
    "logistic": _one(lambda z, y: jax.nn.softplus(z) - y * z),
    "exponential": _one(lambda z, y: jnp.exp(z) - y * z),
    "product": _one(_product),
}


def _parts(z: Any) -> Any:
    """Return real and imaginary part of complex outputs (N, q) or (N,), in turn."""
    pairs = jnp.stack([z.real, z.imag], axis=-1)
    return pairs.reshape(z.shape[0], -1)


def _of_parts(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda z, y: loss(_parts(z), _parts(y))


PARTED = {name: _of_parts(LOSSES[name]) for name in ("square", "linear")}
"""Losses of complex outputs."""


class WithoutData(eqx.Module):
    """A loss of the outputs alone: the targets are part of it."""

    name: str = eqx.field(static=True)
    y: Any

    def __call__(self, z: Any) -> Any:
        """Return the loss."""
        z = _flat(jax.tree.map(lambda x: x[None], z))
        return LOSSES[self.name](z, self.y[None])[0]


# ---- the pieces ---------------------------------------------------------------------------------


def _curved(z: Any) -> Any:
    return jnp.eye(z.shape[0], dtype=z.dtype) + z[:, None] * z[None, :]


def _rank_one(z: Any) -> Any:
    return z[:, None] * z[None, :]


def _cosh_potential(z: Any) -> Any:
    return jnp.sum(jnp.cosh(z)) + jnp.sum(z) ** 2


def _softplus_sum(z: Any) -> Any:
    return jnp.sum(jax.nn.softplus(z))


def _exp_sum(z: Any) -> Any:
    return jnp.sum(jnp.exp(z))


def _cosh_loss(z: Any, y: Any) -> Any:
    return jnp.sum(jnp.cosh(z - y))


def _exp_divergence(u: Any, z: Any) -> Any:
    return jnp.sum(jnp.exp(u) - jnp.exp(z) - jnp.exp(z) * (u - z))


def metric_of(structure: Structure, values: Values) -> m.AbstractMetric:
    """Return the metric."""
    constant = {k: jnp.asarray(v).astype(structure.dtype) for k, v in values.constants.items()}
    makers: dict[str, Callable[[], m.AbstractMetric]] = {
        "euclidean": lambda: m.Euclidean(constant["scale"]),
        "gaussian": lambda: m.Gaussian(constant["covariance"]),
        "bernoulli": m.Bernoulli,
        "poisson": m.Poisson,
        "categorical": m.Categorical,
        "soft": m.Categorical,
        "mean_scale": m.GaussianMeanScale,
        "weighted": lambda: m.Weighted(m.Bernoulli(), constant["scale"]),
        "product": lambda: m.Product({"a": m.Categorical(), "b": m.Euclidean(2.0)}),
        "independent": lambda: m.ProductLikelihood({"a": m.Categorical(), "b": m.Gaussian(0.5)}),
        "masked": lambda: m.Masked(m.Bernoulli(), jnp.arange(structure.outputs) % 2 == 0),
        "sum": lambda: m.Sum((m.Categorical(), m.Euclidean(constant["scale"]))),
        "family_logistic": lambda: m.ExponentialFamily(_softplus_sum),
        "family_softmax": lambda: m.ExponentialFamily(jax.nn.logsumexp),
        "family_exp": lambda: m.ExponentialFamily(_exp_sum),
        "bregman_cosh": lambda: m.Bregman(_cosh_potential),
        "bregman_softmax": lambda: m.Bregman(jax.nn.logsumexp),
        "divergence": lambda: m.Divergence(_exp_divergence),
        "hessian_cosh": lambda: m.LossHessian(_cosh_loss),
        "hessian_logistic": lambda: m.LossHessian(m.Bernoulli()),
        "hessian_categorical": lambda: m.LossHessian(m.Categorical()),
        "riemannian": lambda: m.Riemannian(_curved),
        "riemannian_rank_one": lambda: m.Riemannian(_rank_one),
        "empirical": lambda: m.EmpiricalFisher(m.Bernoulli()),
        "graph": lambda: m.WassersteinGraph(EDGES),
        "wasserstein": m.WassersteinGaussian,
        "scores": m.Scores,
    }
    return makers[structure.metric]()


def solver_of(name: str) -> s.AbstractSolver:
    """Return the solver."""
    return {"SVD": s.SVD, "Dual": s.Dual, "Primal": s.Primal, "Krylov": s.Krylov, "Auto": s.Auto}[
        name
    ]()


def inverse_of(structure: Structure, values: Values) -> pullback.AbstractInverse:
    """Return the inverse."""
    gauge: Any = None
    if structure.gauge == "number":
        gauge = jnp.asarray(float(np.ravel(values.gauge)[0]), structure.dtype)
    elif structure.gauge == "diagonal":
        gauge, start = {}, 0
        assert values.gauge is not None
        for leaf in structure.leaves:
            gauge[leaf.name] = None
            if leaf.moves:
                part = values.gauge[start : start + leaf.size]
                start += leaf.size
                if leaf.kind == "complex":
                    both = part.reshape(2, *leaf.shape)
                    gauge[leaf.name] = _joined(*both, structure.dtype)
                else:
                    part = jnp.asarray(part.reshape(leaf.shape))
                    gauge[leaf.name] = part.astype(structure.dtype)
        gauge = tree_of(structure.layout, gauge)
    if structure.inverse == "tikhonov":
        return pullback.Tikhonov(values.damping, gauge=gauge)
    if structure.inverse == "rank":
        return pullback.TruncatedRank(structure.rank, gauge=gauge)
    rtol = values.rtol if structure.inverse == "rtol" else None
    return pullback.MoorePenrose(rtol, gauge=gauge)


def compute(problem: Problem) -> pullback.NaturalGradient:
    """Return what pullback makes of a problem; raises what pullback raises."""
    structure, values = problem.structure, problem.values
    dtype = structure.dtype
    leaves = {leaf.name: leaf_value(leaf, values, dtype) for leaf in structure.leaves}
    params = tree_of(structure.layout, leaves)
    made = [term_of(part.structure, part.values) for part in problem.parts]
    whole, batch = made[0]
    if structure.terms:
        weights = tuple(part.weight for part in problem.parts)
        whole = pullback.Terms(tuple(term for term, _ in made), weights)
        batch = tuple(part for _, part in made)
    others = None if values.others is None else (jnp.asarray(values.others).astype(dtype),)
    return pullback.natural_gradient(
        whole,
        params,
        batch,
        inverse=inverse_of(structure, values),
        solver=solver_of(structure.solver),
        metric_batch=others,
    )


def term_of(structure: Structure, values: Values) -> tuple[pullback.Composite, Any]:
    """Return a term, and its batch."""
    dtype = structure.dtype
    measure = {
        "mean": pullback.Mean,
        "sum": pullback.Sum,
        "weights": lambda: pullback.Weights(jnp.asarray(values.w).astype(dtype)),
    }[structure.measure]()
    targets = None
    if values.y is not None:
        whole = METRICS[structure.metric].targets == "label"
        targets = jnp.asarray(values.y).astype(jnp.int32 if whole else dtype)
        if structure.metric == "independent" and structure.loss is None:
            # A label that is not finite is none.
            labels = np.nan_to_num(values.y[:, 0], nan=-1, posinf=-1, neginf=-1)
            targets = {"a": jnp.asarray(labels.astype(np.int32)), "b": targets[:, 1:]}
        if structure.complex_outputs:
            targets = _joined(values.y[:, ::2], values.y[:, 1::2], dtype)
    loss: Any = None
    if structure.loss is not None:
        loss = (PARTED if structure.complex_outputs else LOSSES)[structure.loss]
        if structure.samples == 0:
            loss = WithoutData(structure.loss, targets)
    composite = pullback.Composite(
        Model(structure),
        loss,
        metric_of(structure, values),
        measure,
        holomorphic=structure.holomorphic,
    )
    batch = None
    if structure.samples:
        batch = (jnp.asarray(values.x).astype(dtype), targets)
    return composite, batch


def flat_vector(structure: Structure, vector: Any) -> np.ndarray:
    """Return a vector on the parameters as float64; raises if it is not like the parameters."""
    found = named_leaves(structure.layout, vector)
    parts = []
    for leaf in structure.leaves:
        part = found[leaf.name]
        if not leaf.moves:
            if part is not None:
                raise ValueError(f"the vector has {part!r} at the carried leaf {leaf.name}")
            continue
        dtype = long(structure) if leaf.kind == "complex" else structure.dtype
        if part.shape != leaf.shape or part.dtype != jnp.dtype(dtype):
            raise ValueError(
                f"the vector has {part.dtype}{part.shape} at the leaf {leaf.name}, "
                f"{dtype}{leaf.shape}"
            )
        if leaf.kind == "complex":
            parts += [np.asarray(x).astype(np.float64).ravel() for x in (part.real, part.imag)]
        else:
            parts.append(np.asarray(part).astype(np.float64).ravel())
    return np.concatenate(parts) if parts else np.zeros(0)
