"""The certificate passes right answers, whichever solver returned them, and what it is made of."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from forged import (
    COVECTOR,
    INVERSES,
    LEAST_SQUARES,
    ROWS,
    SIZE,
    SPECTRUM,
    SUCCESSFUL,
    TARGETS,
    WIDE,
    Own,
    U,
    V,
    claiming_spectrum,
    codes,
    damped_code,
    formed,
    normal,
    parts,
    problem,
    wrapped,
)
from helpers import distance

import pullback as pb
from pullback._natural.certificate import relative, tolerance
from pullback._natural.rounding import noise_of
from pullback._natural.subproblem import subproblem
from pullback._problem.validate import validate
from pullback._rows.rows import Rows
from pullback.solver._strategy import Strategy

SOLVERS = {
    "SVD": pb.solver.SVD(),
    "Dual": pb.solver.Dual(),
    "Dual, formed": pb.solver.Dual(structured=False),
    "Primal": pb.solver.Primal(),
    "Krylov": pb.solver.Krylov(),
}
PSEUDO = {"MoorePenrose": pb.MoorePenrose(), "TruncatedRank": pb.TruncatedRank(2)}


@eqx.filter_jit
def judged(strategy, params, x, y, g):
    """Return the result and the residual for a lifted covector, and the residual for g."""
    sub = subproblem(LEAST_SQUARES, *validate(LEAST_SQUARES, params, (x, y)), strategy)
    stats, result = sub.judge()
    solve = sub.factorised.solve_covector
    return result, stats.residual, sub.factorised.residual(solve(g), None, g)


def minimum(spectrum):
    x, y = parts(spectrum)[2], normal(ROWS)
    return np.linalg.lstsq(x, y)[0], x, y


RIGHT = {
    "a minimum": (minimum(SPECTRUM), 1.0),
    "a minimum, full rank": (minimum((*SPECTRUM, 0.05)), 1.0),
    "a gradient of zero": ((np.zeros(SIZE), parts()[2], np.zeros(ROWS)), 1.0),
    "rank two": ((np.zeros(SIZE), parts(SPECTRUM[:2])[2], normal(ROWS)), 1.0),
    "an ordinary point": ((np.zeros(SIZE), parts()[2], normal(ROWS)), 1.0),
    "tiny": ((np.zeros(SIZE), parts()[2], normal(ROWS)), {64: 1e-100, 32: 1e-9}),
    "huge": ((np.zeros(SIZE), parts()[2], normal(ROWS)), {64: 1e100, 32: 1e9}),
}


def alarms(name, inverse, solver, dtype):
    """Return what is wrong with the certificate of a right answer; nothing if it passes."""
    (params, x, y), unit = RIGHT[name]
    unit = unit[jnp.finfo(dtype).bits] if isinstance(unit, dict) else unit
    strategy = Strategy(INVERSES[inverse](unit), SOLVERS[solver]).as_data()
    arrays = (jnp.asarray(v, dtype) for v in (params, unit * x, y, unit * normal(SIZE, seed=2)))
    result, lifted, covector = judged(strategy, *arrays)
    limit, found = tolerance(dtype), {}
    if not bool(result == pb.RESULTS.successful):
        found["result"] = pb.RESULTS[result]
    residuals = {"lifted": lifted, "covector": covector}
    return found | {what: float(r) for what, r in residuals.items() if not r <= limit}


KRYLOV = ("MoorePenrose", "Tikhonov")
PAIRS = [(s, i) for s in SOLVERS for i in INVERSES if s != "Krylov" or i in KRYLOV]


def all_alarms(pair, dtype):
    solver, inverse = pair
    found = {name: alarms(name, inverse, solver, dtype) for name in RIGHT if name != "huge"}
    return {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_right_answers_pass(pair):
    assert all_alarms(pair, jnp.float64) == {}


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_right_answers_pass_in_single_precision(pair):
    assert all_alarms(pair, jnp.float32) == {}


@pytest.mark.parametrize("inverse", ["MoorePenrose", "Tikhonov", "TruncatedRank", "filter"])
def test_right_answers_pass_at_1e100(inverse):
    assert alarms("huge", inverse, "SVD", jnp.float64) == {}


@pytest.mark.parametrize("inverse", ["MoorePenrose", "Tikhonov", "TruncatedRank", "filter"])
def test_right_answers_pass_at_a_minimum_with_equal_rows(inverse):
    """The mean of some numbers is such a problem."""
    x, y = np.outer(np.ones(ROWS), np.linspace(0.3, 0.7, SIZE)), normal(ROWS)
    strategy = Strategy(INVERSES[inverse](1.0), pb.solver.SVD()).as_data()
    for seed in range(4):
        y = normal(ROWS, seed=seed)
        arrays = np.linalg.lstsq(x, y)[0], x, y, x[0]
        result, residual, _ = judged(strategy, *map(jnp.asarray, arrays))
        assert bool(result == pb.RESULTS.successful), float(residual)


class Smooth(Own):
    """1/(s² + unit²), not declared to be damped."""

    def filter(self, s, cutoff):
        return 1 / (s**2 + jnp.asarray(self.unit, s.dtype) ** 2)

    @property
    def kernel(self):
        return 3.0


def test_a_filter_of_the_kernel_passes_at_a_condition_of_1e6(eager):
    example = problem(parts(np.geomspace(1.0, 1e-6, 4), rows=4, size=7)[2], normal(4))
    inverse = Smooth(1e-3)
    ng = pb.natural_gradient(*example, inverse=inverse, solver=pb.solver.Dual(), throw=False)
    exact = pb.natural_gradient(*example, inverse=inverse, solver=pb.solver.SVD()).vector
    assert distance(ng.vector, exact) < 1e-8
    assert bool(ng.result == pb.RESULTS.successful), float(ng.stats.residual)


@pytest.mark.parametrize("solver", ["Dual", "Primal"])
def test_a_truncation_passes_where_eigenvectors_of_a_square_are_mixed(solver, eager):
    """Those of 1e-6 and 3e-7 are turned by 1e-4, (resolution / s)²."""
    example = problem(parts((1.0, 0.1, 1e-2, 1e-6, 3e-7))[2])
    inverse = pb.TruncatedRank(4)
    ng = pb.natural_gradient(*example, inverse=inverse, solver=SOLVERS[solver], throw=False)
    assert bool(ng.result == pb.RESULTS.successful), float(ng.stats.residual)


def test_a_direction_below_the_resolution_may_be_missing(eager):
    example = problem(parts((1.0, 0.5, 0.2, 3e-8))[2])
    assert codes(pb.TruncatedRank(2), pb.solver.Dual(), example) == SUCCESSFUL


# ---- solvers of one's own ------------------------------------------------------------------------


@pytest.mark.parametrize("inverse", INVERSES)
def test_wrapped_factors_pass(inverse, eager):
    for example in (problem(), WIDE):
        assert codes(INVERSES[inverse](1.0), wrapped(), example) == SUCCESSFUL


STEEP = problem(y=U[:, 5] + 1e-4 * TARGETS)
"""Targets far from what the model can reach, so that Aᵀr is small beside |A| |r - Aη|."""


def residual_of(size):
    """Return a change of the answer along v₁, so that ρ changes by `size`."""
    return lambda eta: eta + size * jnp.asarray(V[:, 0])


@pytest.mark.parametrize(
    ("claims", "size", "passes"),
    [
        ({}, 5e-10, False),
        ({"cutoff": 1e-9}, 5e-10, True),
        ({"cutoff": 1e-9}, 5e-9, False),
        ({"cutoff": 1e-9, "graded": True}, 5e-10, False),
        ({"cutoff": 1e9}, 1e-5, False),
    ],
)
def test_a_reported_cut_off_counts_up_to_half_of_the_digits(claims, size, passes, eager):
    solver = claiming_spectrum(residual_of(size), **claims)
    ng = pb.natural_gradient(*STEEP, solver=solver, throw=False)
    assert bool(ng.result == pb.RESULTS.successful) == passes, float(ng.stats.residual)


@pytest.mark.parametrize(("cutoff", "passes"), [(0.0, False), (1e-9, True), (1e-11, False)])
def test_a_reported_cut_off_counts_beside_a_covector_outside_the_range(cutoff, passes, eager):
    example = LEAST_SQUARES, *validate(*problem(y=np.zeros(ROWS)))
    g = jnp.asarray(V[:, 4] + 1e-4 * V[:, 1])
    solver = claiming_spectrum(residual_of(5e-10), cutoff=cutoff)
    sub = subproblem(*example, Strategy(pb.MoorePenrose(), solver), covector=g)
    stats, result = sub.judge()
    assert bool(result == pb.RESULTS.successful) == passes, float(stats.residual)


@pytest.mark.parametrize(
    ("damping", "size", "passes"),
    [(1e-6, 5e-10, True), (1e-6, 5e-8, False), (1e-2, 5e-10, False), (1e-12, 1e-5, False)],
)
def test_rounding_times_the_condition_number_counts_if_damped(damping, size, passes, eager):
    solver = wrapped(answer=residual_of(size))
    inverse = pb.Tikhonov(damping)
    ng = pb.natural_gradient(*STEEP, inverse=inverse, solver=solver, throw=False)
    assert bool(ng.result == pb.RESULTS.successful) == passes, float(ng.stats.residual)


def test_an_answer_that_is_large_beside_its_image_passes(eager):
    """The condition number is 1e10, so that the rounding of A η is 1e-6."""
    u, _, a = parts((1.0, 0.5, 0.2, 1e-5, 1e-10))
    example = problem(a, u[:, :5] @ normal(5))
    assert codes(pb.MoorePenrose(), pb.solver.SVD(), example) == SUCCESSFUL
    assert codes(pb.MoorePenrose(), wrapped(), example) == SUCCESSFUL
    # Rows that were formed may differ from the model by rounding.
    noise = jnp.asarray(1e-16 * normal((ROWS, SIZE)))
    assert codes(pb.MoorePenrose(), formed(lambda a: a + noise), example)[0] == SUCCESSFUL[0]


def test_a_covector_nearly_outside_the_range_passes(eager):
    example = LEAST_SQUARES, *validate(*problem(y=np.zeros(ROWS)))
    g = jnp.asarray(V[:, 4] + 1e-10 * V[:, 1])
    strategy = Strategy(pb.MoorePenrose(), claiming_spectrum(cutoff=0.0))
    stats, result = subproblem(*example, strategy, covector=g).judge()
    assert bool(result == pb.RESULTS.successful), float(stats.residual)


@pytest.mark.parametrize("inverse", PSEUDO)
@pytest.mark.parametrize("damping", [0.0, 1e-9, 1e-3])
def test_damped_answers_pass(inverse, damping, eager):
    solvers = [pb.solver.SVD(), wrapped()]
    solvers += [pb.solver.Dual(), pb.solver.Primal()] if damping == 1e-3 else []
    for solver in solvers:
        for g in (None, COVECTOR):
            assert damped_code(PSEUDO[inverse], solver, damping, g) == SUCCESSFUL[0], solver


# ---- what it costs, and its parts ----------------------------------------------------------------


def test_a_clear_answer_is_certified_with_one_product(eager, monkeypatch):
    """More estimate the norm of A, which is needed where rounding may explain the residual."""
    calls, rmv = [], Rows.rmv
    monkeypatch.setattr(Rows, "rmv", lambda rows, y: calls.append(y) or rmv(rows, y))
    r = jnp.asarray(TARGETS)
    factorised = pb.pullback(*problem()).factorise(pb.MoorePenrose(), pb.solver.SVD())
    found = factorised.solve_lifted(r)
    products = []
    for eta in (found, found / 2):
        calls.clear()
        factorised.residual(eta, r, None)
        products.append(len(calls))
    # One more is Aᵀ r.
    assert products[0] == 2 < products[1]


def test_factors_exact_on_the_kernel_are_not_probed(eager):
    for exact, solves in ((True, 1), (False, 3)):
        calls = []
        solver = wrapped(answer=lambda eta, calls=calls: calls.append(eta) or eta, exact=exact)
        pb.natural_gradient(*problem(), solver=solver)
        assert len(calls) == solves


def test_a_residual_relative_to_what_is_allowed():
    limit, number = tolerance(jnp.float64), lambda *x: float(relative(*map(jnp.asarray, x)))
    assert limit == np.sqrt(np.finfo(np.float64).eps)
    assert number(1.0, 4.0, 0.0) == 0.25
    assert number(0.0, 0.0, 0.0) == 0
    assert number(1.0, 0.0, 0.0) == np.inf
    # At most the tolerance where the error is allowed, more beyond.
    assert number(1e-3, 1e-9, 1e-3) <= limit < number(1.1e-3, 1e-9, 1e-3)
    for nan in ((np.nan, 1.0, 0.0), (0.0, np.nan, 0.0), (0.0, 0.0, np.nan)):
        assert np.isnan(number(*nan))


def test_a_parameter_covector_is_not_found_in_r():
    # With r = 0 the distance r - Aη is all of Aη, and says nothing of a change of A.
    rows = type("Rows", (), {"shape": (3, 2), "dtype": jnp.float64})()
    norms = [jnp.asarray(v) for v in (1.0, 5.0, 5.0, 0.0, 1.0, 0.1)]
    assert noise_of(rows, *norms).residual == 0
