"""Batches that depend on the parameters, samplers with a state, and keys among the data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit.batches import BEGINNING
from pullback._problem.batch import Batch

START = normal(3, seed=3)
KEY = jax.random.key(5)


class Pull(eqx.Module):
    """Moves the parameters towards the mean of the inputs; bad inputs are a failure."""

    rate: float = 0.5
    reject: int = eqx.field(static=True, default=-1)

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def step(self, params, state, batch):
        mean = jnp.mean(batch.inputs, axis=0)
        accepted = state != self.reject
        moved = jnp.where(accepted, params + self.rate * (mean - params), params)
        record = {"loss": jnp.sum((mean - params) ** 2), "accepted": accepted}
        return moved, state + 1, record


class Chains(eqx.Module):
    """Random walks around the parameters, whose positions and count are carried."""

    width: float

    def init(self, key, params):
        return {"x": params[None] + jax.random.normal(key, (4, 3)), "key": key, "drawn": 0}

    def draw(self, key, params, state):
        x = 0.5 * (state["x"] + params[None]) + self.width * jax.random.normal(key, (4, 3))
        new = {"x": x, "key": jax.random.fold_in(state["key"], 1), "drawn": state["drawn"] + 1}
        return (x,), new


def by_hand(steps, key=KEY, rate=0.5, width=0.1):
    """The run of `Pull` on `Chains` without `fit`."""
    params, chains = START, Chains(width)
    state = chains.init(jax.random.fold_in(key, BEGINNING), params)
    for k in range(steps):
        (x,), state = chains.draw(jax.random.fold_in(key, k), params, state)
        params = params + rate * (jnp.mean(x, axis=0) - params)
    return params, state


def same(a, b):
    raw = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    equal = lambda x, y: np.array_equal(raw(jnp.asarray(x)), raw(jnp.asarray(y)))
    return jax.tree.all(jax.tree.map(equal, a, b))


def test_a_function_of_a_key_and_the_parameters():
    def draw(key, params):
        return (params[None] + jax.random.normal(key, (4, 3)),)

    expected = START
    for k in range(6):
        x = expected[None] + jax.random.normal(jax.random.fold_in(KEY, k), (4, 3))
        expected = expected + 0.5 * (jnp.mean(x, axis=0) - expected)
    fit = pb.fit(Pull(), START, draw, 6, key=KEY)
    np.testing.assert_allclose(fit.params, expected, rtol=1e-12)
    assert fit.sampler is None


class At(eqx.Module):
    """A module that is called with a key and the parameters."""

    width: float

    def __call__(self, key, params, extra=None):
        return (params[None] + self.width * jax.random.normal(key, (4, 3)),)


@pytest.mark.parametrize(
    "draw",
    [
        At(0.3),
        At(0.3).__call__,
        lambda key, params: At(0.3)(key, params),
        lambda key, params, /, more=1: At(0.3)(key, params),
    ],
)
def test_what_counts_as_a_function_of_two_arguments(draw):
    fit = pb.fit(Pull(), START, draw, 3, key=KEY)
    assert same(fit.params, pb.fit(Pull(), START, At(0.3), 3, key=KEY).params)


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: (jax.random.normal(key, (4, 3)),),
        lambda key, width=1.0: (width * jax.random.normal(key, (4, 3)),),
        lambda *args: (jax.random.normal(args[0], (4, 3)),) if len(args) == 1 else None,
        pb.minibatches((normal(9, 3, seed=1),), 4),
    ],
)
def test_what_counts_as_a_function_of_one_argument(draw):
    assert pb.fit(Pull(), START, draw, 3).steps == 3


def test_functions_of_other_arguments_are_refused():
    with pytest.raises(ValueError, match=r"a key and the parameters.*it needs key, a, b"):
        pb.fit(Pull(), START, lambda key, a, b: None, 3)
    with pytest.raises(ValueError, match="it needs key, size"):
        pb.fit(Pull(), START, lambda key, *, size: None, 3)
    with pytest.raises(ValueError, match=r"a PRNG key, or a key and the .* it takes no arguments"):
        pb.fit(Pull(), START, lambda: None, 3)


def test_a_sampler_carries_its_state():
    fit = pb.fit(Pull(), START, Chains(0.1), 7, key=KEY)
    params, state = by_hand(7)
    np.testing.assert_allclose(fit.params, params, rtol=1e-12)
    np.testing.assert_allclose(fit.sampler["x"], state["x"], rtol=1e-12)
    assert int(fit.sampler["drawn"]) == 7 and isinstance(Chains(0.1), pb.Sampler)
    assert same(fit.sampler["key"], state["key"])


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_a_sampler_is_saved_and_resumed_bit_by_bit(tmp_path, cut):
    whole = pb.fit(Pull(), START, Chains(0.1), 7, key=KEY)
    for steps in (cut, 7):
        fit = pb.fit(Pull(), START, Chains(0.1), steps, key=KEY, checkpoint=tmp_path)
    assert same((fit.params, fit.state, fit.sampler), (whole.params, whole.state, whole.sampler))
    with pytest.raises(ValueError, match=r"batches: .*width=0\.2 here, 0\.1 there"):
        pb.fit(Pull(), START, Chains(0.2), 9, key=KEY, checkpoint=tmp_path)


def test_another_sampler_is_refused_on_resumption(tmp_path):
    class More(Chains):
        def init(self, key, params):
            return super().init(key, params) | {"more": jnp.zeros(2)}

    pb.fit(Pull(), START, Chains(0.1), 2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"sampler\['more'\]: nothing there, float64\[2\] here"):
        pb.fit(Pull(), START, More(0.1), 3, checkpoint=tmp_path)


def test_a_step_that_is_rejected_or_fails_advances_the_sampler():
    fit = pb.fit(Pull(reject=2), START, Chains(0.1), 5, key=KEY)
    assert list(fit.history["accepted"]) == [True, True, False, True, True]
    assert int(fit.sampler["drawn"]) == 5

    class Spoilt(Chains):
        def draw(self, key, params, state):
            (x,), new = super().draw(key, params, state)
            return (jnp.where(state["drawn"] == 2, jnp.nan, x),), new

    fit = pb.fit(Pull(), START, Spoilt(0.1), 5, key=KEY, throw=False)
    assert int(fit.sampler["drawn"]) == 5 and int(fit.state) == 4
    assert np.isnan(fit.history["loss"][2]) and np.isfinite(fit.params).all()


def test_an_attempt_without_an_answer_draws_its_batch_once():
    class Attempting(Pull):
        def step(self, params, state, batch):
            return super().step(params, state, batch)

        def attempt(self, params, state, batch):
            return *self.step(params + jnp.nan, state, batch), state == 1

    fit = pb.fit(Attempting(), START, Chains(0.1), 1, key=KEY, throw=False)
    assert int(fit.sampler["drawn"]) == 1

    class Fine(Pull):
        def step(self, params, state, batch):
            return super().step(params, state, batch)

        def attempt(self, params, state, batch):
            return *self.step(params, state, batch), (state == 1) | (state == 3)

    fit = pb.fit(Fine(), START, Chains(0.1), 7, key=KEY)
    params, state = by_hand(7)
    np.testing.assert_allclose(fit.params, params, rtol=1e-12)
    np.testing.assert_allclose(fit.sampler["x"], state["x"], rtol=1e-12)
    assert int(fit.sampler["drawn"]) == 7


def test_samplers_that_break_their_contract():
    class Forgetful(Chains):
        def draw(self, key, params, state):
            return (state["x"],)

    class Growing(Chains):
        def draw(self, key, params, state):
            batch, new = super().draw(key, params, state)
            return batch, new | {"x": jnp.concatenate([new["x"], new["x"]])}

    class Odd(Chains):
        def draw(self, key, params, state):
            return 3, state

    with pytest.raises(ValueError, match=r"Forgetful\.draw.*must return \(batch, state\)"):
        pb.fit(Pull(), START, Forgetful(0.1), 2)
    with pytest.raises(
        ValueError, match=r"Growing\.draw: state\['x'\] is float64\[4, 3\] before .*\[8, 3\] after"
    ):
        pb.fit(Pull(), START, Growing(0.1), 2)
    with pytest.raises(ValueError, match="batch must be"):
        pb.fit(Pull(), START, Odd(0.1), 2)
    with pytest.raises(ValueError, match="batches must be"):
        pb.fit(Pull(), START, 3)
    with pytest.raises(ValueError, match=r"Odd is a class; pass an instance, Odd\(\.\.\.\)"):
        pb.fit(Pull(), START, Odd)


class Noisy(eqx.Module):
    """Uses the keys that come with a batch."""

    def init(self, params):
        return None

    def step(self, params, state, batch):
        x, keys = batch.inputs
        noise = jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)
        new = params + jnp.mean(x + noise, axis=0)
        return new, state, {"loss": jnp.sum(new**2)}


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_batches_may_hold_typed_keys(impl, tmp_path):
    x = normal(11, 4, 3, seed=2)
    keys = [jax.random.split(jax.random.key(k, impl=impl), 4) for k in range(11)]
    batches = [((x[k], keys[k]), None) for k in range(11)]
    opt, params = Noisy(), START
    for inputs, _ in batches:
        params, _, _ = opt.step(params, None, Batch(inputs, None))
    fit = pb.fit(opt, START, batches, 11)
    np.testing.assert_allclose(fit.params, params, rtol=1e-12)
    assert same(pb.fit(opt, START, iter(batches), 11).params, fit.params)
    for steps in (5, 11):
        resumed = pb.fit(opt, START, batches, steps, checkpoint=tmp_path)
    assert same(resumed.params, fit.params)
    # The same in every step, and from a function.
    once = pb.fit(opt, START, batches[0], 2)
    assert same(once.params, pb.fit(opt, START, lambda key: batches[0], 2).params)
    assert same(once.params, pb.fit(opt, START, [batches[0]] * 2, 2).params)


def test_keys_of_another_kind_begin_another_stack():
    x = normal(4, 3, seed=2)
    kinds = ["threefry2x32", "threefry2x32", "rbg"]
    batches = [((x, jax.random.split(jax.random.key(1, impl=kind), 4)), None) for kind in kinds]
    with pytest.warns(pb.FitWarning, match="change their shape at step 2"):
        assert pb.fit(Noisy(), START, batches, 3).steps == 3


def test_an_iterable_is_begun_once():
    """A loader of data may start its workers there."""

    class Loader:
        begun = 0

        def __iter__(self):
            self.begun += 1
            return iter([(normal(4, 3, seed=2),)] * 3)

    loader = Loader()
    assert pb.fit(Pull(), START, loader, 3).steps == 3 and loader.begun == 1


ASKING = {
    "NumPy": lambda key, params: np.asarray(params),
    "bool": lambda key, params: 1.0 if params[0] > 0 else 2.0,
    "float": lambda key, params: float(params[0]),
    "int": lambda key, params: range(int(params[0])),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_simulator_in_python_is_refused_with_what_to_do(name):
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
    opt, start = pb.NaturalGradientDescent(problem), jnp.ones(2)

    def draw(key, params):
        ASKING[name](key, params)
        return jnp.eye(2), jnp.zeros(2)

    with pytest.raises(ValueError, match=r"fit\(batches=\.\.\.\): JAX traces .* opt\.step"):
        pb.fit(opt, start, draw, 2)
    with pytest.raises(ValueError, match=r"fit\(validate=\.\.\.\): JAX traces"):
        pb.fit(opt, start, (jnp.eye(2), jnp.zeros(2)), 2, validate=draw)
