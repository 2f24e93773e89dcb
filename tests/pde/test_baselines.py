"""Adam + L-BFGS and self-scaled Broyden: the update, quadratics, an equation, and the command."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pullback import pde
from pullback_lab import pde as lab
from pullback_lab.pde import __main__ as command
from pullback_lab.pde import baselines, cases

METHODS = list(baselines.METHODS)


@pytest.fixture(autouse=True)
def standard():
    """The promotion of dtypes that Optax's L-BFGS and line search need."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def spd(rng, n, low, high):
    """A symmetric matrix with eigenvalues between two powers of ten."""
    q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return q @ np.diag(np.logspace(low, high, n)) @ q.T


def direct(b, s, y):
    """Al-Baali's update of the Hessian itself: no formula is that of the inverse."""
    n = s.size
    sy, sbs = s @ y, s @ b @ s
    ratio, yhy = sbs / sy, y @ np.linalg.solve(b, y)
    a = sbs * yhy / sy**2 - 1
    low = min(1.0, yhy / sy * (1 - np.sqrt(a / (1 + a))))
    theta = max((low - 1) / a, min(1 / low, (1 - ratio) / ratio))
    sigma, least = 1 + theta * a, min(1.0, 1 / ratio)
    tau = least * min(sigma ** (-1 / (n - 1)), 1 / theta) if theta > 0 else None
    tau = min(least * sigma ** (-1 / (n - 1)), sigma) if tau is None else tau
    w = y / sy - b @ s / sbs
    rest = b - np.outer(b @ s, b @ s) / sbs + theta * sbs * np.outer(w, w)
    return tau * rest + np.outer(y, y) / sy


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1.0, 2.0, 1e3])
def test_the_update_of_the_inverse_is_the_inverse_of_the_update(scale):
    rng = np.random.default_rng(0)
    b, s = spd(rng, 7, -1, 1), rng.normal(size=7)
    y = scale * (b @ s + 0.3 * rng.normal(size=7))
    if s @ y < 0:
        y = -y
    stiffness = s @ b @ s / (s @ s)
    found = np.asarray(
        baselines.broyden_update(*map(jnp.asarray, (np.linalg.inv(b), s, y)), stiffness)
    )
    wanted = np.linalg.inv(direct(b, s, y))
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11 * np.abs(wanted).max())
    np.testing.assert_allclose(found @ y, s, rtol=1e-9)
    assert np.linalg.eigvalsh(found).min() > 0


def test_an_inverse_that_is_right_already_stays():
    b, s = spd(np.random.default_rng(1), 5, -2, 2), np.ones(5)
    h = jnp.asarray(np.linalg.inv(b))
    found = baselines.broyden_update(h, jnp.asarray(s), jnp.asarray(b @ s), s @ b @ s / (s @ s))
    np.testing.assert_allclose(found, h, rtol=1e-6, atol=1e-6 * np.abs(h).max())


def test_the_first_pairs_are_those_of_an_identity_with_the_scale_of_the_hessian():
    rng = np.random.default_rng(4)
    hessian, point = spd(rng, 6, 0, 2), rng.normal(size=6)
    direction = baselines.scale_by_broyden()
    state, inverse, before = direction.init(jnp.asarray(point)), np.eye(6), (point, point)
    for i, length in enumerate((0.7, 0.01, 0.02, 0.1)):
        gradient = hessian @ point
        assert np.linalg.norm(gradient) > 2
        d, state = direction.update(jnp.asarray(gradient), state, jnp.asarray(point))
        if i > 0:
            s, y = point - before[0], gradient - before[1]
            start = np.eye(6) * (y @ y) / (s @ y) if i == 1 else np.linalg.inv(inverse)
            np.testing.assert_allclose(state.inverse, np.linalg.inv(direct(start, s, y)), rtol=1e-6)
        before, inverse = (point, gradient), np.asarray(state.inverse)
        point = point - length * np.asarray(d)


def quadratic(n=20):
    """A quadratic function with its Hessian of condition 10⁴, its minimum, and a place to start."""
    rng = np.random.default_rng(2)
    hessian, least = jnp.asarray(spd(rng, n, -2, 2)), jnp.asarray(rng.normal(size=n))
    return hessian, least, lambda v, batch: 0.5 * (v - least) @ hessian @ (v - least)


@pytest.mark.parametrize("method", METHODS)
def test_a_quadratic_function_is_minimised(method):
    _, least, loss = quadratic()
    transformation = baselines.quasi_newton(method)
    steps, start = baselines.steps_of(transformation, loss), jnp.zeros_like(least)
    found, _, value = steps(start, transformation.init(start), None, jnp.asarray(150))
    assert float(loss(start, None)) > 1 and float(value) < 1e-16
    np.testing.assert_allclose(found, least, atol=1e-6)


class Searched(NamedTuple):
    """What a line search keeps."""

    value: jax.Array
    grad: jax.Array
    count: jax.Array


