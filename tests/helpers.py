"""The registries METRICS x SOLVERS x INVERSES x MODELS, whose whole product is tested. Add a line
for yours; a name can be given once.
"""

import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from registry_metrics import METRICS as METRICS
from registry_metrics import Registry

import pullback as pb
from pullback import testing

SAMPLES, INPUTS = 4, 2

SOLVERS: dict[str, pb.solver.AbstractSolver] = Registry()
SOLVERS["svd"] = pb.solver.SVD()
SOLVERS["primal"] = pb.solver.Primal()
SOLVERS["dual"] = pb.solver.Dual()
SOLVERS["krylov"] = pb.solver.Krylov()
SOLVERS["auto"] = pb.solver.Auto()

# Each from the parameters, whose structure a gauge may have.
INVERSES: dict[str, Callable] = Registry()
INVERSES["moore-penrose"] = lambda params: pb.MoorePenrose()
INVERSES["moore-penrose, gauge"] = lambda params: pb.MoorePenrose(gauge=gauge_like(params))
INVERSES["tikhonov"] = lambda params: pb.Tikhonov(0.01)
INVERSES["truncated rank"] = lambda params: pb.TruncatedRank(2)

# Each from the number of outputs and a key.
MODELS: dict[str, Callable[[int, jax.Array], testing.Model]] = Registry()
MODELS["overparametrised"] = lambda outputs, key: testing.tanh_mlp(INPUTS, outputs, 5, key)
MODELS["underparametrised"] = lambda outputs, key: testing.few_parameters(INPUTS, outputs, 2, key)
MODELS["tied weights"] = lambda outputs, key: testing.tied_weights(INPUTS, outputs, 2, key)
MODELS["bottleneck"] = lambda outputs, key: testing.bottleneck(INPUTS, outputs, 1, key)
MODELS["dead unit"] = lambda outputs, key: testing.dead_unit(INPUTS, outputs, 3, key)
MODELS["carried leaves"] = lambda outputs, key: testing.carried_leaves(INPUTS, outputs, 2, key)


def normal(*shape, seed=0, dtype=float):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def gauge_like(params):
    """A positive diagonal of the structure of the parameters."""
    moving = eqx.filter(params, eqx.is_inexact_array)
    return jax.tree.map(lambda x: jnp.linspace(0.5, 2.0, x.size).reshape(x.shape), moving)


def decode(metric, base, raw):
    """Outputs of the structure of `base` (of one sample) from a raw array (N, k), inside the domain
    of the metric.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(base)
    count, start, leaves = raw.shape[0], 0, []
    for path, leaf in paths:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            leaves.append(
                leaf[:count]
                if metric.couples_samples
                else jnp.broadcast_to(leaf[None], (count, *leaf.shape))
            )
            continue
        shape = (count, *leaf.shape[1:]) if metric.couples_samples else (count, *leaf.shape)
        size = int(np.prod(shape[1:]))
        u, start = raw[:, start : start + size].reshape(shape), start + size
        # One form on the batch: a base point of each sample would make the outputs depend on its
        # place.
        leaf = (
            jnp.zeros_like(u)
            if metric.couples_samples
            else jnp.broadcast_to(leaf[None], shape).astype(u.dtype)
        )
        name = jax.tree_util.keystr(path)
        if "covariance" in name:
            frame = jnp.broadcast_to(
                jnp.eye(leaf.shape[-1], dtype=u.dtype), shape
            ) + 0.3 * jnp.tanh(u)
            leaves.append(jnp.einsum("...ab,...bc,...dc->...ad", frame, leaf, frame))
        elif name.endswith((".scale", "'scale']")):
            leaves.append(leaf * jnp.exp(0.3 * jnp.tanh(u)))
        elif isinstance(metric, pb.metric.WassersteinGraph):
            leaves.append(jax.nn.softmax(jnp.log(leaf) + u, axis=-1))
        else:
            leaves.append(0.5 * leaf + u)
    return jax.tree.unflatten(treedef, leaves)


def smooth_loss(z, *targets):
    """One number a sample, of outputs of any structure."""
    leaves = jax.tree.leaves(eqx.filter(z, eqx.is_inexact_array))
    return sum(jnp.sum(jnp.sin(x + 0.3).reshape(x.shape[0], -1), axis=1) for x in leaves)


def make_example(metric_name: str, model_name: str, seed: int = 0) -> testing.Example:
    """A problem with the metric and the model of these names."""
    case = METRICS[metric_name]
    base, targets = case.make_z(), case.make_targets()
    leaves = jax.tree.leaves(eqx.filter(base, eqx.is_inexact_array))
    own = lambda x: x.size // x.shape[0] if case.metric.couples_samples else x.size
    function, params = MODELS[model_name](sum(map(own, leaves)), jax.random.key(seed))
    likelihood = isinstance(case.metric, pb.metric.AbstractLikelihood) and targets is not None
    problem = pb.Composite(
        lambda p, x: decode(case.metric, base, function(p, x)),
        None if likelihood else smooth_loss,
        case.metric,
    )
    stacked = jax.tree.map(lambda y: jnp.broadcast_to(y[None], (SAMPLES, *y.shape)), targets)
    return testing.Example(problem, params, (normal(SAMPLES, INPUTS, seed=seed + 1), stacked))


def flat(tree) -> np.ndarray:
    """The floating leaves in one float64 vector."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return np.concatenate([np.asarray(x, float).ravel() for x in leaves]) if leaves else np.zeros(0)


def distance(found, expected) -> float:
    """The relative distance of two trees."""
    found, expected = flat(found), flat(expected)
    assert found.shape == expected.shape
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def quietly(function, *args, **kwargs):
    """Call without the warning on precision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.PrecisionWarning)
        return function(*args, **kwargs)
