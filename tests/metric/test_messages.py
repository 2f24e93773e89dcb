"""Arguments that are refused, and what is not a metric: the message names value and cure."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry_metrics import normal

from pullback import metric as m

THREE, KEY = normal(3), jax.random.key(0)
REFUSED = {
    "euclidean scale": (
        lambda: m.Euclidean(-1.0),
        r"Euclidean\(scale=-1\.0\): scale must be positive and finite, e\.g\. Euclidean\(scale=1\)",
    ),
    "gaussian negative": (
        lambda: m.Gaussian(-1.0),
        r"Gaussian\(covariance=-1\.0\).*positive variance.*e\.g\. Gaussian\(covariance=0\.25\)",
    ),
    "gaussian indefinite": (
        lambda: m.Gaussian(jnp.array([[1.0, 2.0], [2.0, 1.0]])),
        "positive definite matrix",
    ),
    "gaussian rectangular": (lambda: m.Gaussian(jnp.ones((2, 3))), "positive definite matrix"),
    "gaussian last axis": (
        lambda: m.Gaussian(jnp.ones(2)).root(THREE),
        r"2 entries on their last axis.*\(3,\)",
    ),
    "gaussian tree": (
        lambda: m.Gaussian(jnp.ones(2)).root({"a": THREE, "b": THREE}),
        r"one array of means.*Product",
    ),
    "gaussian targets": (
        lambda: m.Gaussian().likelihood_lift(THREE, jnp.ones(2)),
        r"Gaussian targets must have the shape \(3,\)",
    ),
    "poisson targets": (
        lambda: m.Poisson().likelihood_lift(THREE, {"a": 1}),
        "Poisson targets must have the s",
    ),
    "bernoulli targets": (
        lambda: m.Bernoulli().likelihood_lift({"a": THREE}, THREE),
        "Bernoulli targets must have the structure",
    ),
    "categorical scalar": (lambda: m.Categorical().root(jnp.asarray(1.0)), "use Bernoulli"),
    "categorical targets": (
        lambda: m.Categorical().likelihood_lift(THREE, jnp.array([1, 2])),
        "integer classes of shape",
    ),
    "mean scale names": (
        lambda: m.GaussianMeanScale().root(THREE),
        r"takes outputs \{'mean': \.\.\., 'log_scale': \.\.\.\}.*one array",
    ),
    "mean scale shapes": (
        lambda: m.GaussianMeanScale().root({"mean": THREE, "log_scale": THREE[:2]}),
        r"one shape, got \(3,\) and \(2,\)",
    ),
    "mean covariance shapes": (
        lambda: m.GaussianMeanCovariance().root({"mean": THREE, "covariance": THREE}),
        r"shape \(\.\.\., d, d\), got",
    ),
    "log partition": (
        lambda: m.ExponentialFamily(3),
        r"ExponentialFamily\(log_partition=3\): log_partition must be a function, e\.g\.",
    ),
    "sampler": (
        lambda: m.ExponentialFamily(jnp.sum, sampler=3),
        r"ExponentialFamily\(sampler=3\): sampler must be a function",
    ),
    "log partition shape": (
        lambda: m.ExponentialFamily(lambda z: z).root(THREE),
        r"must return one real number.*shape \(3,\)",
    ),
    "phi": (lambda: m.Bregman(None), r"Bregman\(phi=None\): phi must be a function"),
    "rho": (lambda: m.Divergence("kl"), r"Divergence\(rho='kl'\): rho must be a function"),
    "loss": (lambda: m.LossHessian(1), r"LossHessian\(loss=1\): loss must be a function"),
    "loss targets": (
        lambda: m.LossHessian(lambda z, y: jnp.sum(z * y)).root(THREE),
        "takes targets, and none were given",
    ),
    "spectrum": (
        lambda: m.LossHessian(jnp.sum, "clip"),
        r"LossHessian\(spectrum='clip'\): spectrum must be Refuse\(\), Clip\(\) or Absolute\(\)",
    ),
    "matrix_fn": (
        lambda: m.Riemannian(jnp.eye(2)),
        r"Riemannian\(matrix_fn=.*\): matrix_fn must be a function",
    ),
    "matrix_fn shape": (
        lambda: m.Riemannian(lambda z: jnp.eye(2)).root(THREE),
        r"shape \(3, 3\) .*got float64 of shape \(2, 2\)",
    ),
    "family": (
        lambda: m.SampledFisher(m.Euclidean(), KEY),
        r"SampledFisher\(family=Euclidean.*: family must be a likelihood to draw from, e\.g\.",
    ),
    "draws": (
        lambda: m.SampledFisher(m.Bernoulli(), KEY, draws=0),
        r"SampledFisher\(draws=0\): draws must be an integer of at least 1, e\.g\.",
    ),
    "empirical": (
        lambda: m.EmpiricalFisher(0),
        r"EmpiricalFisher\(loss=0\): loss must be a function",
    ),
    "scores weights": (
        lambda: m.Scores(jnp.array([1.0, -1.0])),
        r"Scores\(weights=\[ 1\. -1\.\]\): weights must be a vector of non-negative weights",
    ),
    "scores matrix": (lambda: m.Scores(jnp.ones((2, 2))), "a vector of non-negative weights"),
    "scores shape": (lambda: m.Scores(jnp.ones(2)).root(THREE), r"got \(3,\) and \(2,\)"),
    "scores rows": (
        lambda: m.Scores().root({"a": normal(2), "b": normal(3)}),
        r"shape \(N,\).*\[\(2,\), \(3,\)\]",
    ),
    "scores scalar": (lambda: m.Scores().root(jnp.ones(())), r"shape \(N,\)"),
    "fubini weights": (
        lambda: m.FubiniStudy(jnp.array([1.0, -1.0])),
        r"FubiniStudy\(weights=\[ 1\. -1\.\]\): weights must be a vector of non-negative weights",
    ),
    "fubini shape": (lambda: m.FubiniStudy().root(normal(2, 3)), r"\(D,\) or \(D, 2\).*\(2, 3\)"),
    "fubini count": (lambda: m.FubiniStudy(jnp.ones(2)).root(THREE), r"got \(3,\) and \(2,\)"),
    "wasserstein names": (lambda: m.WassersteinGaussian().root({"mean": THREE}), "'scale': ..."),
    "wasserstein shapes": (
        lambda: m.WassersteinGaussian().root({"mean": THREE, "scale": THREE[:1]}),
        "one shape",
    ),
    "edges": (
        lambda: m.WassersteinGraph(((0, 1), (1, 0))),
        r"Graph\(edges=\(\(0, 1\), \(1, 0\)\)\): .*each pair once, e\.g\. WassersteinGraph\(edges",
    ),
    "edges loop": (lambda: m.WassersteinGraph(((0, 0),)), "two different vertices"),
    "edge weights": (
        lambda: m.WassersteinGraph(((0, 1),), jnp.array([-1.0])),
        r"WassersteinGraph\(weights=\[-1\.\]\): weights must be 1 positive weights, one per edge",
    ),
    "graph mean": (
        lambda: m.WassersteinGraph(((0, 1),), mean="log"),
        r"mean='log'\): mean must be LogarithmicMean\(\) or ArithmeticMean\(\)",
    ),
    "vertex": (
        lambda: m.WassersteinGraph(((0, 5),)).root(THREE),
        "names vertex 5, but the outputs have 3",
    ),
    "product metrics": (
        lambda: m.Product({"a": 1}),
        r"Product\(metrics=1\): metrics must be a tree of metrics",
    ),
    "product scores": (
        lambda: m.Product((m.Scores(),)),
        r"Scores is one form on the outputs of the whole batch.*Weighted\(Scores\(\), 0\.5\)",
    ),
    "product structure": (
        lambda: m.Product({"a": m.Euclidean()}).root({"b": THREE}),
        "needs one metric for each part of the outputs",
    ),
    "product likelihood": (
        lambda: m.ProductLikelihood((m.Euclidean(),)),
        r"ProductLikelihood\(metrics=Euclidean.*: metrics must be a tree of likelihoods.*Product",
    ),
    "sum": (
        lambda: m.Sum(m.Euclidean()),
        r"Sum\(metrics=Euclidean.*: metrics must be a tuple of metrics, e\.g\. Sum\(\(Categorical",
    ),
    "sum of nothing": (lambda: m.Sum(()), r"Sum\(metrics=\(\)\): metrics must be a tuple"),
    "sum of numbers": (lambda: m.Sum((1.0,)), r"Sum\(metrics=1\.0\): metrics must be a tuple"),
    "sum scores": (lambda: m.Sum((m.Scores(), m.Euclidean())), "whole batch"),
    "weight": (
        lambda: m.Weighted(m.Euclidean(), -1.0),
        r"weight=-1\.0\): weight must be positive.*e\.g\. Weighted\(Euclidean\(\), 0\.5\)",
    ),
    "weighted metric": (
        lambda: m.Weighted(3, 1.0),
        r"Weighted\(metric=3\): metric must be a metric",
    ),
    "mask": (
        lambda: m.Masked(m.Euclidean(), jnp.ones(3)),
        r"Masked\(mask=\[1\. 1\. 1\.\]\): mask must be booleans, e\.g\. Masked",
    ),
    "masked metric": (lambda: m.Masked(3, True), r"Masked\(metric=3\): metric must be a metric"),
    "mask shape": (
        lambda: m.Masked(m.Euclidean(), jnp.ones(2, bool)).root(THREE),
        r"shape \(2,\) does not fit outputs of shape \(3,\)",
    ),
    "mask structure": (
        lambda: m.Masked(m.Euclidean(), {"a": True}).root({"b": THREE}),
        "does not fit the outputs",
    ),
    "mask scores": (lambda: m.Masked(m.Scores(), True), "whole batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_corrected_call(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_family_without_a_sampler_a_divergence_or_a_log_loss_raises():
    with pytest.raises(TypeError, match="sampler=lambda key, z"):
        m.ExponentialFamily(jnp.sum).sample(KEY, THREE)
    with pytest.raises(TypeError, match="Poisson is a likelihood without a closed-form log-loss"):
        m.Poisson().log_loss(THREE, THREE)
    with pytest.raises(TypeError, match="Riemannian is a metric without a divergence"):
        m.Riemannian(jnp.diag).divergence(THREE, THREE)


indefinite = {"mean": jnp.zeros(2), "covariance": jnp.array([[1.0, 2.0], [2.0, 1.0]])}
COMPLAINTS = {
    "bregman": (
        m.Bregman(lambda z: -jnp.sum(z**2)),
        THREE,
        r"phi.*eigenvalues go from -2 to -2\. phi must be convex",
    ),
    "exponential family": (
        m.ExponentialFamily(lambda z: -jnp.sum(z**2)),
        THREE,
        "log_partition.*from -2 to -2",
    ),
    "divergence indefinite": (
        m.Divergence(lambda u, z: jnp.sum((u - z) ** 2 * jnp.array([1.0, 1.0, -1.0]))),
        THREE,
        "from -2 to 2",
    ),
    "divergence slope": (
        m.Divergence(lambda u, z: jnp.sum(u**2) - jnp.sum(z**2)),
        THREE,
        r"not a divergence: rho\(z, z\) = 0 and its gradient",
    ),
    "divergence value": (
        m.Divergence(lambda u, z: 1 + jnp.sum((u - z) ** 2)),
        THREE,
        r"rho\(z, z\) = 1 ",
    ),
    "loss hessian": (
        m.LossHessian(lambda z: -jnp.sum(z**2)),
        THREE,
        r"from -2 to -2\. Use LossHessian\(loss, spectrum=Clip\(\)\)",
    ),
    "riemannian asymmetric": (
        m.Riemannian(lambda z: jnp.triu(jnp.ones((3, 3)))),
        THREE,
        r"not symmetric.*max \|M - Mᵀ\| = 1 where max \|M\| = 1",
    ),
    "riemannian indefinite": (
        m.Riemannian(lambda z: jnp.diag(jnp.array([1.0, 2.0, -3.0]))),
        THREE,
        "from -3 to 2",
    ),
    "riemannian nan": (
        m.Riemannian(lambda z: jnp.full((3, 3), jnp.nan)),
        THREE,
        "9 of its 9 entries are NaN",
    ),
    "covariance": (
        m.GaussianMeanCovariance(),
        indefinite,
        "covariance is not positive semi-definite.*from -1 to 3",
    ),
    "transport": (
        m.WassersteinGaussianCovariance(),
        indefinite,
        "covariance is not positive semi-definite.*from -1 to 3",
    ),
    "graph": (
        m.WassersteinGraph(((0, 1), (1, 2))),
        jnp.array([2.0, -1.0, 0.0]),
        r"go from -1 to 2: return softmax\(logits\)",
    ),
    "product": (
        m.Product((m.Bregman(lambda z: -jnp.sum(z**2)), m.Euclidean())),
        (THREE, THREE),
        "phi must be convex",
    ),
    "sum": (
        m.Sum((m.Euclidean(), m.Bregman(lambda z: -jnp.sum(z**2)))),
        THREE,
        "phi must be convex",
    ),
    "weighted": (m.Weighted(m.Bregman(lambda z: -jnp.sum(z**2)), 2.0), THREE, "phi must be convex"),
    "masked": (m.Masked(m.Bregman(lambda z: -jnp.sum(z**2)), True), THREE, "phi must be convex"),
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_what_is_not_a_metric_has_a_nan_root_and_a_complaint(name):
    metric, z, message = COMPLAINTS[name]
    root = eqx.filter_jit(metric.root)(z)
    assert any(bool(jnp.any(jnp.isnan(x))) for x in jax.tree.leaves(root))
    assert re.search(message, metric.complaint(z)), metric.complaint(z)


def test_a_traced_bad_covariance_or_weight_is_named():
    bad = jnp.array([[1.0, 2.0], [2.0, 1.0]])
    assert np.isnan(jax.jit(lambda s: m.Gaussian(s).root(jnp.ones(2)).cholesky)(bad)).any()
    metric = eqx.tree_at(
        lambda x: x.weight, m.Weighted(m.Euclidean(), jnp.asarray(1.0)), jnp.asarray(-2.0)
    )
    assert "weight=-2.0" in metric.complaint(THREE)
    scores = eqx.tree_at(lambda x: x.weights, m.Scores(jnp.ones(3)), jnp.array([1.0, -1.0, 1.0]))
    assert np.isnan(scores.root(THREE).log_scale).any() and "non-negative" in scores.complaint(
        THREE
    )
