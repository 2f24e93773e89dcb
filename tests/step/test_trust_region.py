"""The trust region is a bound on the divergence itself."""

import jax.numpy as jnp
import numpy as np
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
