"""The reference itself: derivatives by differences, families in closed form, the linear algebra."""

import ast
from pathlib import Path

import numpy as np
import pytest
from mpmath import mp, mpf

from tests.fuzz import formulas, reference
from tests.fuzz.bound import bound_of
from tests.fuzz.errors import norm
from tests.fuzz.formulas import MP
from tests.fuzz.generate import EACH, problem
from tests.fuzz.geometry import LOSSES, METRICS
from tests.fuzz.judge import must_refuse

HERE = Path(__file__).parent
PLAIN = ("plain", "duplicates", "integers", "collinear", "zero inputs", "zero params")


def plain(seed, inverse):
    """The first problems of a seed with ordinary numbers."""
    for index in range(0, 200 * EACH, EACH):
        given = problem(seed, index)
        if given.structure.inverse == inverse and set(given.scenario) <= set(PLAIN):
            if not must_refuse(given):
                yield given


def float_of(x):
    return x.astype(float)


@pytest.mark.parametrize("name", ["problem", "formulas", "geometry", "reference"])
def test_the_reference_imports_nothing_of_ours_nor_jax(name):
    tree = ast.parse((HERE / f"{name}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").split(".")[0])
    assert not found & {"jax", "jaxlib", "pullback", "equinox", "lineax"}


def test_jacobians_are_the_differences_of_the_outputs():
    for number in range(12):
        given = problem(11, number * EACH)
        structure, values = given.structure, given.values
        if must_refuse(given):
            continue
        with mp.workdps(80):
            params = formulas.moving(structure, values, MP)
            x = None if values.x is None else MP.array(values.x[0])
            _, jacobian = formulas.outputs(structure, params, x, MP)
            step, column = mpf(10) ** -30, 0
            for leaf in structure.moving:
                for place in np.ndindex(*leaf.shape):
                    sides = []
                    for sign in (1, -1):
                        moved = {k: v.copy() for k, v in params.items()}
                        moved[leaf.name][place] = moved[leaf.name][place] + sign * step
                        sides.append(formulas.outputs(structure, moved, x, MP)[0])
                    slope = (sides[0] - sides[1]) / (2 * step)
                    error = norm(slope - jacobian[:, column])
                    assert error <= mpf(10) ** -20 * (1 + norm(jacobian)) * (1 + norm(sides[0]))
                    column += 1


@pytest.mark.parametrize("name", [n for n, m in METRICS.items() if m.likelihood])
def test_the_fisher_metric_is_the_expected_hessian(name):
    """At a target that is the mean of the family, M is the derivative of c."""
    metric, rng = METRICS[name], np.random.default_rng(0)
    loss = LOSSES[metric.likelihood]
    q = metric.outputs[-1]
    constants = {"covariance": MP.array(np.diag(np.arange(1.0, q + 1)) + 0.1)}
    with mp.workdps(60):
        z = MP.array(rng.standard_normal(q))
        y = z * 0 if name != "categorical" else 0
        if name == "independent":
            y = MP.zeros(q - 2)
        if name == "soft":
            y = formulas.softmax(z, MP)
        if name == "mean_scale":
            # The mean over y = μ ± σ of the Hessian is the Fisher metric.
            half = q // 2
            ys = [z[:half] + sign * MP.exp(z[half:]) for sign in (1, -1)]
        else:
            ys = [y]
        step = mpf(10) ** -20
        hessian = MP.zeros(q, q)
        for y in ys:
            for j in range(q):
                unit = MP.zeros(q)
                unit[j] = step
                slope = (loss(z + unit, y, constants).c - loss(z - unit, y, constants).c) / 2
                hessian[:, j] = hessian[:, j] + slope / step / len(ys)
        assert norm(hessian - metric.matrix(z, y, constants)) < mpf(10) ** -25


@pytest.mark.parametrize("name", [n for n, m in METRICS.items() if m.grading])
def test_graded_roots_are_roots(name):
    metric, rng = METRICS[name], np.random.default_rng(1)
    with mp.workdps(60):
        z = MP.array(30 * rng.standard_normal(metric.outputs[-1]))
        constants = {"scale": MP.array(0.3)}
        weights, rows = metric.grading(z, constants)
        matrix = metric.matrix(z, None, constants)
        assert norm(rows.T @ (weights[:, None] * rows) - matrix) < mpf(10) ** -40 * norm(matrix)


@pytest.mark.parametrize("inverse", ["pseudo", "tikhonov"])
def test_solutions_agree_with_numpy(inverse):
    compared = 0
    for given in plain(12, inverse):
        found = reference.refer(given)
        bound = bound_of(given, found)
        if bound.ambiguous or not bound.condition < 1e3 or compared == 12:
            continue
        gram, g = float_of(found.gram), float_of(found.covector)
        size = np.max(np.abs(np.linalg.eigvalsh(gram)), initial=0.0)
        if inverse == "tikhonov":
            eta = np.linalg.solve(gram + given.values.damping * np.eye(len(gram)), g)
        else:
            eta = np.linalg.pinv(gram, 1e-12 if size else 0.0, hermitian=True) @ g
        assert np.allclose(eta, float_of(found.eta), rtol=1e-6, atol=1e-8 * np.abs(eta).max())
        compared += 1
    assert compared >= 8