@pytest.mark.parametrize("end", [1.5, np.inf, np.nan])
def test_a_search_that_fails_does_not_raise_the_loss(end):
    """Two good steps, then one that ends higher: it is left out, and the method begins anew."""

    def update(gradient, state, params, *, value_fn, **_):
        good = state.count < 2
        new = jnp.where(good, 0.5, jnp.where(jnp.isfinite(end), -end, end)) * params
        return new - params, Searched(value_fn(new), jax.grad(value_fn)(new), state.count + 1)

    init = lambda v: Searched(jnp.asarray(jnp.inf), jnp.zeros_like(v), jnp.zeros((), int))
    transformation = optax.GradientTransformationExtraArgs(init, update)
    steps = baselines.steps_of(transformation, lambda v, batch: v @ v)
    v = jnp.asarray([3.0, 4.0])
    for count, norm, kept in ((2, 1.25, 2), (3, 1.25, 0), (5, 0.3125, 2), (6, 0.3125, 0)):
        found, state, _ = steps(v, transformation.init(v), None, jnp.asarray(count))
        assert float(jnp.linalg.norm(found)) == norm and int(state.count) == kept


@pytest.mark.parametrize("method", METHODS)
def test_after_new_points_a_pair_of_gradients_is_one_of_the_new_function(method):
    hessian, least, _ = quadratic()
    other = jnp.asarray(spd(np.random.default_rng(3), 20, -1, 1))
    loss = lambda v, batch: 0.5 * (v - least) @ batch @ (v - least)
    transformation = baselines.quasi_newton(method)
    steps, start = baselines.steps_of(transformation, loss), jnp.zeros_like(least)
    here, state, _ = steps(start, transformation.init(start), hessian, jnp.asarray(5))
    before = np.asarray(state[0].params)
    state = baselines.moved(state, jax.grad(lambda v: loss(v, other)))
    s = here - before
    np.testing.assert_allclose(state[0].updates, other @ (before - least), rtol=1e-12)
    _, state, value = steps(here, state, other, jnp.asarray(1))
    assert float(value) == pytest.approx(float(loss(here, other)), rel=1e-12)
    if method == "broyden":
        np.testing.assert_allclose(state[0].inverse @ (other @ s), s, rtol=1e-8, atol=1e-10)


def small(renewed=False):
    """-u'' = π² sin πx on [0, 1] with twelve units."""
    return pde.Equation(
        "small", "Poisson, 1-D",
        lambda u, x: pde.laplacian(u, x) + jnp.pi**2 * jnp.sin(jnp.pi * x[0]),
        lambda x: jnp.sin(jnp.pi * x[0]), (1, 12, 1), 40, 10, renewed=renewed,
    )  # fmt: skip


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_small_equation_is_solved(method, renewed, tmp_path):
    case = cases.as_case(small(renewed))
    found = baselines.train(case, method, 0, float("inf"), tmp_path, steps=2000)
    by_step = {m.step: m for m in found}
    assert found[0].step == 0 and found[-1].step == 2000 and found[0].error > 0.1
    assert by_step[1000].error > 1e-2, "Adam begins"
    assert found[-1].error < (1e-4 if method == "adam-lbfgs" else 1e-5)
    assert all(b.seconds > a.seconds for a, b in itertools.pairwise(found))


def test_a_run_is_read_again_unless_it_was_shorter(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "case", lambda name, published: cases.as_case(small()))
    one = lambda seconds: baselines.one("broyden", "A", 0, seconds, False, tmp_path)
    # The loss before the first step is not a number, which is unlike itself.
    seen = lambda run: [(m.step, m.seconds, m.error) for m in run]
    made = one(1e-3)
    assert len(made) >= 1 and seen(one(1e-3)) == seen(made) == seen(one(1e-4))
    longer = one(0.5)
    assert longer[-1].cpu >= 0.5 > made[-1].cpu and longer[0].step == 0


def test_a_dense_inverse_of_a_large_network_is_refused():
    with pytest.raises(ValueError, match="at most 5000 parameters: D has 10065"):
        baselines.train(lab.case("D"), "broyden", 0, 1.0)


def test_baselines_have_the_time_and_the_points_of_our_runs(monkeypatch, tmp_path, capsys):
    made = lambda error: [lab.Measured(s, 0.1 * s, 0.2 * s, 0.0, error, error) for s in (0, 10, 20)]
    asked = []
    monkeypatch.setattr(command, "one", lambda name, seed, *_: made(1e-9))
    monkeypatch.setattr(
        baselines, "one", lambda *words: asked.append(words) or made(1e-3 * (1 + words[2]))
    )
    out = tmp_path / "made"
    assert command.main(["A", "--seeds", "2", "--baselines", "--out", str(out)]) == 0
    assert asked == [
        (method, "A", seed, 4.0, False, out / "runs" / f"A-{method}" / f"seed-{seed}")
        for method in METHODS
        for seed in (0, 1)
    ]
    shown = capsys.readouterr().out
    assert "In the same CPU seconds, median of 2 seeds:" in shown
    assert "| pullback | 20 | 2 | 4 | 1.0e-09 | 1.0e-09 | 1.0e-09 |" in shown
    assert "| Adam + self-scaled Broyden | 20 | 2 | 4 | 1.5e-03 | 2.0e-03 | 1.5e-03 |" in shown
    assert (out / "A.png").stat().st_size > 10_000
    asked.clear()
    assert command.main(["A"]) == 0
    assert not asked and "In the same CPU seconds" not in capsys.readouterr().out
