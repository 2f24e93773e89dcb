"""Numbers travel as data, and a lambda with the same code is the same: nothing compiles anew."""

import functools
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


def scaled(z, y):
    return SCALE * loss(z, y)


def scaled_by_a_helper(z, y):
    inner = lambda r: helper(r)
    return inner(loss(z, y))


def helper(x):
    return SCALE * x


def closed_over():
    scale = 1.0

    def change(value):
        nonlocal scale
        scale = value

    return lambda z, y: scale * loss(z, y), change


def set_globally(value):
    global SCALE
    SCALE = value


def redefined(value):
    global helper
    helper = (lambda x: value * x) if value != 1.0 else (lambda x: x)


def with_a_default(delta=1.0):
    def loss_of(z, y, scale=delta):
        return scale * loss(z, y)

    return loss_of


outer_loss = with_a_default()


def through_a_default(z, y):
    return outer_loss(z, y)


def redefined_with_another_default(value):
    global outer_loss
    outer_loss = with_a_default(value)


def plus(f, g):
    return lambda z, y: f(z, y) + g(z, y)


def method_of(function):
    class Holder:
        def loss(self, z, y):
            return function(z, y)

    return Holder().loss


CHANGES = {
    "global": lambda: (scaled, set_globally),
    "an array": lambda: (scaled, lambda value: set_globally(jnp.asarray(value))),
    "through a helper": lambda: (scaled_by_a_helper, set_globally),
    "a helper": lambda: (scaled_by_a_helper, redefined),
    "closure": closed_over,
    "a default": lambda: (through_a_default, redefined_with_another_default),
    "functions of one code": lambda: (
        plus(plus(scaled, lambda z, y: 0.0 * z), lambda z, y: 0.0 * z),
        set_globally,
    ),
    "partial": lambda: (functools.partial(scaled), set_globally),
    "method": lambda: (method_of(scaled), set_globally),
    "vmap": lambda: (jax.vmap(scaled), set_globally),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_compiled_function_sees_what_was_set_since(name, monkeypatch, compilations):
    """The same problem, after a cell that sets what its loss reads was run again."""
    for variable in ("helper", "SCALE", "outer_loss"):
        monkeypatch.setitem(globals(), variable, globals()[variable])
    outer, change = CHANGES[name]()
    problem = pb.Composite(model, outer)
    opt = pb.NaturalGradientDescent(problem, step=0.5)
    one, moved = natural(problem), pb.fit(opt, PARAMS, (X, Y), 1).params - PARAMS
    change(3.0)
    assert jnp.allclose(natural(problem), 3 * one)
    assert jnp.allclose(pb.fit(opt, PARAMS, (X, Y), 1).params - PARAMS, 3 * moved)
    compilations.clear()
    assert jnp.allclose(natural(problem), 3 * one)
    assert compilations == []


COUNT = 0


def test_what_a_function_counts_itself_compiles_nothing(compilations):
    inside = 0

    def counted(z, y):
        global COUNT
        nonlocal inside
        COUNT, inside = COUNT + 1, inside + 1
        return loss(z, y)

    problem = pb.Composite(model, counted)
    one = natural(problem)
    compilations.clear()
    assert jnp.allclose(natural(problem), one) and compilations == []


ISING = pb.vmc.ising(pb.vmc.Lattice((3,)), field=1.0)


def test_a_flow_and_a_sampler_see_what_was_set_since(monkeypatch):
    """Also where compiled functions call others: the field of a flow, the chains of a sampler."""
    monkeypatch.setitem(globals(), "SCALE", SCALE)
    problem = pb.Composite(model, scaled)
    ends = lambda: pb.flow(problem, PARAMS, (X, Y), t1=0.1, kind=pb.EuclideanFlow()).params - PARAMS
    wave = lambda p, s: SCALE * (s @ p)
    energy = pb.vmc.problem(wave, ISING)
    sampler = pb.vmc.Metropolis(energy, 4, 2)

    def drawn():
        weights = jnp.asarray([0.3, -0.2, 0.5])
        state = sampler.init(jax.random.key(0), weights)
        return sampler.draw(jax.random.key(1), weights, state)[1]

    before = ends(), drawn()
    set_globally(3.0)
    after = ends(), drawn()
    fresh = pb.Composite(model, lambda z, y: 3.0 * loss(z, y))
    right = pb.flow(fresh, PARAMS, (X, Y), t1=0.1, kind=pb.EuclideanFlow()).params - PARAMS
    assert jnp.allclose(after[0], right) and not jnp.allclose(after[0], before[0])
    three = pb.vmc.problem(lambda p, s: 3.0 * (s @ p), ISING)
    sampler = pb.vmc.Metropolis(three, 4, 2)
    leaves = zip(*map(jax.tree.leaves, (drawn(), after[1], before[1])), strict=True)
    found = [(jnp.array_equal(a, b), jnp.array_equal(a, c)) for a, b, c in leaves]
    assert all(same for same, _ in found) and not all(same for _, same in found)


def test_many_helpers_are_read_once_each():
    """Each calls all that follow: 2**40 paths."""
    from pullback._base.reads import reads

    space = {}
    for k in range(40):
        calls = " + ".join(f"f{j}(x)" for j in range(k + 1, 40)) or "x"
        exec(f"def f{k}(x):\n    return {calls}", space)
    assert len(reads(space["f0"]).marks) < 2000


def test_a_count_that_a_helper_keeps_compiles_nothing(compilations):
    space = {"loss": loss}
    exec(
        "calls = 0\ndef helper():\n    global calls\n    calls += 1\n"
        "def counted(z, y):\n    helper()\n    return loss(z, y) * float(calls > 0)",
        space,
    )
    problem = pb.Composite(model, space["counted"])
    one = natural(problem)
    compilations.clear()
    assert jnp.allclose(natural(problem), one) and compilations == []


def test_a_function_that_calls_itself_is_read_once():
    def power(x, n):
        return jnp.ones_like(x) if n == 0 else x * power(x, n - 1)

    problem = pb.Composite(model, lambda z, y: power(z - y, 2) / 2)
    assert jnp.allclose(natural(problem), natural(pb.Composite(model, loss)))


def test_a_variable_that_is_set_again_and_again_is_logged(monkeypatch, caplog):
    monkeypatch.setitem(globals(), "SCALE", SCALE)
    problem = pb.Composite(model, lambda z, y: SCALE * loss(z, y))
    for i in range(9):
        set_globally(float(i))
        natural(problem)
    (record,) = caplog.records
    assert "changed from outside 8 times" in record.message


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


INSIDE = {
    "NumPy array": lambda i: (lambda held: lambda z, y: held * (z - y) ** 2)(np.ones(()) * i),
    "list": lambda i: (lambda held: lambda z, y: held[0] * (z - y) ** 2)([float(i)]),
    "object": lambda i: (lambda held: lambda z, y: held.real * (z - y) ** 2)(np.float64(i)),
    "number": lambda i: (lambda held: lambda z, y: held * (z - y) ** 2)(float(i)),
    "partial": lambda i: functools.partial(lambda held, z, y: held * (z - y) ** 2, float(i)),
    "jit": lambda i: jax.jit((lambda held: lambda z, y: held * (z - y) ** 2)(float(i))),
}


@pytest.mark.parametrize("name", INSIDE)
def test_other_values_inside_are_logged_once_whatever_they_are(name, caplog):
    made = [pb.Composite(model, INSIDE[name](i)) for i in range(7)]
    assert not caplog.records
    made += [pb.Composite(model, INSIDE[name](i)) for i in range(7, 20)]
    assert len({id(p.loss) for p in made}) == 20
    (record,) = caplog.records
    assert "<lambda>" in record.message and "written anew 8 times" in record.message


def test_what_compiles_nothing_is_not_logged(caplog):
    held = np.ones(())
    same = lambda z, y: held * (z - y) ** 2
    for _ in range(20):
        pb.Composite(model, same)
        pb.Composite(model, closed(7.0))
        pb.Composite(model, jax.tree_util.Partial(loss))
        pb.Composite(model, Method(held).loss)
    assert not caplog.records


class Method:
    def __init__(self, held):
        self.held = held

    def loss(self, z, y):
        return self.held * (z - y) ** 2


@pytest.mark.parametrize("asarray", [jnp.asarray, np.asarray])
def test_the_cure_compiles_nothing(asarray):
    scaled = lambda a, z, y: a * (z - y) ** 2 / 2
    run = lambda a: natural(pb.Composite(model, jax.tree_util.Partial(scaled, asarray(a))))
    first = run(1.0)
    traces.clear()
    assert jnp.allclose(run(2.0), 2 * first) and traces == []


WITH_FUNCTIONS = {
    "Riemannian": lambda: pb.metric.Riemannian(lambda z: jnp.diag(1 + z**2)),
    "Bregman": lambda: pb.metric.Bregman(lambda z: jnp.sum(z**2)),
    "Divergence": lambda: pb.metric.Divergence(lambda u, z: jnp.sum((u - z) ** 2)),
    "LossHessian": lambda: pb.metric.LossHessian(lambda z, y: loss(z, y)),
    "EmpiricalFisher": lambda: pb.metric.EmpiricalFisher(lambda z, y: loss(z, y)),
    "ExponentialFamily": lambda: pb.metric.ExponentialFamily(
        lambda z: jnp.sum(jnp.exp(z)), lambda key, z: jax.random.poisson(key, jnp.exp(z))
    ),
    "Likelihood": lambda: pb.metric.Likelihood(lambda z, y: y * z, (0, 1)),
    "Fixed": lambda: pb.step.Fixed(lambda step: 1.0 / (1.0 + step)),
    "LevenbergMarquardt": lambda: pb.step.LevenbergMarquardt(rate=lambda step: 1.0 / (1.0 + step)),
    "At": lambda: pb.constraint.At(lambda p: p["w"], pb.constraint.Simplex()),
    "BlockDescent": lambda: pb.BlockDescent(
        pb.Composite(model, loss),
        blocks=lambda path: path,
        rate=lambda step: 1.0 / (1.0 + step),
        penalty=lambda p: jnp.sum(p**2),
    ),
}


@pytest.mark.parametrize("name", WITH_FUNCTIONS)
def test_functions_inside_of_pieces_are_known_by_their_code(name):
    one, two = (jax.tree.flatten(WITH_FUNCTIONS[name]()) for _ in range(2))
    assert one[1] == two[1]
    functions = [(x, y) for x, y in zip(one[0], two[0], strict=True) if callable(x)]
    assert functions and all(x is y for x, y in functions)


def run_anew():
    """A run whose every function is written anew."""
    opt = pb.NaturalGradientDescent(
        pb.Composite(model, loss, pb.metric.Bregman(lambda z: jnp.sum(z**2))),
        step=pb.step.Fixed(lambda step: jnp.where(step == 0, 0.5, 0.25)),
    )
    x, y = X, Y
    batches = lambda key: (x, y + 1e-3 * jax.random.normal(key, y.shape))
    return pb.fit(opt, PARAMS, batches, 2, validate=lambda key: (x, y))


def test_a_fit_of_functions_written_anew_compiles_nothing(compilations):
    kept = run_anew()
    traces.clear()
    compilations.clear()
    again = run_anew()
    assert traces == [] and compilations == []
    assert np.array_equal(again.params, kept.params)


POINTS, VALUES = normal(5, 1, seed=3), normal(5, seed=4)


def equation(scale=1.0, **options):
    """An equation whose every function and array is made anew."""
    return pb.pde.Equation(
        residual=lambda u, x: scale * pb.pde.laplacian(u, x) - jnp.sin(x[0]),
        solution=lambda x: -jnp.sin(x[0]),
        domain=pb.pde.Box([0.0], [2.0]),
        inside=6,
        conditions=[
            pb.pde.Dirichlet(lambda x: -jnp.sin(x[0]), 2),
            pb.pde.Data(np.array(POINTS), np.array(VALUES)),
            pb.pde.Condition(lambda u, x: u(x), 2, where=lambda key, count: jnp.ones((count, 1))),
        ],
        **options,
    )


def field(params, x):
    return jnp.vdot(params, jnp.tanh(x[0] * jnp.arange(1.0, 4.0)))


def test_the_problem_of_an_equal_equation_is_the_same():
    models = lambda e: dict(zip(e.names, (t.model for t in e.problem(field).terms), strict=True))
    kept = models(equation())
    same = lambda other: {name for name, found in models(other).items() if found is kept[name]}
    assert same(equation()) == set(kept)
    # Of another one, the terms that differ are others.
    assert len(same(equation(2.0))) == len(kept) - 1


def test_an_equation_sees_a_global_variable_that_was_set_since():
    """The equation stays, and its problem is made again."""
    global SCALE
    kept = pb.pde.Equation(
        residual=lambda u, x: SCALE * u(x),
        domain=pb.pde.Box([0.0], [2.0]),
        conditions=[pb.pde.Dirichlet(0.0, 2)],
    )
    batch = {"inside": (POINTS,), "dirichlet": (POINTS,)}
    inside = lambda: pb.natural_gradient(kept.problem(field), PARAMS, batch).losses["inside"]
    one = inside()
    SCALE = 3.0
    assert jnp.allclose(inside(), 9 * one)
    SCALE = 1.0


def test_a_fit_of_an_equal_equation_compiles_nothing(compilations):
    data = pb.pde.Data(POINTS, VALUES)

    def run():
        made = pb.pde.Equation(
            residual=lambda u, x: pb.pde.laplacian(u, x) - jnp.sin(x[0]),
            domain=pb.pde.Box([0.0], [2.0]),
            inside=6,
            conditions=[pb.pde.Dirichlet(lambda x: -jnp.sin(x[0]), 2), data],
            adaptive=pb.pde.ByResidual(),
        )
        opt = pb.NaturalGradientDescent(made.problem(field))
        return pb.fit(opt, PARAMS, made.batches(jax.random.key(0), field), 2)

    kept = run()
    compilations.clear()
    again = run()
    assert compilations == []
    assert np.array_equal(again.params, kept.params)
