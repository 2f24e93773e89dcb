"""The trust region is a bound on the divergence itself."""

import jax.numpy as jnp
import numpy as np
import pytest
from curved import close
from helpers import normal

import pullback as pb


def test_the_trust_region_is_in_the_true_divergence():
    """Bernoulli logits far out: the quadratic model of KL is wrong there, by a factor."""
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())
    x, y, params = normal(4, 6, seed=1), jnp.asarray([0, 1, 1, 0]), normal(6, seed=2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.TrustRegion(radius=1.0))
    new, state, record = opt.step(params, opt.init(params), (x, y))
    p, q = (1 / (1 + np.exp(-np.asarray(x @ w))) for w in (new, params))
    kl = np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    close(record.divergence, kl)
    assert 0.98 * 0.5 <= kl <= 0.5 and bool(record.accepted)
    assert abs(float(record.metric_norm) ** 2 / 2 - kl) > 0.1 * kl
    assert float(state.rule) in (1.0, 2.0)


def kl(x, new, old):
    """The mean divergence of the new predictions from the old ones, as the metric has it."""
    z = [np.asarray(x @ w) for w in (new, old)]
    p, q = (np.exp(z - z.max(axis=1, keepdims=True)) for z in z)
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    return np.mean(np.sum(p * np.log(p / q), axis=1))


@pytest.mark.parametrize("asked", [1e-6, 1e-2, 0.3])
@pytest.mark.parametrize("scale", [1e-3, 1e3], ids=["longer", "shorter"])
def test_extended_a_step_spends_the_divergence_that_was_asked_for(asked, scale):
    """Whether the natural gradient is much shorter than the region or much longer."""
    x, y, params = normal(30, 4), normal(30, 3, seed=1), 0.3 * normal(4, 3, seed=2)
    problem = pb.Composite(
        lambda p, x: x @ p, lambda z, y: scale * jnp.sum(z * y, axis=1), pb.metric.Categorical()
    )
    rule = pb.step.TrustRegion(divergence=asked, extend=True, adapt=False)
    opt = pb.NaturalGradientDescent(problem, step=rule)
    new, state, record = opt.step(params, opt.init(params), (x, y))
    assert bool(record.accepted) and float(record.loss_after) < float(record.loss)
    close(record.divergence, kl(x, new, params))
    assert 0.99 * asked <= float(record.divergence) <= asked
    assert float(state.rule) == (2 * asked) ** 0.5 and int(record.trials) <= 12


def test_without_a_direction_nothing_is_extended():
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Gaussian())
    x, params = normal(5, 2), normal(2, seed=1)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.TrustRegion(extend=True))
    new, _, record = opt.step(params, opt.init(params), (x, x @ params))
    close(new, params)
    assert bool(record.accepted) and int(record.trials) == 1


def test_without_a_border_the_natural_gradient_is_taken():
    """The divergence of a Bernoulli variable from a fair coin is at most log 2."""
    problem = pb.Composite(lambda p, x: x * p, metric=pb.metric.Bernoulli())
    rule = pb.step.TrustRegion(divergence=1.0, extend=True)
    opt = pb.NaturalGradientDescent(problem, step=rule)
    new, _, record = opt.step(jnp.zeros(()), opt.init(jnp.zeros(())), (jnp.ones(3), jnp.ones(3)))
    close(new, 2.0)  # (p - y) / (p (1 - p)) = -2
    assert bool(record.accepted) and float(record.rate) == 1


def test_an_extended_region_follows_the_gain():
    """Of a parabola, half of the linear decrease is left at its minimum: no reason to grow."""
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Gaussian())
    x, params = normal(5, 2), normal(2, seed=1)
    radius = lambda first: pb.step.TrustRegion(first, extend=True)
    after = {}
    for first in (1e-2, 1e2):
        opt = pb.NaturalGradientDescent(problem, step=radius(first))
        _, state, record = opt.step(params, opt.init(params), (x, jnp.zeros(5)))
        after[first] = float(state.rule) / first, bool(record.accepted)
    assert after == {1e-2: (2.0, True), 1e2: (0.25, False)}


def test_radius_and_divergence_exclude_each_other():
    with pytest.raises(ValueError, match="radius or divergence"):
        pb.step.TrustRegion(0.5, divergence=0.01)
    with pytest.raises(ValueError, match=r"TrustRegion\(extend=True\)"):
        pb.step.TrustRegion(extend=1)
    with pytest.raises(ValueError, match="divergence"):
        pb.step.TrustRegion(divergence=0.0)
