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
from tests.fuzz.generate import EACH, problem, structure
from tests.fuzz.geometry import LOSSES, METRICS
from tests.fuzz.judge import must_refuse

HERE = Path(__file__).parent
PLAIN = ("plain", "duplicates", "integers", "collinear", "zero inputs", "zero params")


def plain(seed, inverse, kind):
    """The first problems of a seed with ordinary numbers."""
    for number in range(400):
        given = structure(seed, number)
        if (given.inverse, given.kind) != (inverse, kind):
            continue
        for index in range(number * EACH, number * EACH + 6):
            given = problem(seed, index)
            if set(given.scenario) <= set(PLAIN) and not must_refuse(given):
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


def _differences(structure, params, x):
    """J, column by column: of a complex leaf first along all real parts."""
    step = mpf(10) ** -30
    for leaf in structure.moving:
        for unit in (1, 1j) if leaf.kind == "complex" else (1,):
            for place in np.ndindex(*leaf.shape):
                sides = []
                for sign in (1, -1):
                    moved = {k: v.copy() for k, v in params.items()}
                    moved[leaf.name][place] = moved[leaf.name][place] + sign * unit * step
                    sides.append(formulas.outputs(structure, moved, x, MP)[0])
                yield (sides[0] - sides[1]) / (2 * step)


@pytest.mark.parametrize("kind", ["plain", "terms", "complex", "mean"])
def test_jacobians_are_the_differences_of_the_outputs(kind):
    numbers = [i for i in range(300) if structure(11, i).kind == kind]
    problems = [problem(11, i * EACH) for i in numbers]
    ordinary = [given for given in problems if set(given.scenario) <= set(PLAIN)]
    for given in ordinary[:8]:
        for part, values, _ in given.parts:
            with mp.workdps(80):
                params = formulas.moving(part, values, MP)
                x = None if values.x is None else MP.array(values.x[0])
                if x is not None and not np.all(np.isfinite(values.x[0])):
                    continue
                z, jacobian = formulas.outputs(part, params, x, MP)
                slopes = list(_differences(part, params, x))
                assert len(slopes) == jacobian.shape[1] == part.size
                for column, slope in enumerate(slopes):
                    error = norm(slope - jacobian[:, column])
                    assert error <= mpf(10) ** -20 * (1 + norm(jacobian)) * (1 + norm(z))


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


@pytest.mark.parametrize("kind, count", [("plain", 12), ("terms", 4), ("complex", 4)])
@pytest.mark.parametrize("inverse", ["pseudo", "tikhonov"])
def test_solutions_agree_with_numpy(inverse, kind, count):
    compared = 0
    for given in plain(12, inverse, kind):
        try:
            found = reference.refer(given)
        except reference.TooManyDigits:
            continue
        bound = bound_of(given, found)
        if bound.ambiguous or not bound.condition < 1e3:
            continue
        gram, g = float_of(found.gram), float_of(found.covector)
        size = np.max(np.abs(np.linalg.eigvalsh(gram)), initial=0.0)
        if inverse == "tikhonov":
            eta = np.linalg.solve(gram + given.values.damping * np.eye(len(gram)), g)
        else:
            eta = np.linalg.pinv(gram, 1e-12 if size else 0.0, hermitian=True) @ g
        assert np.allclose(eta, float_of(found.eta), rtol=1e-6, atol=1e-8 * np.abs(eta).max())
        compared += 1
        if compared == count:
            return
    pytest.fail(f"{compared} problems, not {count}")
