"""Models that mix samples, cut at their statistics, against the plain Jacobian of the batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, normal
from jax.flatten_util import ravel_pytree

import pullback as pb
from pullback._rows.cut import Cut, Uncut
from pullback._rows.rows import rows_at

N = 20


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def normalise(z, axes=(0,)):
    return (z - jnp.mean(z, axes)) / jnp.sqrt(jnp.var(z, axes) + 1e-3)


def fast(z):
    """Batch normalisation with the variance as a difference of means, as Flax has it."""
    mean = jnp.mean(z, 0)
    return (z - mean) * jax.lax.rsqrt(jnp.mean(jnp.square(z), 0) - mean * mean + 1e-3)


def dense(p, x, norm=normalise, act=jnp.tanh):
    return act(norm(x @ p["w"]) * p["g"] + p["b"]) @ p["v"]


def deep(p, x):
    h = jax.nn.relu(normalise(x @ p["w"]) * p["g"] + p["b"])
    return jax.nn.relu(fast(h @ p["u"])) @ p["v"]


def conv(p, x, flat=False):
    def layer(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    def norm(z):
        if flat:
            return normalise(z.reshape(-1, z.shape[-1])).reshape(z.shape)
        return normalise(z, (0, 1, 2))

    h = jax.nn.relu(norm(layer(x.reshape(-1, 2, 2, 2), p["k"])) * p["g"][:2] + p["b"][:2])
    h = jax.nn.relu(norm(layer(h, p["l"])))
    return h.reshape(h.shape[0], -1) @ p["v"][:4].repeat(3, 0)


def whitened(p, x):
    h = x @ p["w"]
    h = h - jnp.mean(h, 0)
    root = jnp.linalg.cholesky(h.T @ h / N + 0.1 * jnp.eye(4))
    return jnp.tanh(h @ jnp.linalg.inv(root).T) @ p["v"][:4]


def weighted(p, x):
    w = jax.nn.softmax(jnp.arange(float(N)))
    return jnp.tanh(x @ p["w"] - w @ (x @ p["w"])) @ p["v"][:4]


def detached(p, x):
    h = x @ p["w"]
    mean, deviation = jax.lax.stop_gradient((jnp.mean(h, 0), jnp.std(h, 0)))
    return jnp.tanh((h - mean) / deviation + jnp.var(h, 0)) @ p["v"][:4]


def largest(p, x):
    h = x @ p["w"]
    return jnp.tanh(h / jnp.max(jnp.abs(h), 0)) @ p["v"][:4]


def dropout(p, x):
    h = normalise(x @ p["w"])
    keep = jax.random.bernoulli(jax.random.key(3), 0.5, h.shape)
    return jnp.where(keep, h, 0.0) @ p["v"][:4] + jnp.arange(float(N))[:, None] * p["b"][:3]


def rearranged(p, x):
    h = normalise(jnp.concatenate([x @ p["w"], x[:, ::-1] @ p["w"]], 1))
    h = jnp.swapaxes(h.reshape(N, 2, 4), 0, 1)
    h = jnp.pad(h, ((0, 0), (0, 0), (1, 0)))[:, :, 1:]
    pooled = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 1, 2), (1, 1, 1), "VALID")
    h = jnp.cumsum(jnp.moveaxis(h, 1, 0), 2)[:, 1, [3, 0, 1]] + pooled[0]
    return jax.nn.softmax(h, axis=1) * jnp.max(h, 1, keepdims=True) @ p["v"][:3]


def products(p, x):
    h = normalise(x @ p["w"])
    own = jnp.einsum("ni,nj->nij", h, jnp.tanh(h))
    return jnp.einsum("nij,jk->ink", own, p["v"][:4])[1] + jax.nn.softplus(h[:, :3])


def embedded(p, x):
    codes = jnp.argmax(x[:, :4], axis=1)
    return jnp.tanh(normalise(p["u"][codes])) @ p["v"][:4]


def grouped(p, x):
    h = (x @ p["w"]).reshape(N, 2, 2)
    h = (h - jnp.mean(h, 2, keepdims=True)) / jnp.sqrt(jnp.var(h, 2, keepdims=True) + 1e-3)
    return jnp.tanh(h.reshape(N, 4)) @ p["v"][:4]


def shared(p, x):
    """One output leaf does not depend on the inputs, another one on statistics only."""
    h = x @ p["w"]
    mean = jnp.broadcast_to(jnp.mean(h, 0), h.shape)
    return {"own": dense(p, x), "all": mean, "none": jnp.broadcast_to(p["b"], (N, 4))}


def attention(p, x):
    h = x @ p["w"]
    return jax.nn.softmax(h @ h.T) @ h @ p["v"][:4]


def sorted_samples(p, x):
    return jnp.tanh(jnp.sort(x @ p["w"], axis=0)) @ p["v"][:4]


def looped(p, x):
    h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(normalise(h @ p["u"])), None), x @ p["w"], None, 3)
    return h @ p["v"][:4]


def hidden(p, x):
    """Mixes samples with weight zero: outputs do not show it, the Jacobian does."""
    h = x @ p["w"]
    return jnp.tanh(h + p["zero"] * h[::-1]) @ p["v"][:4]


CUT = {  # model: its statistics
    "dense": (dense, 8),
    "fast variance": (lambda p, x: dense(p, x, fast, jax.nn.gelu), 8),
    "two layers": (deep, 16),
    "convolutions": (conv, 10),
    "merged axes": (lambda p, x: conv(p, x, flat=True), 10),
    "whitened": (whitened, 20),
    "weighted": (weighted, 4),
    "constants": (detached, 8),
    "maximum": (largest, 4),
    "dropout": (dropout, 8),
    "rearranged": (rearranged, 16),
    "products": (products, 8),
    "look-up": (embedded, 8),
    "group norm": (grouped, 0),
    "shared": (shared, 8),
}
WHOLE = {
    "attention": attention,
    "sorted": sorted_samples,
    "loop": looped,
    "hidden": hidden,
}


def params():
    shapes = {"w": (8, 4), "g": (4,), "b": (4,), "u": (4, 4), "v": (8, 3), "zero": ()}
    shapes |= {"k": (2, 2, 2, 2), "l": (2, 2, 2, 3)}
    return {name: normal(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())} | {
        "zero": jnp.asarray(0.0)
    }


def problem_of(model, **kwargs):
    if model in (dense, CUT["fast variance"][0]):
        full = model
        model = lambda p, x: full({**p, "v": p["v"][:4]}, x)
    if model is deep:
        model = lambda p, x: deep({**p, "v": p["v"][:4]}, x)
    if model is shared:
        model = lambda p, x: shared({**p, "v": p["v"][:4]}, x)
    return pb.Composite(model, lambda z: sum(jnp.sum(x**2) for x in jax.tree.leaves(z)) / 2,
                        coupled=True, **kwargs)  # fmt: skip


def jacobian(problem, p, x):
    flat, unravel = ravel_pytree(p)

    def outputs(flat):
        leaves = jax.tree.leaves(problem.model(unravel(flat), x))
        return jnp.concatenate([z.reshape(len(x), -1) for z in leaves], 1).ravel()

    return np.asarray(jax.jit(jax.jacfwd(outputs))(flat))


def rows_of(problem, p, x):
    """How a model is cut, its rows and a product with them; both without the factor 1/√N."""
    found = []

    @jax.jit
    def run(p, x):
        rows = rows_at(problem.at((x,)), p)
        found.append(rows.cut)
        dense, v = rows.unit_rows(), jnp.arange(float(rows.shape[1]))
        return dense, rows.unit_mv(v), dense @ v

    dense, product, expected = run(p, x)
    assert distance(product, expected) < 1e-13
    return found[0], dense


@pytest.mark.parametrize("name", CUT)
def test_rows_of_a_model_that_is_cut(name):
    model, statistics = CUT[name]
    problem, p, x = problem_of(model), params(), normal(N, 8, seed=9)
    cut, rows = rows_of(problem, p, x)
    assert isinstance(cut, Cut), cut
    assert cut.structure.size == statistics
    assert distance(rows, jacobian(problem, p, x)) < 1e-13


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_that_mixes_samples_throughout_is_not_cut(name):
    problem, p, x = problem_of(WHOLE[name]), params(), normal(N, 8, seed=9)
    cut, rows = rows_of(problem, p, x)
    assert isinstance(cut, Uncut) and "statistics" in cut.reason
    assert distance(rows, jacobian(problem, p, x)) < 1e-13


def test_other_reasons_not_to_cut():
    p, x = params(), normal(N, 8, seed=9)

    def reason(model, x=x):
        return rows_of(problem_of(model), p, x)[0].reason

    def loud(p, x):
        jax.debug.print("", ordered=False)
        return normalise(x @ p["w"])

    assert "side effects" in reason(loud)
    # Outputs whose first axis has the length of the samples, and is another one.
    square = normal(4, 8, seed=9)
    assert "not those of the inputs" in reason(lambda p, x: normalise(x @ p["w"]).T, square)
    lone = lambda p, x: x @ p["w"] + normalise(x @ p["w"])
    fourier = lambda p, x: normalise(x @ p["w"]) + jnp.abs(jnp.sum(jnp.exp(1j * x @ p["w"]), 0))
    assert "complex" in reason(fourier)
    assert "Jacobian of the batch takes fewer" in reason(lone, x[:1])


def test_one_sample_has_its_own_mean():
    problem, p, x = problem_of(dense), params(), normal(1, 8, seed=9)
    ng = pb.natural_gradient(problem, p, (x,))
    assert bool(ng.result == pb.RESULTS.successful)
    assert np.max(np.abs(ng.vector["w"])) < 1e-12


SOLVERS = {
    "SVD": pb.solver.SVD(),
    "Dual": pb.solver.Dual(),
    "Primal": pb.solver.Primal(),
    "Krylov": pb.solver.Krylov(),
    "Auto": pb.solver.Auto(),
}
INVERSES = {
    "pseudo": pb.inverse.MoorePenrose(rtol=1e-4),
    "damped": pb.inverse.Tikhonov(0.1),
}


def dense_solution(problem, p, x, y, weights, inverse):
    """The natural gradient of the square loss by plain linear algebra."""
    j = np.asarray(jacobian(problem, p, x))
    w = np.repeat(weights, 3)
    a = np.sqrt(w)[:, None] * j
    r = np.sqrt(w) * np.asarray(problem.model(p, x) - y).ravel()
    if inverse == "damped":
        return a.T @ np.linalg.solve(a @ a.T + 0.1 * np.eye(len(a)), r)
    return np.linalg.pinv(a, rcond=1e-4) @ r


WEIGHTS = np.linspace(0.0, 2.0, N)


@pytest.mark.parametrize(
    ("solver", "inverse", "weights"),
    [
        ("SVD", "pseudo", WEIGHTS),
        ("Dual", "pseudo", None),
        ("Dual", "damped", WEIGHTS),
        ("Primal", "pseudo", None),
        ("Primal", "damped", WEIGHTS),
        ("Krylov", "damped", None),
        ("Auto", "damped", None),
    ],
)
def test_solvers(solver, inverse, weights):
    measure = pb.Mean() if weights is None else pb.Weights(jnp.asarray(weights))
    problem = pb.Composite(
        lambda p, x: conv({**p, "v": p["v"]}, x) @ p["u"][:3, :3],
        lambda z, y: jnp.sum((z - y) ** 2, 1) / 2, measure=measure, coupled=True,
    )  # fmt: skip
    p, x, y = params(), normal(N, 8, seed=9), normal(N, 3, seed=10)
    ng = pb.natural_gradient(problem, p, (x, y), inverse=INVERSES[inverse], solver=SOLVERS[solver])
    factors = np.full(N, 1 / N) if weights is None else weights
    expected = dense_solution(problem, p, x, y, factors, inverse)
    tolerance = 1e-11 if solver == "SVD" or inverse == "damped" else 1e-7
    assert distance(ravel_pytree(ng.vector)[0], expected) < tolerance


def test_a_small_memory():
    p, x = params(), normal(N, 8, seed=9)
    problem = problem_of(dense)
    bounded = pb.pullback(problem, p, (x,), memory=1)
    assert bounded.whitened.chunk == 1
    expected = jacobian(problem, p, x)
    assert distance(bounded.matrix(), expected.T @ expected / N) < 1e-13


def test_a_metric_that_mixes_samples_too():
    """The rows of J are formed sample by sample, then whitened as a whole."""
    p, x = params(), normal(N, 8, seed=9)
    problem = pb.Composite(
        lambda p, x: dense({**p, "v": p["v"][:4]}, x)[:, 0],
        lambda z: jnp.sum(z),
        pb.metric.Scores(),
        coupled=True,
    )
    rows = pb.pullback(problem, p, (x,)).whitened
    assert isinstance(rows.cut, Cut)
    v = normal(rows.shape[1], seed=4)
    assert distance(rows.unit_rows() @ v, rows.unit_mv(v)) < 1e-13


class Net(eqx.Module):
    first: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    pool: eqx.nn.MaxPool2d
    last: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.first = eqx.nn.Conv2d(1, 3, 3, padding=1, key=one)
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.last = eqx.nn.Linear(12, 4, key=two)

    def __call__(self, x, state):
        h, state = self.norm(self.first(x), state)
        return self.last(self.pool(jax.nn.relu(h)).ravel()), state


def equinox_model():
    net, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    p, static = eqx.partition(net, eqx.is_inexact_array)

    def model(p, x):
        run = jax.vmap(eqx.combine(p, static), axis_name="batch", in_axes=(0, None),
                       out_axes=(0, None))  # fmt: skip
        return run(x, state)[0]

    return model, p, normal(N, 1, 4, 4, seed=2)


def flax_model():
    linen = pytest.importorskip("flax.linen")

    class Dense(linen.Module):
        @linen.compact
        def __call__(self, x):
            h = linen.BatchNorm(use_running_average=False)(linen.Dense(5)(x))
            h = linen.BatchNorm(use_running_average=False)(linen.Dense(5)(linen.relu(h)))
            return linen.Dense(3)(jax.nn.silu(h))

    net, x = Dense(), normal(N, 6, seed=2)
    variables = net.init(jax.random.key(0), x)

    def model(p, x):
        whole = {"params": p, "batch_stats": variables["batch_stats"]}
        return net.apply(whole, x, mutable=["batch_stats"])[0]

    return model, jax.tree.map(lambda x: x.astype(jnp.float64), variables["params"]), x


@pytest.mark.parametrize("make", [equinox_model, flax_model])
def test_batch_normalisation_of_libraries(make):
    model, p, x = make()
    problem = pb.Composite(model, lambda z: jnp.sum(z**2) / 2, coupled=True)
    cut, rows = rows_of(problem, p, x)
    assert isinstance(cut, Cut)
    assert distance(rows, jacobian(problem, p, x)) < 1e-12


def test_second_derivatives_through_a_rule_of_its_own():
    """Second derivatives of a model that is cut pass through the derivative rule of relu."""
    p, x, y = params(), normal(N, 8, seed=9), normal(N, 3, seed=10)
    problem = pb.Composite(
        lambda p, x: deep({**p, "v": p["v"][:4]}, x),
        lambda z, y: jnp.sum((z - y) ** 2, 1) / 2,
        coupled=True,
    )

    def solved(t, solver):
        moved = {**p, "g": p["g"] * t}
        inverse = pb.inverse.Tikhonov(0.1)
        ng = pb.natural_gradient(problem, moved, (x, y), inverse=inverse, solver=solver)
        return ravel_pytree(ng.vector)[0]

    found = jax.jacfwd(lambda t: solved(t, pb.solver.Dual()))(1.0)
    step = 1e-5
    expected = (solved(1 + step, pb.solver.SVD()) - solved(1 - step, pb.solver.SVD())) / (2 * step)
    assert distance(found, expected) < 1e-6


def test_training_with_levenberg_marquardt():
    p, x, y = params(), normal(N, 8, seed=9), normal(N, 3, seed=10)
    problem = pb.Composite(
        lambda p, x: deep({**p, "v": p["v"][:4]}, x),
        lambda z, y: jnp.sum((z - y) ** 2, 1) / 2,
        coupled=True,
    )
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    state = opt.init(p)
    losses = []
    for _ in range(5):
        p, state, record = opt.step(p, state, (x, y))
        losses.append(float(record.loss))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("structured", [True, False])
@pytest.mark.parametrize("stateful", [False, True])
def test_one_layer_at_a_time(stateful, structured):
    """A block of the parameters has a cut of its own; a state is carried along."""
    p = {name: params()[name] for name in ("w", "g", "b", "v")}
    p, x, y = {**p, "v": p["v"][:4]}, normal(N, 8, seed=9), normal(N, 3, seed=10)

    def model(p, *rest):
        outputs = dense(p, rest[-1])
        return (outputs, {"count": rest[0]["count"] + 1.0}) if stateful else outputs

    loss = lambda z, y: jnp.sum((z - y) ** 2, 1) / 2
    problem = pb.Composite(model, loss, coupled=True, stateful=stateful)
    point = pb.Stateful(p, {"count": jnp.asarray(0.0)}) if stateful else p
    solver = pb.solver.Blocks(lambda path: path, pb.solver.Dual(structured=structured))
    ng = pb.natural_gradient(
        problem, point, (x, y), inverse=pb.inverse.Tikhonov(0.1), solver=solver, throw=False
    )
    vector = ng.vector.params if stateful else ng.vector
    plain = pb.Composite(dense, loss, coupled=True)
    whole, start = jacobian(plain, p, x) / np.sqrt(N), 0
    r = np.asarray(dense(p, x) - y).ravel() / np.sqrt(N)
    for name in sorted(p):
        a = whole[:, start : (start := start + p[name].size)]
        expected = a.T @ np.linalg.solve(a @ a.T + 0.1 * np.eye(len(a)), r)
        assert distance(vector[name], expected.reshape(p[name].shape)) < 1e-11


def test_keys_among_the_inputs():
    p, x = params(), normal(N, 8, seed=9)
    inputs = {"x": x, "key": jax.random.split(jax.random.key(1), N)}

    def model(p, inputs):
        keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (4,)))(inputs["key"])
        return jnp.where(keep, normalise(inputs["x"] @ p["w"]), 0.0) @ p["v"][:4]

    cut, rows = rows_of(problem_of(model), p, inputs)
    assert isinstance(cut, Cut) and cut.structure.size == 8
    masked = pb.Composite(lambda p, x: model(p, {**inputs, "x": x}), jnp.sum, coupled=True)
    assert distance(rows, jacobian(masked, p, x)) < 1e-13
