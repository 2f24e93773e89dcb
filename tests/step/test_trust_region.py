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


@pytest.mark.parametrize("columns", [1, 2])
def test_the_region_of_scores_is_that_of_the_reweighted_samples(columns):
    """One divergence of the whole batch, summed over the outputs of a sample."""
    x, y, params = normal(30, 4), normal(30, columns, seed=1), 0.3 * normal(4, columns, seed=2)
    weights = np.linspace(0.0, 2.0, 30)
    y = y - np.average(y, axis=0, weights=weights)[None]
    outputs = lambda p, x: jnp.tanh(x @ p) if columns > 1 else jnp.tanh(x @ p)[:, 0]
    problem = pb.Composite(
        outputs,
        lambda z, y: jnp.sum(z.reshape(y.shape) * y, axis=1),
        pb.metric.Scores(),
        pb.Weights(jnp.asarray(weights)),
    )
    rule = pb.step.TrustRegion(divergence=0.01, extend=True, adapt=False)
    opt = pb.NaturalGradientDescent(problem, step=rule)
    new, _, record = opt.step(params, opt.init(params), (x, y))
    gap = np.tanh(np.asarray(x @ new)) - np.tanh(np.asarray(x @ params))
    share = weights[:, None] / weights.sum()
    moved = share * np.exp(gap) / np.sum(share * np.exp(gap), axis=0)
    kl = np.sum(moved[1:] * np.log(moved[1:] / share[1:]))
    close(record.divergence, weights.sum() * kl)
    assert bool(record.accepted) and 0.0099 <= float(record.divergence) <= 0.01


def test_the_region_of_a_state_is_in_the_fidelity():
    """Imaginary time of a two-level system: half of the negative log-fidelity is spent."""
    energy = jnp.asarray([[1.0, 0.3], [0.3, -1.0]])

    def mean_energy(psi):
        image = energy @ psi
        return jnp.sum(psi * image) / jnp.sum(psi * psi)

    psi = lambda p: jnp.stack([jnp.exp(p[0]) * jnp.cos(p[1]), jnp.exp(p[0]) * jnp.sin(p[1])])
    states = lambda p: psi(p)[:, None] * jnp.asarray([[0.6, 0.8]])
    problem = pb.Composite(states, mean_energy, pb.metric.FubiniStudy())
    rule = pb.step.TrustRegion(divergence=0.02, extend=True, adapt=False)
    opt = pb.NaturalGradientDescent(problem, step=rule)
    params = jnp.asarray([3.0, 0.4])
    new, _, record = opt.step(params, opt.init(params))
    assert abs(float(new[0] - 3.0)) < 1e-12, "the norm is no direction"
    close(record.divergence, -np.log(np.cos(float(new[1]) - 0.4) ** 2) / 2)
    assert 0.0198 <= float(record.divergence) <= 0.02


@pytest.mark.parametrize("extend", [False, True])
def test_a_region_that_no_trial_fell_into_is_no_success(extend):
    """A rate of e^-20 is to rise to 10⁶: two halvings of the step are far too few."""
    problem = pb.Composite(lambda p, x: x * p, metric=pb.metric.Poisson())
    rule = pb.step.TrustRegion(divergence=0.01, max_trials=2, extend=extend)
    opt = pb.NaturalGradientDescent(problem, step=rule)
    params, batch = jnp.asarray(-20.0), (jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([9e5, 1.0, 2.0]))
    new, state, record = opt.step(params, opt.init(params), batch)
    assert float(new) == -20 and not bool(record.accepted) and float(record.gain) == 0
    close(state.rule, rule.radius / 4)


@pytest.mark.filterwarnings("ignore:the last 20 steps were not taken")
def test_a_run_that_has_converged_starts_again_on_other_samples():
    """At a minimum gains are rounding, which has nothing to say of the radius."""
    x = normal(8, 2, seed=1).astype(jnp.float32)
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.TrustRegion())
    target = jnp.sin(7 * x[:, 0])
    done = pb.fit(opt, jnp.zeros(2, jnp.float32), (x, target), 80, until=(), progress=False)
    assert not done.history["accepted"][-20:].any() and float(done.state.rule) > 1e-12
    other = target + x @ jnp.asarray([1.0, -2.0], jnp.float32)
    more = pb.fit(opt, done.params, (x, other), 60, state=done.state, until=(), progress=False)
    assert np.isclose(more.history["loss_after"][-1], done.history["loss_after"][-1], rtol=1e-4)
