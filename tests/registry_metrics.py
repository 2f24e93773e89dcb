"""Every metric, at a point where it can be checked: METRICS[name] = (metric, make z, make targets).
Add a line for yours.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pullback import metric as m
from pullback._base.tree import structure


class Case(NamedTuple):
    """A metric, and makers of the outputs and targets of one sample."""

    metric: m.AbstractMetric
    make_z: Callable[[], Any]
    make_targets: Callable[[], Any]


class Registry(dict):
    """A dictionary in which a name can be given once."""

    def __setitem__(self, name, case):
        if name in self:
            raise KeyError(f"{name} is registered already.")
        super().__setitem__(name, case)


METRICS: dict[str, Case] = Registry()


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def positive_definite(*shape, seed=0):
    """Covariance matrices (..., d, d)."""
    x = np.random.default_rng(seed).standard_normal((*shape, shape[-1]))
    return jnp.asarray(x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1]) / 2)


@eqx.filter_jit
def _dense(metric, z):
    like = structure(z)
    return jax.vmap(lambda v: like.ravel(metric.apply(z, like.unravel(v))))(
        jnp.eye(like.size, dtype=like.dtype)
    )


def dense(metric, z):
    """M(z) on the ravelled outputs."""
    return np.asarray(_dense(metric, z))


def compiled(function, *args):
    """One compilation instead of one for each operation."""
    return eqx.filter_jit(function)(*args)


class Head(NamedTuple):
    """Outputs with fields for names, in another order than the alphabet's, and a carried leaf."""

    scale: Any = None
    mean: Any = None
    log_scale: Any = None
    covariance: Any = None
    index: Any = None


def tree(seed=0):
    """Outputs that carry an integer leaf."""
    return {
        "a": normal(2, seed=seed),
        "b": {"c": normal(1, 2, seed=seed + 1)},
        "index": jnp.arange(3),
    }


def add(name, metric, z, targets=lambda: None):
    METRICS[name] = Case(metric, z, targets)


def logistic(z):
    return jnp.sum(jax.nn.softplus(z))


def half_square(u, z=None):
    return jnp.sum((u if z is None else u - z) ** 2) / 2


def weak_loss(z, y):
    """Not convex in z."""
    return jnp.sum(jnp.cos(z) * y)


def curved(z):
    """A positive definite matrix that depends on z."""
    return jnp.eye(3, dtype=z.dtype) + z[:, None] * z[None, :]


def rank_one(z):
    return z[:, None] * z[None, :]


