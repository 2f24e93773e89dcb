"""Numbers travel as data, and a lambda with the same code is the same: nothing compiles anew."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb

X, Y, PARAMS = normal(6, 3), normal(6, seed=1), 0.3 * normal(3, seed=2)
traces = []


def model(p, x):
    traces.append(1)
    return jnp.tanh(x @ p)


def loss(z, y):
    return (z - y) ** 2 / 2


@pytest.fixture
def compilations():
    """The programs compiled while the test runs."""
    seen, listening = [], [True]

    def listen(event, duration, **kwargs):
        if listening[0] and event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    listening[0] = False


def stepped(problem=None, **options):
    problem = pb.Composite(model, loss) if problem is None else problem
    opt = pb.NaturalGradientDescent(problem, **options)
    return opt.step(PARAMS, opt.init(PARAMS), (X, Y))[0]


STEPS = {
    "weights": lambda s: stepped(pb.Composite(model, loss, measure=pb.Weights(jnp.full(6, s)))),
    "damping": lambda s: stepped(inverse=pb.Tikhonov(s)),
    "rate": lambda s: stepped(step=s),
    "Levenberg-Marquardt": lambda s: stepped(step=pb.step.LevenbergMarquardt(s)),
    "its rate": lambda s: stepped(step=pb.step.LevenbergMarquardt(rate=s)),
    "line search": lambda s: stepped(step=pb.step.LineSearch(s)),
    "trust region": lambda s: stepped(
        pb.Composite(model, loss, pb.metric.Gaussian()), step=pb.step.TrustRegion(s)
    ),
    "geodesic": lambda s: stepped(step=pb.step.Geodesic(pb.step.Fixed(s), s)),
    "momentum": lambda s: stepped(momentum=pb.Spring(s / 2)),
}


@pytest.mark.parametrize("name", STEPS)
def test_another_number_compiles_nothing_and_counts(name, compilations):
    first = STEPS[name](0.5)
    STEPS[name](0.7)  # what converts numbers is compiled, too
    traces.clear()
    compilations.clear()
    second = STEPS[name](0.25)
    assert traces == [] and compilations == []
    if name not in ("weights", "momentum", "trust region"):
        assert float(jnp.max(jnp.abs(first - second))) > 1e-6


def test_a_fit_with_another_rate_compiles_nothing():
    run = lambda s: pb.fit(
        pb.NaturalGradientDescent(pb.Composite(model, loss), step=s), PARAMS, (X, Y), 2
    )
    first = run(0.5)
    traces.clear()
    second = run(0.25)
    assert traces == []
    assert first.history["loss_after"][0] < second.history["loss_after"][0]
    assert repr(pb.NaturalGradientDescent(pb.Composite(model, loss), step=0.5)).count("0.5") == 1


def test_a_rule_of_ones_own_may_decide_by_its_numbers():
    class Own(pb.step.AbstractStep):
        rate: float = 0.5

        def step(self, sub, state):
            rate = 1.0 if self.rate > 1 else self.rate
            curve = sub.curve(sub.direction())
            return pb.step.move(sub, curve, rate), state

    assert jnp.allclose(stepped(step=Own(0.25)), stepped(step=0.25))
    # Also inside of a rule whose numbers are data.
    stepped(step=pb.step.Geodesic(Own(0.25)))


def natural(problem):
    return pb.natural_gradient(problem, PARAMS, (X, Y)).vector


def closed(scale):
    square = lambda r: r**2
    return lambda z, y: scale * square(z - y) / 2


def test_a_lambda_written_anew_compiles_nothing():
    """With the same code, and the same numbers and functions inside."""
    kept = [natural(pb.Composite(model, closed(2.0)))]
    traces.clear()
    for _ in range(3):
        kept.append(natural(pb.Composite(model, closed(2.0))))
    assert traces == [] and all(jnp.array_equal(x, kept[0]) for x in kept)


def test_other_values_inside_are_other_functions():
    c = lambda scale: pb.differential(pb.Composite(model, closed(scale)), PARAMS, (X, Y)).tree
    one = c(1.0)
    for scale in (2.0, -1.0, 1.0, 0.5):
        assert jnp.allclose(c(scale), scale * one)
    # One, True and 1.0 are equal, and not the same.
    assert len({id(pb.Composite(model, closed(s)).loss) for s in (1, True, 1.0)}) <= 3
    kinds = [pb.Composite(model, closed(s)) for s in (1, True, 1.0)]
    assert len({id(p.loss) for p in kinds}) == 3
    signs = [pb.Composite(model, closed(s)) for s in (0.0, -0.0)]
    assert signs[0].loss is not signs[1].loss


def test_defaults_and_arrays_count():
    make = lambda a: lambda z, y, a=a: a * (z - y) ** 2
    two = [pb.Composite(model, make(a)) for a in (1.0, 2.0, 1.0)]
    assert two[0].loss is two[2].loss is not two[1].loss
    array = jnp.ones(())
    same = [pb.Composite(model, make(array)) for _ in range(2)]
    assert same[0].loss is same[1].loss, "the same array"
    other = [pb.Composite(model, make(jnp.ones(()))) for _ in range(2)]
    assert other[0].loss is not other[1].loss, "another array, whatever it holds"


def test_a_value_that_was_set_since_is_seen():
    def make():
        scale = 1.0

        def inner(z, y):
            return scale * (z - y) ** 2 / 2

        def change(value):
            nonlocal scale
            scale = value

        return inner, change

    first, change = make()
    kept = pb.Composite(model, first)
    change(3.0)
    second, _ = make()
    problem = pb.Composite(model, second)
    assert problem.loss is second and kept.loss is first
    slope = jax.grad(lambda p: jnp.mean(loss(model(p, X), Y)))(PARAMS)
    assert jnp.allclose(pb.differential(problem, PARAMS, (X, Y)).tree, slope)


def test_functions_are_not_kept_alive():
    from pullback._base.functions import _known

    before = len(_known)
    problem = pb.Composite(model, lambda z, y: 17.0 * (z - y) ** 2)
    assert len(_known) == before + 1
    del problem
    gc.collect()
    assert len(_known) <= before


def test_penalties_and_models_too(compilations):
    make = lambda: stepped(
        pb.Composite(lambda p, x: jnp.tanh(x @ p), lambda z, y: loss(z, y)),
        penalty=lambda p: 1e-3 * jnp.sum(p**2),
    )
    kept = make()
    compilations.clear()
    again = make()
    assert compilations == []
    assert np.array_equal(again, kept)


SCALE = 1.0


def test_a_global_variable_that_was_set_since_is_seen():
    """As in a notebook: a cell sets it, another one, which is run again, uses it."""
    global SCALE
    problems = []

    def slope():
        problems.append(pb.Composite(model, lambda z, y: SCALE * loss(z, y)))
        return natural(problems[-1])

    one = slope()
    SCALE = 3.0
    assert jnp.allclose(slope(), 3 * one)
    SCALE = 1.0
    assert jnp.allclose(slope(), one)


@pytest.mark.parametrize(
    "make", [lambda: [1.0], lambda: {0: 1.0}, lambda: np.ones(1)], ids=["list", "dict", "NumPy"]
)
def test_what_was_changed_in_place_is_seen(make):
    held = make()
    problems = []

    def slope():
        problems.append(pb.Composite(model, lambda z, y: held[0] * loss(z, y)))
        return natural(problems[-1])

    one = slope()
    held[0] = 3.0
    assert jnp.allclose(slope(), 3 * one)


def test_other_arrays_inside_are_logged_once_with_the_cure(caplog):
    make = lambda a: lambda z, y: a * (z - y) ** 2 / 2
    made = [pb.Composite(model, make(jnp.asarray(float(i)))) for i in range(20)]
    assert len({id(p.loss) for p in made}) == 20
    (record,) = caplog.records
    assert "<lambda>" in record.message and "written anew 8 times" in record.message
    assert "jax.tree_util.Partial" in record.message


def test_the_cure_compiles_nothing():
    scaled = lambda a, z, y: a * (z - y) ** 2 / 2
    run = lambda a: natural(pb.Composite(model, jax.tree_util.Partial(scaled, jnp.asarray(a))))
    first = run(1.0)
    traces.clear()
    assert jnp.allclose(run(2.0), 2 * first) and traces == []
