"""A rise of the loss is warned of early, and noise is not taken for one; going on with a state."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit import run as _fit

X, Y = normal(30, 3, seed=1), normal(30, seed=2)
LEAST_SQUARES = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)


class Replay(eqx.Module):
    """Has the losses that it is given, whatever it does; `after` adds those after each step."""

    losses: jax.Array
    after: bool = eqx.field(static=True, default=True)

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def step(self, params, state, batch):
        record = {"loss": self.losses[state]}
        if self.after:
            record["loss_after"] = self.losses[state + 1]
        return params, state + 1, record


def told(losses, batches=None, after=True):
    """What is said of some losses."""
    losses = jnp.asarray(losses, float)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit = pb.fit(Replay(losses, after), jnp.zeros(1), batches, len(losses) - 1)
    assert fit.steps == len(losses) - 1
    return [str(w.message) for w in found]


def drawn(key):
    return None


def test_an_undamped_step_that_diverges_is_warned_of_early():
    """Newton's step on a loss whose metric is too small by a factor of 2.2."""
    opt = pb.NaturalGradientDescent(LEAST_SQUARES, step=2.2)
    with pytest.warns(pb.FitWarning, match="the loss has risen from .* take shorter steps") as said:
        fit = pb.fit(opt, jnp.ones(3), (X, Y), 14)
    assert len(said) == 1 and fit.history.losses[-1] < 1e3
    with pytest.warns(pb.FitWarning, match="the loss has risen"):
        pb.fit(opt, jnp.ones(3), pb.minibatches((X, Y), 10), 40)


def test_from_645_to_17244():
    rising = np.geomspace(645, 17244, 30)
    for batches in (None, drawn):
        assert len(found := told(rising, batches)) == 1, batches
        assert "risen from 645" in found[0]
    assert told(rising[:9]) == [] and told(rising[:12], drawn) == []
    # Ten steps are enough where nothing is random.
    assert len(told(np.geomspace(645, 17244, 11))) == 1


def test_first_steps_that_go_up_and_come_down_are_no_rise():
    assert told([1, 5, 30, 100, 40, 9, 2, 1, 0.5, 0.2, 0.1, *[0.1] * 20]) == []
    assert told([1, 1.1, 1.3, 1.2, *[2.9] * 30]) == []
    assert told([1e-30, 1e-28, *[3e-28] * 30]) == [], "rounding"
    assert told([-5.0, *[-4.0] * 30]) == [] and told([-1.0, *[3.0] * 12]) != []
    assert told([np.inf, *[1.0] * 20][1:]) == []


@pytest.mark.parametrize("after", [True, False])
def test_noise_of_minibatches_is_no_rise(after):
    rng = np.random.default_rng(0)
    for run in range(20):
        noise = np.exp(rng.choice([0.3, 1.0, 1.5]) * rng.standard_normal(80))
        assert told(noise, drawn, after) == [], run
    trend = np.exp(0.08 * np.arange(80))
    assert len(told(trend * np.exp(0.3 * rng.standard_normal(80)), drawn, after)) == 1


def test_a_resumed_run_remembers_where_it_began(tmp_path):
    rising = jnp.asarray(np.geomspace(1, 50, 21))
    opt = Replay(rising)
    pb.fit(opt, jnp.zeros(1), None, 4, checkpoint=tmp_path)
    with pytest.warns(pb.FitWarning, match="risen from 1 to"):
        pb.fit(opt, jnp.zeros(1), None, 20, checkpoint=tmp_path)


def test_going_on_with_another_rate():
    """`state=` continues; the rows are counted from 0."""
    rates = [0.1, 0.3]
    opts = [
        pb.NaturalGradientDescent(LEAST_SQUARES, step=r, momentum=pb.HeavyBall(0.5)) for r in rates
    ]
    params, state, losses = jnp.ones(3), opts[0].init(jnp.ones(3)), []
    for opt in opts:
        for _ in range(4):
            params, state, record = opt.step(params, state, (X, Y))
            losses.append(float(record.loss))
    one = pb.fit(opts[0], jnp.ones(3), (X, Y), 4)
    two = pb.fit(opts[1], one.params, (X, Y), 4, state=one.state)
    np.testing.assert_allclose([*one.history["loss"], *two.history["loss"]], losses, rtol=1e-9)
    np.testing.assert_allclose(two.params, params, rtol=1e-9)
    assert list(two.history["step"]) == [0, 1, 2, 3] and int(two.state.count) == 8
    # Without it the momentum is lost.
    assert not np.allclose(pb.fit(opts[1], one.params, (X, Y), 4).params, params, rtol=1e-6)


def test_going_on_is_saved_and_resumed(tmp_path):
    opt = pb.NaturalGradientDescent(LEAST_SQUARES, step=0.1, momentum=pb.HeavyBall(0.5))
    one = pb.fit(opt, jnp.ones(3), (X, Y), 3)
    whole = pb.fit(opt, one.params, (X, Y), 7, state=one.state)
    for steps in (2, 7):
        fit = pb.fit(opt, one.params, (X, Y), steps, state=one.state, checkpoint=tmp_path)
    assert np.array_equal(fit.params, whole.params) and list(fit.history["step"]) == list(range(7))
    with pytest.raises(ValueError, match="start: state"):
        pb.fit(opt, one.params, (X, Y), 8, checkpoint=tmp_path)


def test_a_state_of_another_optimiser_is_refused():
    fixed = pb.NaturalGradientDescent(LEAST_SQUARES, step=0.1)
    other = pb.NaturalGradientDescent(LEAST_SQUARES, step=0.1, momentum=pb.HeavyBall(0.5))
    state = pb.fit(fixed, jnp.ones(3), (X, Y), 2).state
    with pytest.raises(
        ValueError,
        match=r"state\.previous is float64\[0\], but NaturalGradientDescent\.init\(params\) has "
        r"float64\[3\] there",
    ):
        pb.fit(other, jnp.ones(3), (X, Y), 2, state=state)
    with pytest.raises(ValueError, match=r"fit\(state=\.\.\.\): state"):
        pb.fit(fixed, jnp.ones(3), (X, Y), 2, state=3.0)


def test_a_step_with_convolutions_is_made_one_by_one(monkeypatch, tmp_path):
    """On the CPU; the numbers are those of a Python loop, and those of a resumed run its bits."""
    calls = []
    run_chunk = _fit.run_chunk
    monkeypatch.setattr(_fit, "run_chunk", lambda *args: calls.append(1) or run_chunk(*args))

    def convolve(p, x):
        return jax.lax.conv_general_dilated(x, p[None, None], (1, 1), "VALID")[:, 0, 0]

    problem = pb.Composite(convolve, lambda z, y: jnp.sum((z - y) ** 2, 1) / 2)
    opt = pb.NaturalGradientDescent(problem, pb.Tikhonov(0.1), step=0.3)
    batch, start = (normal(5, 1, 4, 4, seed=1), normal(5, 2, seed=2)), normal(4, 3, seed=3)
    fit = pb.fit(opt, start, batch, 5)
    assert len(calls) == 5 or jax.default_backend() != "cpu"
    params, state = start, opt.init(start)
    for _ in range(5):
        params, state, _ = opt.step(params, state, batch)
    np.testing.assert_allclose(fit.params, params, rtol=1e-9)
    assert list(fit.history["step"]) == list(range(5))
    for steps in (2, 5):
        resumed = pb.fit(opt, start, batch, steps, checkpoint=tmp_path)
    assert np.array_equal(resumed.params, fit.params)
    assert pb.fit(opt, start, batch, 50, until=pb.until.When(lambda r: r["step"] == 6)).steps == 7
