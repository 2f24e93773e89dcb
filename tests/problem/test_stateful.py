"""A point with state, and what is refused: each error with the corrected call."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb

X, Y = normal(5, 2, seed=1), normal(5, 3, seed=2)
W = normal(2, 3, seed=3)
STATE = {"mean": jnp.zeros(2), "count": jnp.asarray(0)}


def half_square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def model(params, state, x):
    return x @ params, {"mean": jnp.mean(x, axis=0), "count": state["count"] + 1}


def problem(model=model, **options):
    return pb.Composite(model, half_square, stateful=True, **options)


POINT = pb.Stateful(W, STATE)
READERS = {
    "natural_gradient": lambda p, at: pb.natural_gradient(p, at, (X, Y)),
    "init": lambda p, at: pb.NaturalGradientDescent(p).init(at),
    "pullback": lambda p, at: pb.pullback(p, at, (X, Y)),
    "examine": lambda p, at: pb.examine(p, at, (X, Y)),
    "outputs": lambda p, at: p.outputs(at, X),
}


@pytest.mark.parametrize("reader", READERS)
def test_state_that_is_missing(reader):
    with pytest.raises(ValueError, match=r"e\.g\. pullback\.Stateful\(params, state\), got dict"):
        READERS[reader](problem(), {"w": W})


@pytest.mark.parametrize("reader", READERS)
def test_state_that_is_not_declared(reader):
    plain = pb.Composite(lambda p, x: x @ p, half_square)
    with pytest.raises(ValueError, match=r"Composite\(\.\.\., stateful=True\)"):
        READERS[reader](plain, POINT)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda p, s, x: x @ p, "got one array"),
        (lambda p, s, x: [x @ p, s], "got list"),
        (lambda p, s, x: (x @ p, s, s), "got tuple of length 3"),
    ],
)
def test_model_that_returns_no_pair(made, words):
    with pytest.raises(ValueError, match=f"must return a pair.*({words})"):
        pb.natural_gradient(problem(made), POINT, (X, Y))


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"mean": jnp.zeros(2)}, "returned a state PyTreeDef"),
        ({"mean": jnp.zeros((5, 2)), "count": jnp.asarray(0)}, r"\['mean'\]: float64\[5, 2\] for"),
        ({"mean": jnp.zeros(2, jnp.float32), "count": jnp.asarray(0)}, r"float32\[2\] for float64"),
        ({"mean": jnp.zeros(2), "count": 0}, r"\['count'\]: 0 for int64\[\]"),
        (None, "returned a state"),
    ],
)
@pytest.mark.parametrize("reader", ["natural_gradient", "step", "differential"])
def test_new_state_that_does_not_fit(new, words, reader):
    given = problem(lambda p, s, x: (x @ p, new))
    with pytest.raises(ValueError, match=words):
        if reader == "step":
            opt = pb.NaturalGradientDescent(given)
            opt.step(POINT, opt.init(POINT), (X, Y))
        else:
            getattr(pb, reader)(given, POINT, (X, Y))


def test_one_state_per_sample_is_explained():
    one = lambda p, s, x: (x @ p, {"mean": x, "count": s["count"]})
    given = problem(lambda p, s, x: jax.vmap(one, (None, None, 0))(p, s, x))
    with pytest.raises(ValueError, match=r"out_axes=\(0, None\)"):
        pb.natural_gradient(given, POINT, (X, Y))


def test_parameters_are_checked_as_without_state():
    with pytest.raises(ValueError, match="no floating array"):
        pb.natural_gradient(problem(), pb.Stateful(1, STATE), (X, Y))
    with pytest.raises(RuntimeError, match=r"params.params \(first at index \(0, 0\)\)"):
        pb.natural_gradient(problem(), pb.Stateful(W.at[0, 0].set(jnp.nan), STATE), (X, Y))


def test_state_may_be_anything():
    state = {
        "count": 3, "flag": True, "numbers": np.zeros(2, np.float32), "name": "relu",
        "complex": 1j * np.ones(2), "key": jax.random.key(0), "none": None, "inf": np.inf,
    }  # fmt: skip
    point = pb.Stateful(W, state)
    assert point.state["count"].dtype == jnp.int64 and point.state["flag"].dtype == bool
    assert point.state["numbers"].dtype == jnp.float32 and point.state["name"] == "relu"
    given = problem(lambda p, s, x: (x @ p, {**s, "count": s["count"] + 1}))
    opt = pb.NaturalGradientDescent(given)
    moved, _, record = opt.step(point, opt.init(point), (X, Y))
    assert bool(record.accepted) and int(moved.state["count"]) == 4
    rest = lambda tree: {k: v for k, v in tree.items() if k != "count"}
    assert eqx.tree_equal(rest(moved.state), rest(point.state))


def test_state_of_equinox_survives_a_failure():
    """The place of a failure is found by running the model once more, outside of `jit`."""
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="batch")

    def model(norm, state, x):
        with jax.numpy_dtype_promotion("standard"):
            z, state = jax.vmap(norm, (0, None), (0, None), axis_name="batch")(x, state)
        return jnp.log(z), state

    given = pb.Composite(model, half_square, coupled=True, stateful=True)
    point = pb.Stateful(norm, state)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="The model returned a NaN"):
            pb.natural_gradient(given, point, (X, Y[:, :2]))


def test_outputs_and_state():
    z, state = problem().outputs_and_state(POINT, X)
    np.testing.assert_allclose(z, X @ W)
    np.testing.assert_allclose(state["mean"], np.mean(X, axis=0))
    plain = pb.Composite(lambda p, x: x @ p, half_square)
    assert plain.outputs_and_state(W, X)[1] is None
    assert "stateful=True" in repr(problem()) and "stateful" not in repr(plain)


def test_points_of_other_functions():
    """Distances, meetings, proximal steps and Gauss-Newton products take the same points."""
    other = pb.Stateful(W + 0.1, STATE)
    given, frozen = problem(), pb.Composite(lambda p, x: x @ p, half_square)
    at, there = (given, POINT, (X, Y)), (frozen, W, (X, Y))
    np.testing.assert_allclose(
        pb.distance(given, POINT, other, (X, Y)).function,
        pb.distance(frozen, W, W + 0.1, (X, Y)).function,
        rtol=1e-9,
    )
    v = jax.tree.map(jnp.ones_like, pb.natural_gradient(*at).vector)
    for product in (pb.gauss_newton, pb.generalised_gauss_newton):
        found = product(given, POINT, v, (X, Y)).params
        np.testing.assert_allclose(found, product(frozen, W, v.params, (X, Y)), rtol=1e-10)
    found = pb.linearised_proximal_step(*at, weight=1.0).params
    assert eqx.tree_equal(found.state, STATE)
    np.testing.assert_allclose(
        found.params, pb.linearised_proximal_step(*there, weight=1.0).params, rtol=1e-9
    )
    assert pb.examine(*at, other=other).meeting is not None


def test_a_point_that_lost_its_state():
    with pytest.raises(ValueError, match="must be parameters and state"):
        pb.distance(problem(), POINT, W, (X, Y))
