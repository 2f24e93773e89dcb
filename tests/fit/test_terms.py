"""Runs on several terms: batches of every kind, columns of each term, weights that adapt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, normal

import pullback as pb

PARAMS = {"w": normal(2, 4), "v": normal(4, 1, seed=1)}
X, XB, YB = normal(6, 2, seed=2), normal(3, 2, seed=3), normal(3, 1, seed=4)
BATCH = {"inside": (X, jnp.zeros((6, 1))), "boundary": (XB, YB)}


def network(p, x):
    return jnp.tanh(x @ p["w"]) @ p["v"]


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def doubled(p, x):
    return network(p, 2.0 * x) ** 2


TERMS = pb.Terms(
    inside=pb.Composite(doubled, square),
    boundary=pb.Composite(network, square),
    weights={"inside": 1.0, "boundary": 3.0},
)
OPT = pb.NaturalGradientDescent(TERMS, pb.Tikhonov(0.1))


def run(batches, steps=3, opt=OPT, **options):
    return pb.fit(opt, PARAMS, batches, steps, progress=False, **options)


def test_every_kind_of_batches_is_the_same_run(tmp_path):
    whole = run(BATCH)
    assert np.allclose(
        whole.history["loss"],
        whole.history["losses.inside"] + 3 * whole.history["losses.boundary"],
    )
    assert set(whole.history["weights.boundary"]) == {3.0}
    for other in (
        lambda key: BATCH,
        lambda key, params: BATCH,
        [BATCH] * 3,
        pb.minibatches(BATCH, {"inside": 6, "boundary": 3}),
    ):
        assert distance(run(other).params, whole.params) < 1e-12
    run(BATCH, steps=1, checkpoint=tmp_path)
    resumed = run(BATCH, checkpoint=tmp_path, validate=BATCH)
    assert distance(resumed.params, whole.params) == 0
    assert "validation" in resumed.history


def test_a_tuple_of_two_batches_is_not_inputs_and_targets():
    opt = pb.NaturalGradientDescent(
        pb.Terms((TERMS.terms[1], TERMS.terms[0]), weights=(1.0, 3.0)), pb.Tikhonov(0.1)
    )
    pair = (BATCH["inside"], BATCH["boundary"])
    whole = run(BATCH)
    for batches in (pair, lambda key: pair, pb.minibatches(pair, (6, 3))):
        assert distance(run(batches, opt=opt).params, whole.params) < 1e-12


def test_minibatches_draw_from_each_term():
    draw = pb.minibatches(BATCH, {"inside": 2, "boundary": 1})
    parts = dict(zip(("boundary", "inside"), draw(jax.random.key(0)).parts, strict=True))
    assert parts["inside"].inputs.shape == (2, 2)
    assert parts["boundary"].targets.shape == (1, 1)
    assert draw.steps_per_epoch == 3
    with pytest.raises(ValueError, match="term 'boundary': minibatches"):
        pb.minibatches(BATCH, 5)
    with pytest.raises(ValueError, match="lacks 'boundary'"):
        pb.minibatches(BATCH, {"inside": 5})
    with pytest.raises(ValueError, match="the batch of Terms lacks 'boundary'"):
        run({"inside": BATCH["inside"]})


def sizes(params):
    """The norms of the gradients and the traces of the kernels of both terms, dense."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    norms, traces = {}, {}
    for name, model in (("inside", doubled), ("boundary", network)):
        x, y = BATCH[name]
        j = np.asarray(jax.jacobian(lambda q, m=model, x=x: m(unravel(q), x)[:, 0])(flat))
        c = np.asarray(model(params, x) - y)[:, 0] / len(x)
        norms[name], traces[name] = np.linalg.norm(j.T @ c), np.sum(j * j) / len(x)
    return norms, traces


def test_weights_adapt_between_steps():
    norms, traces = sizes(PARAMS)
    for rule, found in (
        (pb.weights.ByGradientNorm(0.5), norms),
        (pb.weights.ByTrace(0.5), traces),
        (lambda losses, norms, traces, old: {k: 0.5 * old[k] + 2 * norms[k] for k in old}, None),
    ):
        opt = pb.NaturalGradientDescent(TERMS, pb.Tikhonov(0.1), weighting=rule)
        history = run(BATCH, opt=opt).history
        for name, start in (("inside", 1.0), ("boundary", 3.0)):
            if found is None:
                expected = 0.5 * start + 2 * norms[name]
            else:
                expected = 0.5 * start + 0.5 * sum(found.values()) / found[name]
            column = history[f"weights.{name}"]
            assert column[0] == start
            assert abs(column[1] - expected) < 1e-10 * expected
    total = sum(history[f"weights.{k}"] * history[f"losses.{k}"] for k in BATCH)
    assert np.allclose(history["loss"], total)


def test_an_absent_term_stays_absent_and_bad_rules_are_named():
    opt = pb.NaturalGradientDescent(
        TERMS.with_weights({"inside": 1.0, "boundary": 0.0}), weighting=pb.weights.ByTrace()
    )
    *_, record = opt.step(PARAMS, opt.init(PARAMS), BATCH)
    state = opt.step(PARAMS, opt.init(PARAMS), BATCH)[1]
    assert [float(w) for w in state.weights] == [0.0, 1.0]
    assert not bool(record.failed)
    with pytest.raises(ValueError, match="left out for a problem of one term"):
        pb.NaturalGradientDescent(TERMS.terms[0], weighting=pb.weights.ByTrace())
    with pytest.raises(ValueError, match="must be a function"):
        pb.NaturalGradientDescent(TERMS, weighting=3)
    with pytest.raises(ValueError, match="memory must be"):
        pb.weights.ByTrace(1.0)
    wrong = pb.NaturalGradientDescent(TERMS, weighting=lambda *_: {"inside": 1.0})
    with pytest.raises(ValueError, match="lacks 'boundary'"):
        wrong.step(PARAMS, wrong.init(PARAMS), BATCH)


def test_a_weight_that_is_none_is_a_failure_of_the_next_step():
    rule = lambda losses, norms, traces, old: {k: -w for k, w in old.items()}
    opt = pb.NaturalGradientDescent(TERMS, weighting=rule)
    state = opt.step(PARAMS, opt.init(PARAMS), BATCH)[1]
    record = opt.step(PARAMS, state, BATCH)[2]
    assert bool(record.failed)


@pytest.mark.parametrize("kind", ["key", "parameters", "sampler", "iterable"])
def test_an_epoch_has_the_length_that_the_batches_say(kind):
    class Length:
        steps_per_epoch = 2

    class Drawn(Length):
        def init(self, key, params):
            return jnp.zeros(())

        def draw(self, key, params, state):
            return BATCH, state

    class Listed(Length):
        def __iter__(self):
            return iter([BATCH] * 6)

    of_key, of_params = lambda key: BATCH, lambda key, params: BATCH
    of_key.steps_per_epoch = of_params.steps_per_epoch = 2
    batches = {"key": of_key, "parameters": of_params, "sampler": Drawn(), "iterable": Listed()}
    found = run(batches[kind], steps=4, evaluate=lambda p: 1.0, every=pb.Epochs(1))
    assert np.flatnonzero(np.isfinite(found.history["evaluation"])).tolist() == [1, 3]