# Elementwise families and the Euclidean metric.
add("euclidean", m.Euclidean(), lambda: normal(3))
add("euclidean scaled tree", m.Euclidean(jnp.asarray(2.5)), tree)
add("bernoulli", m.Bernoulli(), lambda: normal(3), lambda: jnp.array([1, 0, 1]))
add(
    "bernoulli tree",
    m.Bernoulli(),
    tree,
    lambda: {"a": jnp.array([1.0, 0.25]), "b": {"c": jnp.array([[0.0, 1.0]])}, "index": None},
)
add("poisson", m.Poisson(), lambda: normal(3), lambda: jnp.array([0, 2, 1]))
add(
    "poisson tree",
    m.Poisson(),
    tree,
    lambda: {
        "a": jnp.array([3.0, 0.0]),
        "b": {"c": jnp.array([[1.0, 5.0]])},
        "index": jnp.arange(3),
    },
)
# Categorical.
add("categorical", m.Categorical(), lambda: normal(4), lambda: jnp.asarray(2))
add(
    "categorical rows",
    m.Categorical(),
    lambda: {"z": normal(2, 3), "i": jnp.arange(2)},
    lambda: jnp.array([0, 2]),
)
add("categorical soft", m.Categorical(), lambda: normal(3), lambda: jnp.array([0.2, 0.5, 0.3]))
# Gaussian.
add("gaussian", m.Gaussian(), lambda: normal(3), lambda: normal(3, seed=1))
add("gaussian variance tree", m.Gaussian(0.25), tree, lambda: tree(5))
add(
    "gaussian diagonal",
    m.Gaussian(jnp.array([0.5, 2.0])),
    lambda: normal(3, 2),
    lambda: normal(3, 2, seed=1),
)
add(
    "gaussian full",
    m.Gaussian(positive_definite(3)),
    lambda: {"mean": normal(2, 3)},
    lambda: {"mean": normal(2, 3, seed=1)},
)
add(
    "gaussian mean scale",
    m.GaussianMeanScale(),
    lambda: {"mean": normal(2), "log_scale": normal(2, seed=1) / 2},
    lambda: normal(2, seed=2),
)
add(
    "gaussian mean scale named tuple",
    m.GaussianMeanScale(),
    lambda: Head(mean=normal(2, 2), log_scale=normal(2, 2, seed=1) / 2, index=jnp.arange(2)),
    lambda: normal(2, 2, seed=2),
)
add(
    "gaussian mean covariance",
    m.GaussianMeanCovariance(),
    lambda: {"mean": normal(3), "covariance": positive_definite(3)},
    lambda: normal(3, seed=2),
)
add(
    "gaussian mean covariance rows",
    m.GaussianMeanCovariance(),
    lambda: Head(mean=normal(2, 2), covariance=positive_definite(2, 2), index=jnp.arange(2)),
    lambda: normal(2, 2, seed=2),
)
# A distribution given by its probabilities: more values than outputs, and fewer.
add(
    "likelihood",
    m.Likelihood(
        lambda z, y: jax.nn.log_softmax(
            jnp.arange(5, dtype=z.dtype) * z[0] + jnp.zeros(5, z.dtype).at[0].set(z[1])
        )[y],
        jnp.arange(5),
    ),
    lambda: normal(2),
    lambda: jnp.array(3),
)
# Potentials and divergences, by automatic differentiation.
add(
    "exponential family",
    m.ExponentialFamily(logistic),
    lambda: normal(3),
    lambda: jnp.array([1.0, 0.0, 1.0]),
)
add(
    "exponential family singular",
    m.ExponentialFamily(
        jax.nn.logsumexp,
        sampler=lambda key, z: jax.nn.one_hot(jax.random.categorical(key, z), 3, dtype=z.dtype),
    ),
    lambda: normal(3),
    lambda: jnp.array([0.0, 1.0, 0.0]),
)
add(
    "exponential family tree",
    m.ExponentialFamily(
        lambda z: (
            jnp.sum(jnp.exp(z["a"]))
            + half_square(z["b"]["c"])
            + jnp.exp(z["a"][0] + 0.3 * jnp.sum(z["b"]["c"]))
        )
    ),
    tree,
    lambda: tree(3),
)
add("bregman", m.Bregman(lambda z: jnp.sum(jnp.cosh(z)) + jnp.sum(z) ** 2), lambda: normal(3))
add("bregman singular", m.Bregman(jax.nn.logsumexp), lambda: normal(3))
add(
    "divergence",
    m.Divergence(lambda u, z: jnp.sum(jnp.exp(u) - jnp.exp(z) - jnp.exp(z) * (u - z))),
    lambda: normal(3),
)
add(
    "divergence tree",
    m.Divergence(
        lambda u, z: half_square(u["a"], z["a"]) + 3 * half_square(u["b"]["c"], z["b"]["c"])
    ),
    tree,
)
# Hessians, matrices, moments.
add(
    "loss hessian",
    m.LossHessian(lambda z, y: jnp.sum(jnp.cosh(z - y))),
    lambda: normal(3),
    lambda: normal(3, seed=1),
)
add(
    "loss hessian of outputs", m.LossHessian(logistic), lambda: normal(3), lambda: normal(3, seed=1)
)
add(
    "loss hessian of likelihood",
    m.LossHessian(m.Categorical()),
    lambda: normal(3),
    lambda: jnp.asarray(1),
)
add(
    "loss hessian clip",
    m.LossHessian(weak_loss, m.Clip()),
    lambda: normal(3),
    lambda: jnp.array([1.0, -1.0, 2.0]),
)
add(
    "loss hessian absolute",
    m.LossHessian(weak_loss, m.Absolute()),
    lambda: normal(3),
    lambda: jnp.array([1.0, -1.0, 2.0]),
)
add("riemannian", m.Riemannian(curved), lambda: normal(3))
add("riemannian singular", m.Riemannian(rank_one), lambda: normal(3))
add(
    "sampled fisher",
    m.SampledFisher(m.Categorical(), jax.random.key(1), draws=2),
    lambda: normal(4),
    lambda: jnp.asarray(1),
)
add("sampled fisher tree", m.SampledFisher(m.Bernoulli(), jax.random.key(1), draws=9), tree)
add(
    "empirical fisher",
    m.EmpiricalFisher(m.Bernoulli()),
    lambda: normal(3),
    lambda: jnp.array([1, 0, 1]),
)
add(
    "empirical fisher of loss",
    m.EmpiricalFisher(lambda z, y: half_square(z, y)),
    lambda: normal(3),
    lambda: normal(3, seed=1),
)
add("scores", m.Scores(), lambda: normal(4))
add(
    "scores weighted",
    m.Scores(jnp.array([0.5, 0.0, 2.0, 1.0])),
    lambda: {"log_p": normal(4), "index": jnp.arange(4)},
)
add("scores of several outputs", m.Scores(), lambda: normal(4, 3))
add(
    "scores of a tree",
    m.Scores(jnp.array([0.5, 0.0, 2.0, 1.0])),
    lambda: {"a": normal(4), "b": normal(4, 2, seed=1)},
)
# Another seed than that of the direction of `check_metric`: along itself a state does not move.
add("fubini study", m.FubiniStudy(), lambda: normal(5, seed=6))
add("fubini study complex", m.FubiniStudy(), lambda: normal(4, 2))
add(
    "fubini study weighted",
    m.FubiniStudy(jnp.array([0.5, 0.0, 2.0, 1.0])),
    lambda: {"psi": normal(4, 2), "index": jnp.arange(4)},
)
# Transport.
add(
    "wasserstein gaussian",
    m.WassersteinGaussian(),
    lambda: Head(mean=normal(2), scale=jnp.array([0.5, 2.0])),
)
add(
    "wasserstein covariance",
    m.WassersteinGaussianCovariance(),
    lambda: {"mean": normal(3), "covariance": positive_definite(3)},
)
add(
    "wasserstein covariance rows",
    m.WassersteinGaussianCovariance(),
    lambda: Head(mean=normal(2, 2), covariance=positive_definite(2, 2), index=jnp.arange(2)),
)
EDGES = ((0, 1), (1, 2), (2, 3), (3, 0))
add("wasserstein graph", m.WassersteinGraph(EDGES), lambda: jnp.array([0.1, 0.4, 0.2, 0.3]))
add(
    "wasserstein graph rows",
    m.WassersteinGraph(EDGES, jnp.array([1.0, 2.0, 0.5, 1.0]), m.ArithmeticMean()),
    lambda: jax.nn.softmax(normal(2, 4), axis=-1),
)
# Combinations.
add(
    "product",
    m.Product(
        {
            "a": m.Categorical(),
            "b": (m.Euclidean(2.0), m.LossHessian(lambda z, y: half_square(z, y))),
        }
    ),
    lambda: {"a": normal(2, 3), "b": (normal(2), normal(2))},
    lambda: {"a": jnp.array([0, 1]), "b": (None, normal(2))},
)
add(
    "product likelihood",
    m.ProductLikelihood((m.Poisson(), m.GaussianMeanScale())),
    lambda: (normal(2), {"mean": normal(1), "log_scale": normal(1)}),
    lambda: (jnp.array([0, 3]), normal(1, seed=4)),
)
add("sum", m.Sum((m.Categorical(), m.Euclidean(0.1))), lambda: normal(3), lambda: jnp.asarray(0))
add(
    "sum singular",
    m.Sum((m.Categorical(), m.EmpiricalFisher(m.Categorical()))),
    lambda: normal(3),
    lambda: jnp.asarray(0),
)
add("weighted", m.Weighted(m.Bernoulli(), 0.3), tree)
add("weighted scores", m.Weighted(m.Scores(), jnp.asarray(2.0)), lambda: normal(4))
add(
    "masked elementwise",
    m.Masked(m.Poisson(), {"a": jnp.array([True, False]), "b": True, "index": True}),
    tree,
)
add(
    "masked classes",
    m.Masked(m.Categorical(), jnp.array([True, False, True, True])),
    lambda: normal(4),
)
add(
    "masked rows",
    m.Masked(m.Categorical(), jnp.array([True, False])),
    lambda: {"z": normal(2, 3), "i": jnp.arange(2)},
)
add(
    "masked gaussian",
    m.Masked(m.Gaussian(positive_definite(3)), jnp.array([[True, True, False]])),
    lambda: normal(2, 3),
)
