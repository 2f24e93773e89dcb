"""Events that end a run, exactly at their step however many steps are made at a time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit import run as _fit
from pullback._fit.chunk import CAPACITY

X, Y = normal(12, 2, seed=1), normal(12, 1, seed=2)


class Halving(eqx.Module):
    """Halves the parameters; from some step on nothing is taken."""

    stuck: int = eqx.field(static=True, default=10**6)

    def init(self, params):
        return jnp.zeros((), jnp.int32)

    def step(self, params, state, batch):
        accepted = state < self.stuck
        new = jnp.where(accepted, params / 2, params)
        record = {
            "loss": jnp.sum(params**2),
            "loss_after": jnp.sum(new**2),
            "accepted": accepted,
            "size": jnp.max(jnp.abs(new)),
        }
        return new, state + 1, record


START = jnp.asarray([1.0, -0.5])


@pytest.fixture(params=[1, 7, CAPACITY], ids="at once: {}".format)
def pace(request, monkeypatch):
    """How many steps are made at a time, whatever the clock says."""
    clip = lambda value, low, high: min(request.param, high)
    monkeypatch.setattr(_fit, "np", _Clipped(clip))
    return request.param


class _Clipped:
    """NumPy with another `clip`."""

    def __init__(self, clip):
        self.clip = clip

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.mark.parametrize(
    ("event", "steps", "words"),
    [
        (pb.until.LossBelow(1e-6), 11, "the loss fell to 1e-06, after 11 steps"),
        (pb.until.Below("size", 1e-3), 10, "size fell to 0.001, after 10 steps"),
        (pb.until.When(lambda row: row["step"] == 12, "step 12"), 13, "step 12 was met, after 13"),
        (pb.until.Plateau(0.9, 3), 26, "the loss improved by at most 0.9 of its value in 3 steps"),
        (pb.until.Stuck(4), 28, "the last 4 steps were not taken, after 28 steps"),
    ],
)
def test_every_event_ends_the_run_at_its_step(event, steps, words, pace):
    fit = pb.fit(Halving(24), START, None, 300, until=event)
    assert fit.steps == len(fit.history) == steps == int(fit.state)
    assert fit.ended.startswith(words)
    np.testing.assert_array_equal(fit.params, START / 2.0 ** min(steps, 24))


def test_several_events(pace):
    both = [pb.until.LossBelow(1e-6), pb.until.Below("size", 1e-2)]
    fit = pb.fit(Halving(), START, None, 300, until=both)
    assert fit.steps == 7 and fit.ended == "size fell to 0.01, after 7 steps"
    fit = pb.fit(Halving(), START, None, 300, until=(both[0], pb.until.LossBelow(1e-6)))
    assert fit.ended.count("the loss fell to 1e-06") == 2


def test_plateau_against_its_definition():
    rng = np.random.default_rng(0)
    for run in range(40):
        n, window = int(rng.integers(1, 60)), int(rng.integers(1, 12))
        losses = np.exp(-np.cumsum(rng.uniform(-0.1, 0.15, n)))
        losses[rng.uniform(size=n) < 0.3] = np.nan
        event, expected = pb.until.Plateau(0.05, window), []
        for k in range(1, n + 1):
            earlier, all_of_them = losses[: max(0, k - window)], losses[:k]
            b, best = (np.nanmin([np.inf, *x]) for x in (earlier, all_of_them))
            expected.append(bool(np.isfinite(b) and b - best <= 0.05 * abs(b)))
        memory, found = event.begin(), []
        while len(found) < n:
            rows = {"loss": losses[len(found) : len(found) + int(rng.integers(1, 9))]}
            memory, holds = event.holds(memory, rows)
            found += list(holds)
        assert found == expected, run


def test_stuck_against_its_definition():
    rng = np.random.default_rng(1)
    for run in range(40):
        taken = rng.uniform(size=50) < 0.4
        event, memory, found = pb.until.Stuck(3), 0, []
        while len(found) < 50:
            part = taken[len(found) : len(found) + int(rng.integers(1, 9))]
            memory, holds = event.holds(memory, {"loss": part * 1.0, "accepted": part})
            found += list(holds)
        expected = [k >= 2 and not taken[k - 2 : k + 1].any() for k in range(50)]
        assert found == expected, run


def test_events_on_what_is_evaluated(pace):
    count = lambda params: {"digits": -jnp.log2(params[0])}
    event = pb.until.When(lambda row: row["digits"] >= 5, "5 digits")
    fit = pb.fit(Halving(), START, None, 300, evaluate=count, every=4, until=event)
    assert fit.steps == 8 and fit.ended == "5 digits was met, after 8 steps"
    # What ends a run is looked at.
    fit = pb.fit(
        Halving(), START, None, 300, evaluate=count, every=4, until=pb.until.LossBelow(0.1)
    )
    assert fit.steps == 2 and list(fit.history["digits"][1:]) == [2.0]


def test_early_stopping():
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
    opt = pb.NaturalGradientDescent(problem, step=0.2)
    data, held = (X, Y[:, 0]), (X[:5], 1.5 * (X[:5] @ jnp.ones(2)))
    event = pb.until.Plateau(0.0, 5, "validation")
    fit = pb.fit(opt, jnp.zeros(2), data, 300, validate=held, every=1, until=event)
    held_out = fit.history["validation"]
    assert 5 < fit.steps < 300 and np.argmin(held_out) == fit.steps - 6


def test_the_gradient_ends_a_run_whether_or_not_the_step_is_taken():
    model = lambda p, x: jnp.tanh(x @ p)
    problem = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)
    penalty = lambda p: 0.05 * jnp.sum(p**2)
    opt = pb.NaturalGradientDescent(
        problem, step=pb.step.LevenbergMarquardt(damping=1.0), penalty=penalty
    )
    objective = lambda p: problem.at((X, Y)).value(p) + penalty(p)
    start = normal(2, 1, seed=3)
    fit = pb.fit(opt, start, (X, Y), 300, until=pb.until.GradientBelow(1e-3))
    norms = fit.history["gradient_norm"]
    assert np.isclose(norms[0], jnp.linalg.norm(jax.grad(objective)(start)), rtol=1e-12)
    assert norms[-1] <= 1e-3 < norms[:-1].min() and fit.steps < 300
    assert fit.ended == f"the norm of the gradient fell to 0.001, after {fit.steps} steps"
    rows = {"gradient_norm": np.array([2.0, 0.5, np.nan]), "accepted": np.zeros(3, bool)}
    assert pb.until.GradientBelow(1.0).holds(None, rows)[1].tolist() == [False, True, False]


@pytest.mark.parametrize("until", [None, pb.until.LossBelow(1e-6)])
def test_a_run_that_ended_is_ended_when_it_is_resumed(tmp_path, until):
    opt = Halving(5) if until is None else Halving()
    with pytest.warns(pb.FitWarning) if until is None else _nothing():
        first = pb.fit(opt, START, None, 400, until=until, checkpoint=tmp_path)
    assert first.steps == (55 if until is None else 11)
    again = pb.fit(opt, START, None, 400, until=until, checkpoint=tmp_path)
    assert (again.steps, again.ended) == (first.steps, first.ended)
    on = pb.fit(opt, START, None, 130, until=(), checkpoint=tmp_path)
    assert on.steps == 130 and on.ended == "all 130 steps were made"


def _nothing():
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.parametrize("cut", [3, 8, 10])
def test_what_an_event_remembers_survives_a_resumption(tmp_path, cut):
    event = pb.until.Plateau(0.9, 3)
    pb.fit(Halving(9), START, None, cut, until=event, checkpoint=tmp_path)
    fit = pb.fit(Halving(9), START, None, 50, until=event, checkpoint=tmp_path)
    assert fit.steps == 11 and fit.ended.startswith("the loss improved")


def test_events_on_numbers_that_a_resumed_run_adds(tmp_path):
    pb.fit(Halving(), START, None, 3, checkpoint=tmp_path)
    count = lambda params: {"digits": -jnp.log2(params[0])}
    for event in (
        pb.until.Plateau(0.0, 2, "digits"),
        pb.until.When(lambda row: row["digits"] > 5.5),
    ):
        options = {"evaluate": count, "until": [event, pb.until.LossBelow(0.0)]}
        fit = pb.fit(Halving(), START, None, 7, every=1, checkpoint=tmp_path, **options)
        assert fit.steps == 6, event


def test_by_default_a_run_on_one_batch_ends_when_nothing_is_taken(pace):
    with pytest.warns(pb.FitWarning, match="the last 20 steps were not taken, at step 50"):
        fit = pb.fit(Halving(30), START, None, 3000)
    assert fit.steps == 80 and fit.ended == "the last 50 steps were not taken, after 80 steps"
    # Other batches may have steps to take.
    with pytest.warns(pb.FitWarning, match="the last 20 steps were not taken"):
        fit = pb.fit(Halving(30), START, lambda key: None, 150)
    assert fit.steps == 150
    with pytest.warns(pb.FitWarning, match="the last 20 steps were not taken"):
        assert pb.fit(Halving(30), START, None, 150, until=()).steps == 150


def test_a_converged_least_squares_problem_ends_by_itself():
    problem = pb.Composite(
        lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], lambda z, y: jnp.sum((z - y) ** 2, 1) / 2
    )
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    start = {"w": normal(2, 3, seed=3), "v": normal(3, 1, seed=4)}
    with pytest.warns(pb.FitWarning, match="were not taken"):
        fit = pb.fit(opt, start, (X, Y), 3000)
    assert fit.steps < 500 and "were not taken" in fit.ended
    gradient = jax.grad(lambda p: problem.at((X, Y)).value(p))(fit.params)
    assert max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(gradient)) < 1e-6


def test_an_iterator_may_be_read_further_than_the_event():
    batches = [None] * 20
    fit = pb.fit(Halving(), START, batches, 20, until=pb.until.LossBelow(1e-3))
    assert fit.steps == 6


def test_a_failure_before_the_event_is_a_failure():
    class Failing(Halving):
        def step(self, params, state, batch):
            new, state, record = super().step(params, state, batch)
            return new, state, record | {"failed": state == 6}

    with pytest.raises(pb.FitError, match="step 5"):
        pb.fit(Failing(), START, None, 300, until=pb.until.LossBelow(1e-6))
    fit = pb.fit(Failing(), START, None, 300, until=pb.until.LossBelow(1e-2))
    assert fit.steps == 4


def test_an_event_of_ones_own():
    class Tired(pb.until.AbstractEvent):
        def begin(self):
            return 0.0

        def holds(self, memory, rows):
            total = memory + np.cumsum(rows["loss"])
            return total[-1], total > 1.6

        @property
        def description(self):
            return "enough"

    fit = pb.fit(Halving(), START, None, 300, until=Tired())
    assert fit.steps == 3 and fit.ended == "enough, after 3 steps"

    class Wrong(Tired):
        def holds(self, memory, rows):
            return memory, True

    with pytest.raises(ValueError, match=r"Wrong\.holds must return .* one boolean per row"):
        pb.fit(Halving(), START, None, 3, until=Wrong())


def test_bad_events_are_refused():
    for words, make in {
        "until must be one of pullback.until": lambda: pb.fit(Halving(), START, None, 3, until=3),
        "until must be one": lambda: pb.fit(
            Halving(), START, None, 3, until=[pb.event.LossBelow(1e-3)]
        ),
        "until must be": lambda: pb.fit(Halving(), START, None, 3, until=pb.until.Stuck),
        r"LossBelow\(level=nan\): level must be a finite number": lambda: pb.until.LossBelow(
            np.nan
        ),
        "level must be": lambda: pb.until.LossBelow("small"),
        "name must be the name of a column": lambda: pb.until.Below(3, 1.0),
        "rtol must be": lambda: pb.until.Plateau(-1.0),
        "steps must be an integer of at least 1": lambda: pb.until.Plateau(0.1, 0),
        r"Stuck\(steps=0\)": lambda: pb.until.Stuck(0),
        "function must be a function": lambda: pb.until.When(3),
        r"Below\(name='sise'\): name must be a column of the history: step, .*loss": lambda: pb.fit(
            Halving(), START, None, 3, until=pb.until.Below("sise", 1.0)
        ),
        r"GradientBelow\(name='gradient_norm'\): name must be a column": lambda: pb.fit(
            Halving(), START, None, 3, until=pb.until.GradientBelow(1.0)
        ),
        r"Plateau\(name='x'\): name must be a column": lambda: pb.fit(
            Halving(), START, None, 3, until=pb.until.Plateau(0.1, 2, "x")
        ),
    }.items():
        with pytest.raises(ValueError, match=words):
            make()


def test_a_condition_on_a_column_that_is_not_there_names_those_that_are():
    done = pb.until.When(lambda row: row["accuracy"] > 1, "done")
    with pytest.raises(
        ValueError, match=r"When\('done'\): the row has no 'accuracy'; it has .*loss"
    ):
        pb.fit(Halving(), START, None, 3, until=done)
    with pytest.raises(ValueError, match=r"fit\(until='loss'\): until must be one of"):
        pb.fit(Halving(), START, None, 3, until="loss")
