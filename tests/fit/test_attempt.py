"""`fit` attempts each step with a quick program; where that has no answer, `step` gives it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb


class Adding(eqx.Module):
    """Adds the inputs; attempts have no answer in some steps, and in those without `good`."""

    missing: tuple[int, ...] = eqx.field(static=True)
    bad: tuple[int, ...] = eqx.field(static=True, default=())

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def _made(self, params, state, batch, careful):
        moved = params + jnp.sum(batch[0])
        failed = jnp.any(jnp.asarray([-1, *self.bad], jnp.int32) == state) & careful
        record = {"loss": jnp.sum(moved), "careful": jnp.asarray(careful), "failed": failed}
        return jnp.where(failed, params, moved), state + 1, record

    def step(self, params, state, batch):
        return self._made(params, state, batch, True)

    def attempt(self, params, state, batch):
        unanswered = jnp.any(jnp.asarray([-1, *self.missing], jnp.int32) == state)
        # What an attempt without an answer returns is of no account.
        wrong = jnp.where(unanswered, jnp.nan, 0.0)
        return *self._made(params + wrong, state, batch, False), unanswered


def batches(count):
    return ((jnp.full(1, 2.0**i), None) for i in range(count))


@pytest.mark.parametrize("missing", [(), (0,), (5,), (0, 1, 2, 3, 4, 5), (2, 4)])
@pytest.mark.parametrize("source", ["one", "many"])
def test_steps_without_an_answer_are_made_by_step(missing, source):
    given = (jnp.ones(1), None) if source == "one" else batches(6)
    run = pb.fit(Adding(missing), jnp.zeros(2), given, 6)
    assert run.steps == 6 and list(run.history["step"]) == list(range(6))
    assert [i for i in range(6) if run.history["careful"][i]] == list(missing)
    sums = np.arange(1, 7) if source == "one" else np.cumsum(2.0 ** np.arange(6))
    np.testing.assert_allclose(run.history["loss"], 2 * sums)
    np.testing.assert_allclose(run.params, sums[-1])


def test_a_step_that_fails_after_an_attempt_without_an_answer():
    opt = Adding(missing=(2, 3), bad=(3,))
    with pytest.raises(pb.FitError, match="step 3"):
        pb.fit(opt, jnp.zeros(2), (jnp.ones(1), None), 6)
    run = pb.fit(opt, jnp.zeros(2), (jnp.ones(1), None), 6, throw=False)
    assert list(run.history["failed"]) == [False, False, False, True, False, False]
    np.testing.assert_allclose(run.params, 5)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_resumed_run_is_the_same(tmp_path, cut):
    opt, batch = Adding(missing=(1, 2, 4)), (jnp.ones(1), None)
    pb.fit(opt, jnp.zeros(2), batch, cut, checkpoint=tmp_path)
    run = pb.fit(opt, jnp.zeros(2), batch, 6, checkpoint=tmp_path)
    assert list(run.history["careful"]) == [False, True, True, False, True, False]


def test_steep_samples_and_dampings_below_rounding():
    """As a Python loop of `opt.step` has it, which asks twice, too."""
    x = jnp.asarray([[0.3, 1.0], [1.0, -0.2], [0.5, 0.5], [30.0, 0.0]])
    y, start = jnp.asarray([0.0, 1, 1, 0]), jnp.asarray([1.0, 1.3])
    logistic = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())
    linear = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
    for problem, damping, step in ((logistic, 1e-8, 1e-6), (linear, 1e-17, 0.5)):
        opt = pb.NaturalGradientDescent(
            problem, pb.Tikhonov(damping), pb.solver.Dual(), step=pb.step.Fixed(step)
        )
        assert bool(jax.jit(opt.attempt)(start, opt.init(start), (x, y))[3])
        run = pb.fit(opt, start, (x, y), 3)
        params, state = start, opt.init(start)
        for _ in range(3):
            params, state, _ = opt.step(params, state, (x, y))
        np.testing.assert_allclose(run.params, params, rtol=1e-9)


class Derived(Adding):
    """Has a step of its own, and the attempts of its base."""

    def step(self, params, state, batch):
        return params - 1.0, state + 1, {"loss": jnp.sum(params)}


class Wrapper(eqx.Module):
    """Passes on what it does not know."""

    inner: Adding

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self, params, state, batch):
        return params - 1.0, state + 1, {"loss": jnp.sum(params)}


@pytest.mark.parametrize("opt", [Derived(()), Wrapper(Adding(()))], ids=["derived", "wrapper"])
def test_a_step_of_ones_own_is_not_gone_round(opt):
    run = pb.fit(opt, jnp.zeros(2), (jnp.ones(1), None), 3)
    np.testing.assert_allclose(run.params, -3)


def test_an_attempt_that_is_something_else():
    class Other(Adding):
        def step(self, params, state, batch):
            return self._made(params, state, batch, True)

        def attempt(self, params, state, batch):
            return params

    with pytest.raises(ValueError, match=r"Other\.attempt must return .*, got .*Tracer"):
        pb.fit(Other(()), jnp.zeros(2), (jnp.ones(1), None), 3)
