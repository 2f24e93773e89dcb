"""One step under a constraint: by projection, by clipping and by a penalty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb


def test_a_step_by_back_projection_clipping_and_penalty():
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum((z - jnp.asarray([2.0, -1.0])) ** 2) / 2)
    start, clip = jnp.asarray([0.5, 0.5]), pb.constraint.Clipping(0.0, 1.0)
    step = pb.constrained_step(problem, start, step=1.0, constraint=clip)
    assert (
        np.allclose(step.params, [1.0, 0.0])
        and np.allclose(step.free, [2.0, -1.0])
        and float(step.slack) == 0
    )
    assert (
        np.isclose(step.correction, np.sqrt(2))
        and float(pb.constrained_step(problem, start, step=0.1, constraint=clip).correction) == 0
    )
    outside = jnp.asarray([1.5, 0.5])
    soft = pb.constrained_step(
        problem, outside, step=0.1, constraint=pb.constraint.Penalty(clip, 10.0)
    )
    assert np.allclose(
        soft.params,
        outside - 0.1 * (outside - jnp.asarray([2.0, -1.0])) - 0.1 * jnp.asarray([5.0, 0.0]),
    )
    assert float(soft.dropped) < 1e-12
    # A penalty on a direction that does not move the model is dropped, and said to be.
    redundant = pb.Composite(lambda p: p[0] + p[1], lambda z: z**2)
    lost = pb.constrained_step(
        redundant,
        jnp.asarray([1.5, -1.0]),
        step=0.1,
        constraint=pb.constraint.Penalty(pb.constraint.At(lambda p: p[0], clip), 1.0),
    )
    assert np.isclose(lost.dropped, np.sqrt(0.5))
    with pytest.raises(ValueError, match=r"violates the constraint Clipping by 0\.5"):
        pb.constrained_step(problem, outside, step=0.1, constraint=clip)


X, Y = normal(4, 2, seed=1), normal(4, 2, seed=2)
PROBLEM = pb.Composite(
    lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
)
PARAMS = {"v": normal(3, 2, seed=3), "w": normal(2, 3, seed=4), "n": 3}
BOX = pb.constraint.Clipping(-0.5, 0.5)
SIMPLE = pb.constraint.At(lambda p: p["v"], BOX)
INVERSES = {"moore-penrose": None, "tikhonov": pb.Tikhonov(0.1)}


def same(found, expected, tolerance=1e-12):
    for name in ("v", "w"):
        np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, atol=tolerance)
    assert found["n"] == expected["n"]


@pytest.mark.parametrize("inverse", INVERSES.values(), ids=INVERSES)
def test_the_penalty_of_the_library_in_the_optimiser_of_the_library(inverse):
    """It agrees with `constrained_step`, and both with the dense G⁺(g + dp)."""
    penalty = pb.constraint.Penalty(SIMPLE, 3.0)
    opt = pb.NaturalGradientDescent(
        PROBLEM, inverse=inverse, step=pb.step.Fixed(0.05), penalty=penalty
    )
    params, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    step = pb.constrained_step(
        PROBLEM, PARAMS, (X, Y), step=0.05, constraint=penalty, inverse=inverse
    )
    assert bool(record.accepted) and step.result == pb.RESULTS.successful
    same(step.params, params)
    flat, unravel = jax.flatten_util.ravel_pytree({k: PARAMS[k] for k in ("v", "w")})
    whole = lambda p: unravel(p) | {"n": 3}
    a = jax.jacobian(lambda p: PROBLEM.model(whole(p), X).ravel())(flat) / 2
    r = (PROBLEM.model(PARAMS, X) - Y).ravel() / 2
    dp = jax.grad(lambda p: penalty(whole(p)))(flat)
    g = np.asarray(a.T @ a)
    damping = 0.0 if inverse is None else 0.1
    h = np.linalg.pinv(g + damping * np.eye(len(g)), rcond=1e-12, hermitian=True)
    same(step.free, whole(flat - 0.05 * h @ (a.T @ r)), 1e-9)
    same(step.params, whole(flat - 0.05 * h @ (a.T @ r + dp)), 1e-9)
    assert np.isclose(step.correction, 0.05 * np.linalg.norm(h @ dp), rtol=1e-9)
    dropped = np.linalg.norm(dp - g @ h @ dp) / np.linalg.norm(dp)
    assert np.isclose(step.dropped, dropped, rtol=1e-7) and dropped > 0.01
    assert float(step.slack) == float(SIMPLE.slack(step.params)) < 0


def test_a_projected_step_is_that_of_the_optimiser():
    start = SIMPLE(PARAMS)
    opt = pb.NaturalGradientDescent(PROBLEM, step=pb.step.Fixed(0.5), constraint=SIMPLE)
    params, _, record = opt.step(start, opt.init(start), (X, Y))
    step = pb.constrained_step(PROBLEM, start, (X, Y), step=0.5, constraint=SIMPLE)
    assert bool(record.accepted) and float(step.correction) > 0
    same(step.params, params)
    same(SIMPLE(step.free), step.params)
    jitted = jax.jit(
        lambda p, h: pb.constrained_step(
            PROBLEM, p | {"n": 3}, (X, Y), step=h, constraint=SIMPLE
        ).free["v"]
    )
    np.testing.assert_allclose(jitted({k: start[k] for k in ("v", "w")}, 0.5), step.free["v"])
    # NumPy leaves are parameters too, and the page is short.
    plain = {k: np.asarray(start[k]) for k in ("v", "w")} | {"n": 3}
    again = pb.constrained_step(PROBLEM, plain, (X, Y), step=0.5, constraint=SIMPLE)
    same(again.params, step.params)
    assert repr(again).startswith("ConstrainedStep(slack 0, correction")
    assert "successful" in again._repr_html_()


def test_what_a_constrained_step_does_not_take():
    for words, bad in {
        r"step must be positive": {"step": 0.0, "constraint": BOX},
        r"constraint must be one of pullback.constraint": {"step": 0.1, "constraint": abs},
    }.items():
        with pytest.raises(ValueError, match=words):
            pb.constrained_step(PROBLEM, PARAMS, (X, Y), **bad)
    penalty = pb.constraint.Penalty(BOX, 1.0)
    bad = {"step": 0.1, "constraint": penalty}
    with pytest.raises(RuntimeError, match="`batch` contains a NaN"):
        pb.constrained_step(PROBLEM, PARAMS, (X.at[0].set(jnp.nan), Y), **bad)
    found = pb.constrained_step(PROBLEM, PARAMS, (X.at[0].set(jnp.nan), Y), throw=False, **bad)
    assert found.result == pb.RESULTS.nonfinite_batch


POINT = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2) / 2)


@pytest.mark.parametrize(
    ("bad", "got"),
    [(lambda p: p**2, r"float64\[2\]"), (lambda p: 1, r"int64\[\]"), (lambda p: None, "NoneType")],
)
def test_a_penalty_is_one_real_number(bad, got):
    start = jnp.asarray([0.5, 0.5])
    for opt in (pb.NaturalGradientDescent(POINT, penalty=bad), pb.BlockDescent(POINT, penalty=bad)):
        with pytest.raises(
            ValueError, match=rf"penalty\(params\) must return one real .* got {got}"
        ):
            opt.step(start, opt.init(start))


@pytest.mark.parametrize(
    "bad", [lambda p: p[:1], lambda p: (p,), lambda p: jnp.round(p).astype(int), lambda p: None]
)
def test_a_constraint_returns_parameters(bad):
    start = jnp.asarray([0.5, 0.5])
    opt = pb.NaturalGradientDescent(POINT, constraint=bad)
    with pytest.raises(ValueError, match=r"constraint\(params\) must return parameters"):
        opt.step(start, opt.init(start))
