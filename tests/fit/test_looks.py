"""Held-out losses and numbers of one's own in the history, and a warning where they depart."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit.looks import APART
from pullback._fit.watch import departed

X, Y = normal(12, 2, seed=1), normal(12, 1, seed=2)
HELD = (normal(7, 2, seed=5), normal(7, 1, seed=6))
START = {"w": normal(2, 3, seed=3), "v": normal(3, 1, seed=4)}


def model(p, x):
    return jnp.tanh(x @ p["w"]) @ p["v"]


PROBLEM = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, 1) / 2)
OPT = pb.NaturalGradientDescent(PROBLEM, step=pb.step.LineSearch())


def mean_loss(params, batch):
    return float(np.mean(np.sum((np.asarray(model(params, batch[0])) - batch[1]) ** 2, 1)) / 2)


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y, equal_nan=True), a, b))


def test_the_held_out_loss_is_in_history_plot_and_telemetry(tmp_path):
    seen = []
    watch = lambda params: seen.append(params) or {"w": jnp.sum(params["w"] ** 2), "n": len(seen)}
    lines = tmp_path / "run.jsonl"
    fit = pb.fit(OPT, START, (X, Y), 7, validate=HELD, evaluate=watch, every=3, telemetry=lines)
    looked = [False, False, True, False, False, True, True]
    assert list(fit.history)[-3:] == ["validation", "w", "n"]
    assert list(np.isfinite(fit.history["validation"])) == looked
    assert list(fit.history["n"][looked]) == [2, 3, 4]  # once before the first step
    assert same(seen[0], START) and same(seen[-1], fit.params)
    for row, params in zip((2, 5, 6), seen[1:], strict=True):
        assert fit.history["validation"][row] == pytest.approx(mean_loss(params, HELD), rel=1e-12)
    assert fit.history["w"][6] == pytest.approx(float(jnp.sum(fit.params["w"] ** 2)))
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["validation"] is not None for row in rows] == looked
    labels = fit.plot().axes[0].get_legend_handles_labels()[1]
    assert "held out" in labels
    # A look changes nothing.
    assert same(fit.params, pb.fit(OPT, START, (X, Y), 7).params)


def test_the_penalty_is_part_of_the_loss():
    opt = pb.NaturalGradientDescent(PROBLEM, penalty=lambda p: jnp.sum(p["w"] ** 2))
    expected = mean_loss(START, HELD) + float(jnp.sum(START["w"] ** 2))
    assert float(opt.loss(START, HELD)) == pytest.approx(expected, rel=1e-12)
    _, _, record = opt.step(START, opt.init(START), (X, Y))
    assert float(opt.loss(START, (X, Y))) == pytest.approx(float(record.loss), rel=1e-12)


def test_the_held_out_loss_is_in_the_progress_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    pb.fit(OPT, START, (X, Y), 5, validate=HELD, every=4)
    assert "held out" in capsys.readouterr().err


def test_other_optimisers_with_a_loss():
    opt = pb.BlockDescent(PROBLEM, blocks=lambda path: path, rate=0.01)
    fit = pb.fit(opt, START, (X, Y), 3, validate=HELD)
    assert fit.history["validation"][-1] == pytest.approx(mean_loss(fit.params, HELD), rel=1e-12)


def test_held_out_batches_that_are_drawn():
    draw = lambda key: (jax.random.normal(key, (5, 2)), jnp.ones((5, 1)))
    fit = pb.fit(OPT, START, (X, Y), 4, validate=draw, every=2, key=3)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), APART), 4)
    assert fit.history["validation"][3] == pytest.approx(mean_loss(fit.params, draw(key)))
    assert np.isnan(fit.history["validation"][2])


def test_held_out_batches_may_depend_on_the_parameters():
    draw = lambda key, p: (jax.random.normal(key, (5, 2)), jnp.ones((5, 1)) * jnp.sum(p["v"]))
    fit = pb.fit(OPT, START, (X, Y), 3, validate=draw, every=3, key=3)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), APART), 3)
    assert fit.history["validation"][2] == pytest.approx(
        mean_loss(fit.params, draw(key, fit.params))
    )


@pytest.mark.parametrize("problem", [PROBLEM, pb.Terms(one=PROBLEM)])
def test_held_out_functions_of_other_arguments_are_refused(problem):
    opt = pb.NaturalGradientDescent(problem, step=1.0)
    with pytest.raises(ValueError, match=r"fit.validate=function.*it takes no arguments"):
        pb.fit(opt, START, None, 2, validate=lambda: HELD)
    with pytest.raises(ValueError, match=r"fit.validate=function.*it needs key, params, more"):
        pb.fit(opt, START, None, 2, validate=lambda key, params, more: HELD)


@pytest.mark.parametrize("cut", [1, 4, 6])
def test_a_resumed_run_has_the_same_looks(tmp_path, cut):
    options = {"validate": HELD, "evaluate": lambda p: jnp.max(p["v"]), "every": 3}
    whole = pb.fit(OPT, START, (X, Y), 8, **options)

    class Stop(Exception):
        pass

    def stop(report):
        if report.step >= cut:
            raise Stop

    saving = pb.Checkpoints(tmp_path, every_steps=1)
    with pytest.raises(Stop):
        pb.fit(OPT, START, (X, Y), 8, checkpoint=saving, callback=stop, **options)
    fit = pb.fit(OPT, START, (X, Y), 8, checkpoint=saving, **options)
    assert same(fit.params, whole.params)
    assert same(dict(fit.history.columns), dict(whole.history.columns))


def test_looks_may_be_added_to_a_run_and_left_out(tmp_path):
    lines = tmp_path / "run.jsonl"
    options = {"checkpoint": tmp_path / "run", "telemetry": lines}
    pb.fit(OPT, START, (X, Y), 2, **options)
    pb.fit(OPT, START, (X, Y), 4, validate=HELD, **options)
    fit = pb.fit(OPT, START, (X, Y), 6, **options)
    looked = [False, False, True, True, False, False]
    assert list(np.isfinite(fit.history["validation"])) == looked
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(6))
    assert same(fit.params, pb.fit(OPT, START, (X, Y), 6).params)


def test_how_often_it_is_looked():
    for steps, looks in ((10, 10), (100, 50), (230, 58)):
        opt = Still()
        fit = pb.fit(opt, jnp.zeros(1), None, steps, evaluate=lambda p: 1.0)
        assert np.isfinite(fit.history["evaluation"]).sum() == looks
        assert np.isfinite(fit.history["evaluation"][-1])


class Still(eqx.Module):
    """Does nothing."""

    def init(self, params):
        return None

    def step(self, params, state, batch):
        return params, state, {"loss": jnp.sum(params), "other": jnp.zeros(())}


def test_an_error_in_evaluate_keeps_the_steps(tmp_path):
    calls = []

    def fragile(params):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("no more")
        return 1.0

    with pytest.raises(RuntimeError, match="no more"):
        pb.fit(OPT, START, (X, Y), 6, evaluate=fragile, every=2, checkpoint=tmp_path)
    fit = pb.fit(OPT, START, (X, Y), 6, evaluate=fragile, every=2, checkpoint=tmp_path)
    assert fit.steps == 6 and same(fit.params, pb.fit(OPT, START, (X, Y), 6).params)
    assert list(np.isfinite(fit.history["evaluation"])) == [False, True, False, False, False, True]


def test_what_cannot_be_looked_at_is_refused():
    run = lambda **options: pb.fit(Still(), jnp.zeros(1), None, 4, **options)
    for words, options in {
        "evaluate must be a function": {"evaluate": 3},
        "every must be an integer of at least 1": {"every": 0, "evaluate": lambda p: 1.0},
        "there is nothing to compute every 3 steps": {"every": 3},
        "Still has no method loss": {"validate": (X, Y)},
        "'other' is a field of the record of Still": {"evaluate": lambda p: {"other": 1.0}},
        "'loss' is a field of the record": {"evaluate": lambda p: {"loss": 1.0}},
        "the names must be words.*got 'validation'": {"evaluate": lambda p: {"validation": 1.0}},
        "the names must be words.*got 3": {"evaluate": lambda p: {3: 1.0}},
        r"'a' must be one real number.*float64\(1,\)": {"evaluate": lambda p: {"a": p}},
        "'a' must be one real number.*complex": {"evaluate": lambda p: {"a": 1j}},
        "'evaluation' must be one real number.*NoneType": {"evaluate": lambda p: None},
        "'evaluation' must be one real number.*str": {"evaluate": lambda p: "good"},
    }.items():
        with pytest.raises(ValueError, match=words):
            run(**options)
    for bad in (3, "x", [X, Y], pb.minibatches):
        with pytest.raises(ValueError, match=r"validate must be .inputs, targets. or a function"):
            pb.fit(OPT, START, (X, Y), 2, validate=bad)
    turns = iter([{"a": 1.0}, {"a": 1.0}, {"b": 1.0}])
    with pytest.raises(ValueError, match="returned b after step 2 and a before"):
        run(evaluate=lambda p: next(turns))
    # Every kind of real number.
    kinds = (1, True, np.float32(2), np.int8(1), jnp.ones((), jnp.bfloat16), np.asarray(1.0))
    for number in kinds:
        fit = run(evaluate=lambda p, number=number: {"a": number})
        assert fit.history["a"][-1] == float(number) and fit.history["a"].dtype == float


def test_a_held_out_loss_that_departs_is_warned_of_once():
    """A polynomial of high degree through noisy samples."""
    powers = lambda x: x[:, :1] ** np.arange(12)[None]
    x, held = np.linspace(-1, 1, 14)[:, None], np.linspace(-0.95, 0.95, 40)[:, None]
    noise = 0.5 * normal(14, seed=8)
    fits = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
    opt = pb.NaturalGradientDescent(fits, pb.Tikhonov(1e-3), step=0.05)
    data = (jnp.asarray(powers(x)), jnp.sin(3 * x[:, 0]) + noise)
    test = (jnp.asarray(powers(held)), jnp.sin(3 * held[:, 0]))
    with pytest.warns(
        pb.FitWarning, match=r"held-out loss has risen .* training loss fell"
    ) as told:
        fit = pb.fit(opt, jnp.zeros(12), data, 400, validate=test)
    assert len(told) == 1 and told[0].filename == __file__
    held_out = fit.history["validation"][np.isfinite(fit.history["validation"])]
    assert held_out[-1] > 1.2 * held_out.min()
    # Data that are as good as new: no word.
    fit = pb.fit(opt, jnp.zeros(12), test, 400, validate=data)


def test_noise_is_no_departure():
    """Many runs of noise around a falling or a constant mean, none of which rises."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        n = int(rng.integers(15, 120))
        steps = np.arange(n)
        spread = rng.choice([0.05, 0.3, 1.0])
        level = np.exp(-steps / n * rng.choice([0.0, 1.0, 5.0]))
        held_out = level * np.exp(spread * rng.standard_normal(n))
        training = np.exp(-3 * steps / n) * np.exp(spread * rng.standard_normal(n))
        looks = list(zip(steps, held_out, training, strict=True))
        alarms += any(departed(looks[:k]) for k in range(n + 1))
    assert alarms <= 1


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_a_clear_rise_is_a_departure(spread):
    rng = np.random.default_rng(1)
    steps = np.arange(50)
    held_out = np.maximum(np.exp(-steps / 5), 1e-2 * np.exp((steps - 23) / 10))
    held_out *= np.exp(spread * rng.standard_normal(50))
    training = np.exp(-steps / 3)
    looks = list(zip(steps, held_out, training, strict=True))
    first = next(k for k in range(51) if departed(looks[:k]))
    assert 25 < first < 45
    # Not if the training loss rises, too.
    assert departed(list(zip(steps, held_out, held_out, strict=True))) is None


