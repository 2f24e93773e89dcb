"""Natural gradients of models with state and random masks against dense algebra in NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from stateful_models import MODELS, N, X, Y, case, half_square

import pullback as pb

DAMPING = 1e-2
SOLVERS = (pb.solver.SVD, pb.solver.Dual, pb.solver.Primal, pb.solver.Krylov)


def dense(case):
    """A = J/√N and r = (z - y)/√N of the whole batch, at the given state and masks."""
    moving, carried = eqx.partition(case.point.params, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(moving)

    def outputs(flat):
        params = eqx.combine(unravel(flat), carried)
        # A copy, because Equinox invalidates a state that was used.
        state = jax.tree.map(lambda x: x, case.point.state)
        return case.model(params, state, case.inputs)[0].ravel()

    a = np.asarray(jax.jacfwd(outputs)(flat)) / np.sqrt(N)
    return a, np.asarray(outputs(flat) - Y.ravel()) / np.sqrt(N)


def flat_vector(ng):
    assert not jax.tree.leaves(ng.vector.state)
    return np.asarray(ravel_pytree(ng.vector.params)[0])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("library", "kind"), MODELS)
def test_damped_gradient_is_that_of_dense_algebra(library, kind, solver):
    given = case(library, kind)
    a, r = dense(given)
    expected = np.linalg.solve(a.T @ a + DAMPING * np.eye(a.shape[1]), a.T @ r)
    found = pb.natural_gradient(
        given.problem, given.point, (given.inputs, Y),
        inverse=pb.Tikhonov(DAMPING), solver=solver(),
    )  # fmt: skip
    np.testing.assert_allclose(flat_vector(found), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.value, r @ r / 2, rtol=1e-12)


@pytest.mark.parametrize(("library", "kind"), MODELS)
def test_undamped_gradient_is_that_of_the_pseudo_inverse(library, kind):
    given = case(library, kind)
    a, r = dense(given)
    found = pb.natural_gradient(given.problem, given.point, (given.inputs, Y))
    # Batch normalisation makes biases before it idle, up to rounding.
    np.testing.assert_allclose(
        flat_vector(found), np.linalg.pinv(a, rcond=1e-12) @ r, rtol=1e-8, atol=1e-9
    )


def test_reference_of_the_library_knows_the_state():
    given = case("equinox", "both")
    inverse = pb.Tikhonov(DAMPING)
    batch = given.inputs, Y
    found = pb.natural_gradient(given.problem, given.point, batch, inverse=inverse)
    like = pb.testing.reference_natural_gradient(given.problem, given.point, batch, inverse)
    np.testing.assert_allclose(
        flat_vector(found), ravel_pytree(like.vector.params)[0], rtol=1e-9, atol=1e-11
    )


def plain(params, state, inputs):
    """Dropout with one key per sample; `state` enters the outputs."""
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.7, (2,)))(inputs["key"])
    z = jnp.where(keep, jnp.tanh(inputs["x"] @ params["w"]), 0.0)
    return z * state["scale"][None], {"scale": state["scale"] * 2, "key": state["key"]}


STATE = {"scale": jnp.asarray([1.0, 3.0]), "key": jax.random.key(2)}
POINT = pb.Stateful({"w": jnp.asarray([[0.3, -0.5], [0.8, 0.1]])}, STATE)
INPUTS = {"x": X, "key": jax.random.split(jax.random.key(3), N)}


def frozen_problem(**options):
    """The same problem without state: it is closed over."""
    return pb.Composite(lambda p, x: plain(p, STATE, x)[0], half_square, **options)


@pytest.mark.parametrize("memory", [2**30, 100])
@pytest.mark.parametrize("weights", [None, [0.0, 1.0, 2.0, 0.5, 0.0, 1.0, 1.0]])
def test_keys_pass_through_blocks_and_absent_samples(memory, weights):
    measure = None if weights is None else pb.Weights(jnp.asarray(weights))
    problem = pb.Composite(plain, half_square, measure=measure, stateful=True)
    for solver in SOLVERS:
        options = {"inverse": pb.Tikhonov(DAMPING), "solver": solver(), "memory": memory}
        found = pb.natural_gradient(problem, POINT, (INPUTS, Y), **options)
        like = pb.natural_gradient(
            frozen_problem(measure=measure), POINT.params, (INPUTS, Y), **options
        )
        np.testing.assert_allclose(found.vector.params["w"], like.vector["w"], rtol=1e-11)


def test_every_reader_uses_the_outputs_at_the_given_state():
    problem, frozen = pb.Composite(plain, half_square, stateful=True), frozen_problem()
    batch = INPUTS, Y
    pairs = [
        [reader(problem, POINT), reader(frozen, POINT.params)]
        for reader in (
            lambda p, at: pb.pullback(p, at, batch).matrix(),
            lambda p, at: pb.examine(p, at, batch).rank,
            lambda p, at: pb.ntk(p, at, batch).matrix(),
            lambda p, at: pb.differential(p, at, batch).tree,
            lambda p, at: jax.tree.leaves(pb.flow(p, at, batch, t1=0.01).params)[0],
            lambda p, at: str(pb.plan(p, at, batch)).split("\n")[0],
        )
    ]
    for found, like in pairs:
        found, like = jax.tree.leaves(found), jax.tree.leaves(like)
        if isinstance(found[0], str):
            assert found == like
        else:
            for one, other in zip(found, like, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9)
    end = pb.flow(problem, POINT, batch, t1=0.01).params
    assert eqx.tree_equal(end.state, STATE)


def test_moved_points_keep_the_state():
    problem = pb.Composite(plain, half_square, stateful=True)
    ng = pb.natural_gradient(problem, POINT, (INPUTS, Y))
    moved = POINT - 0.5 * pb.TangentVector(ng.vector)
    assert eqx.tree_equal(moved.state, STATE)
    np.testing.assert_allclose(moved.params["w"], POINT.params["w"] - 0.5 * ng.vector.params["w"])


def test_invariance_of_a_method_on_a_model_with_state(key):
    problem = pb.Composite(plain, half_square, stateful=True)
    f = pb.random_reparametrisation(POINT, key)
    found = pb.check_invariance(problem, POINT, (INPUTS, Y), reparametrisation=f, counts=())
    assert found.model < 1e-8


def test_mixing_of_samples_is_found():
    given = case("equinox", "norm")
    problem = pb.Composite(given.model, half_square, stateful=True)
    with pytest.raises(RuntimeError, match="mixes samples"):
        pb.natural_gradient(problem, given.point, (given.inputs, Y))


def test_mixing_of_samples_is_found_where_the_outputs_are_zero():
    """A last layer that starts at zero hides the mixing here, not at parameters nearby."""

    def model(params, x):
        h = x @ params["w"]
        return (h - jnp.mean(h, axis=0)[None]) @ params["v"]

    params = {"w": jnp.ones((2, 3)), "v": jnp.zeros((3, 2))}
    problem = pb.Composite(model, half_square)
    for solver in (pb.solver.Auto(), pb.solver.Krylov()):
        with pytest.raises(RuntimeError, match="mixes samples"):
            pb.natural_gradient(problem, params, (X, Y), solver=solver)
    exact = pb.Composite(model, half_square, coupled=True)
    assert int(pb.natural_gradient(exact, params, (X, Y)).stats.rank) > 0


def test_one_stream_of_masks_for_the_batch_is_found():
    given = case("nnx", "dropout")
    problem = pb.Composite(given.model, half_square, stateful=True)
    with pytest.raises(RuntimeError, match="mixes samples"):
        pb.natural_gradient(problem, given.point, (given.inputs, Y))


def test_state_without_data():
    model = lambda p, s: (p * s["scale"], {"scale": s["scale"] + 1})
    problem = pb.Composite(model, lambda z: jnp.sum(z**2) / 2, stateful=True)
    point = pb.Stateful(jnp.asarray([1.0, 2.0]), {"scale": jnp.asarray([2.0, 4.0])})
    np.testing.assert_allclose(pb.natural_gradient(problem, point).vector.params, [1.0, 2.0])
    opt = pb.NaturalGradientDescent(problem)
    moved, _, record = opt.step(point, opt.init(point))
    assert bool(record.accepted)
    np.testing.assert_allclose(moved.params, 0.0, atol=1e-15)
    np.testing.assert_allclose(moved.state["scale"], [3.0, 5.0])
