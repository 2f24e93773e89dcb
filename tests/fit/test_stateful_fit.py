"""`fit` of models with state: a Python loop of steps, and a run that is resumed."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stateful_models import N, X, Y, case, keyed

import pullback as pb

STEPS = 4


def data(x):
    """A batch drawn from a key: samples with noise, and one key per sample for the masks."""

    def draw(key):
        one, two = jax.random.split(key)
        return {"x": x + jax.random.normal(one, x.shape) / 10, "key": jax.random.split(two, N)}, Y

    return draw


def leaves(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in arrays]


def optimiser(given):
    return pb.NaturalGradientDescent(given.problem, step=pb.step.LevenbergMarquardt(damping=0.1))


def looped(opt, point, draw, key):
    """Steps in Python, with the keys that `fit` gives to the batches."""
    state, losses = opt.init(point), []
    for k in range(STEPS):
        point, state, record = opt.step(point, state, draw(jax.random.fold_in(key, k)))
        losses.append(float(record.loss))
    return point, losses


def test_fit_is_a_loop_of_steps():
    given, key = case("equinox", "both"), jax.random.key(7)
    opt = optimiser(given)
    found = pb.fit(opt, given.point, data(X), steps=STEPS, key=key)
    point, losses = looped(opt, given.point, data(X), key)
    np.testing.assert_allclose(found.history["loss"], losses, rtol=1e-8)
    for a, b in zip(leaves(found.params), leaves(point), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_state_of_nnx_moves_in_fit():
    given = case("nnx", "both")
    found = pb.fit(optimiser(given), given.point, (X, Y), steps=STEPS)
    accepted = int(np.sum(found.history["accepted"]))
    # One count of the stream of masks for every accepted step.
    assert int(found.params.state["dropout"]["rngs"]["count"][...]) == accepted > 0


def test_run_with_state_is_resumed(tmp_path):
    given, key = case("linen", "both"), jax.random.key(7)
    opt = optimiser(given)
    folder = lambda: pb.Checkpoints(tmp_path / "run", every_steps=1)
    pb.fit(opt, given.point, data(X), steps=2, key=key, checkpoint=folder())
    resumed = pb.fit(opt, given.point, data(X), steps=STEPS, key=key, checkpoint=folder())
    whole = pb.fit(opt, given.point, data(X), steps=STEPS, key=key)
    for a, b in zip(leaves(resumed.params), leaves(whole.params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.allclose(*(leaves(p.state)[0] for p in (given.point, resumed.params)))


def test_keys_of_a_batch_are_part_of_the_identity(tmp_path):
    given = case("equinox", "dropout")
    opt = optimiser(given)
    pb.fit(opt, given.point, (given.inputs, Y), steps=1, checkpoint=tmp_path)
    pb.fit(opt, given.point, (given.inputs, Y), steps=2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="key"):
        pb.fit(opt, given.point, (keyed(4), Y), steps=3, checkpoint=tmp_path)


def test_key_of_a_state_is_resumed(tmp_path):
    given = case("nnx", "both")
    opt = optimiser(given)
    folder = lambda: pb.Checkpoints(tmp_path / "run", every_steps=1)
    pb.fit(opt, given.point, (X, Y), steps=2, checkpoint=folder())
    resumed = pb.fit(opt, given.point, (X, Y), steps=3, checkpoint=folder())
    whole = pb.fit(opt, given.point, (X, Y), steps=3)
    for a, b in zip(leaves(resumed.params), leaves(whole.params), strict=True):
        np.testing.assert_array_equal(a, b)