def test_looks_are_taken_by_epochs():
    looks = lambda batches, epochs: np.flatnonzero(
        np.isfinite(
            pb.fit(OPT, START, batches, 8, validate=HELD, every=epochs, until=()).history[
                "validation"
            ]
        )
    ).tolist()
    assert looks(pb.minibatches((X, Y), 4), pb.Epochs(1)) == [2, 5, 7]
    assert looks(pb.minibatches((X, Y), 5), pb.Epochs(2)) == [4, 7]  # 4.8 steps
    assert looks((X, Y), pb.Epochs(4)) == [3, 7]
    assert looks((X, Y), pb.Epochs(0.1)) == list(range(8))
    draw = lambda key: (X, Y)
    with pytest.raises(ValueError, match=r"every=Epochs\(1\).*not known.*steps_per_epoch = 100"):
        looks(draw, pb.Epochs(1))
    draw.steps_per_epoch = 4
    assert looks(draw, pb.Epochs(1)) == [3, 7]
    with pytest.raises(ValueError, match=r"Epochs\(number=0\): number must be positive"):
        pb.Epochs(0)
    draw.steps_per_epoch = "four"
    with pytest.raises(ValueError, match="steps_per_epoch must be positive"):
        looks(draw, pb.Epochs(1))


def test_minibatches_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="as many samples as each other, got 10, 12"):
        pb.minibatches((X, Y[:10]), 4)
    with pytest.raises(ValueError, match=r"size must be an integer"):
        pb.minibatches((X, Y), 4.0)
