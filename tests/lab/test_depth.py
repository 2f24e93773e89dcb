"""The claims of Depth without the magic would not come to the verdict on record if a formula were
broken.
"""

import importlib

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

from pullback import linear
from pullback_lab import papers
from pullback_lab.papers import Budget, Verdict, judge
from pullback_lab.papers.depth import _logistic, _margins, _products, _toy
from pullback_lab.papers.depth._figure_factors import Completed, initial, product, sample_task
from pullback_lab.papers.ours import limit_direction

MODULES = {
    name: importlib.import_module(f"pullback_lab.papers.depth.{name}")
    for name in papers.MODULES["depth"]
}


def run(name, seed=0):
    return MODULES[name].CLAIM.run(Budget(), jax.random.key(seed))


# ---- a broken formula changes the verdict ----


def test_a_wrong_sign_in_lemma_1(monkeypatch):
    monkeypatch.setattr(MODULES["lemma_1"], "score", lambda s, y: y * (1 - _logistic.phi(y * s)))
    assert judge(run("lemma_1").rows) is Verdict.FAILS


def test_a_wrong_offset_in_theorem_3(monkeypatch):
    monkeypatch.setattr(
        MODULES["theorem_3"],
        "interpolating_logits",
        lambda s, y, t: y * (np.asarray(t)[..., None] + 0 * s),
    )
    assert judge(run("theorem_3").rows) is Verdict.FAILS


def test_the_limit_is_not_the_largest_margin(monkeypatch):
    monkeypatch.setattr(
        limit_direction,
        "limit",
        lambda x, y, start=None: np.asarray(linear.l2_margin(x, y)),
    )
    rows = limit_direction.CLAIM.run(Budget(), jax.random.key(0)).rows
    assert not rows[0].holds and judge(rows) is None  # the control notices, too


def test_the_printed_formula_is_no_correction_of_itself(monkeypatch):
    monkeypatch.setattr(MODULES["factorisation"], "split", MODULES["factorisation"].printed)
    monkeypatch.setattr(MODULES["factorisation"], "_not_onto", lambda *_: [])
    assert judge(run("factorisation").rows) is Verdict.FAILS


def test_a_fisher_matrix_that_is_formed_is_unstable(monkeypatch):
    module = MODULES["stability"]
    monkeypatch.setitem(module.METHODS, "the library", module.shifted_down)
    assert judge(run("stability").rows) is None


def test_the_printed_argmins_are_no_margins(monkeypatch):
    monkeypatch.setattr(MODULES["counterexample"], "RIGHT", MODULES["counterexample"].PRINTED)
    assert judge(run("counterexample").rows) is Verdict.FAILS


def test_a_broken_control_leaves_no_verdict(monkeypatch):
    monkeypatch.setattr(MODULES["proliferation"], "coincide", lambda x, y: False)
    assert judge(run("proliferation").rows) is None


# ---- the references ----


def test_a_run_completes_a_matrix_only_if_it_does_so_from_moved_starts(monkeypatch, rng):
    grid = MODULES["grid_search"]
    task = sample_task(rng, 6, 1, 20)
    factors = initial(rng, 6, 2, 1.0)
    for lucky in range(len(grid.MOVED) + 2):
        starts = []

        def descend(formula, task, factors, step, starts=starts, lucky=lucky):
            starts.append(product(factors))
            end = task.truth if len(starts) <= lucky else 10 * task.truth
            return Completed(end, 0.0 if len(starts) <= lucky else 2.0, 1)

        monkeypatch.setattr(grid, "descend", descend)
        end, found = grid.settled("split", task, factors, 0.1)
        assert (end.beta is task.truth) == (lucky > 0)
        expected = "DIVERGENT" if lucky == 0 else "WRONG"
        assert found.name == (expected if lucky <= len(grid.MOVED) else "COMPLETES")
        gaps = [np.abs(start / product(factors) - 1).max() for start in starts[1:]]
        assert len(gaps) == min(lucky, len(grid.MOVED)) and all(1e-13 < g < 1e-11 for g in gaps)


def test_margins_against_a_general_solver(rng):
    x, y = _logistic.separable(rng, 12, 3)
    signed = y[:, None] * x
    constraint = {"type": "ineq", "fun": lambda b: signed @ b - 1, "jac": lambda b: signed}
    start = 10 * _margins.natural_margin(x, y)
    general = minimize(
        lambda b: b @ b / 2,
        start,
        jac=lambda b: b,
        constraints=constraint,
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(
        linear.l2_margin(x, y), general.x, rtol=0, atol=1e-6 * np.linalg.norm(general.x)
    )
    for v in (linear.l2_margin(x, y), linear.l1_margin(x, y), _margins.natural_margin(x, y)):
        assert np.isclose((signed @ v).min(), 1.0)
    assert np.abs(linear.l1_margin(x, y)).sum() <= np.abs(linear.l2_margin(x, y)).sum() + 1e-9


def test_the_toy_has_three_answers():
    angles = [
        float(_toy.degrees(f(_toy.X, _toy.Y)))
        for f in (linear.l2_margin, linear.l1_margin, _margins.natural_margin)
    ]
    assert angles == pytest.approx([np.degrees(np.arctan(0.4)), 0.0, -4.9], abs=0.1)


def test_the_newton_flow_by_hand():
    """One sample, one column: s = log(e^(t + c) - 1), c = log(1 + e^s₀)."""
    one, beta = np.ones((1, 1)), np.array([0.3])
    expected = _logistic.interpolating_logits(beta, np.ones(1), 2.5)
    np.testing.assert_allclose(
        _logistic.newton_flow(one, np.ones(1), beta, 2.5), expected, atol=1e-12
    )
    np.testing.assert_allclose(expected, np.log(np.exp(2.5) * (1 + np.exp(0.3)) - 1), atol=1e-14)


def test_the_jacobian_of_a_product(rng):
    factors = _products.gaussian(rng, [2, 3, 4, 2])
    updates = _products.gaussian(rng, [2, 3, 4, 2])
    flat = np.concatenate([u.ravel() for u in updates])
    moved = lambda h: np.linalg.multi_dot(
        [w + h * u for w, u in zip(factors, updates, strict=True)]
    )
    slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
    np.testing.assert_allclose(_products.motion(factors, updates), slope, atol=1e-9)
    np.testing.assert_allclose((_products.jacobian(factors) @ flat).reshape(2, 2), slope, atol=1e-9)


def test_two_layers_interpolate(rng):
    module = MODULES["singular_fisher"]
    x, s, w = (
        rng.standard_normal((3, 7)),
        rng.standard_normal(3),
        module.layers(rng.uniform(0.5, 1, 7), 2),
    )
    np.testing.assert_allclose(x @ module.hyperbolic(x, s, *w), s, atol=1e-11)
    np.testing.assert_allclose(
        module.hyperbolic(x, x @ w.prod(axis=0), *w), w.prod(axis=0), atol=1e-11
    )
