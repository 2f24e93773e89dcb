"""The suite: references, published numbers, published points, and flows in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from pullback import pde
from pullback_lab import pde as lab
from pullback_lab.cli import app
from pullback_lab.pde import __main__ as command
from pullback_lab.pde import cases, problems, published, references, run
from pullback_lab.pde.picture import COLOURS
from pullback_lab.pde.published import MARKS
from pullback_lab.pde.table import compared, table


@pytest.mark.parametrize("viscosity", [problems.VISCOSITY, problems.PERIODIC_VISCOSITY])
def test_the_reference_of_burgers_solves_it(viscosity):
    rng = np.random.default_rng(0)
    points = np.stack([rng.uniform(0.05, 1, 60), rng.uniform(-1, 1, 60)], axis=1)
    u = lambda shift: references.burgers(points + np.asarray(shift), viscosity)
    h = 1e-4
    first = lambda axis: (
        (8 * (u(h * axis) - u(-h * axis)) - u(2 * h * axis) + u(-2 * h * axis)) / (12 * h)
    )
    t, x = np.eye(2)
    twice = (16 * (u(h * x) + u(-h * x)) - u(2 * h * x) - u(-2 * h * x) - 30 * u(0 * x)) / (
        12 * h**2
    )
    residual = first(t) + u(0 * x) * first(x) - viscosity * twice
    size = 1 + np.abs(first(t)) + np.abs(u(0 * x) * first(x))
    assert np.max(np.abs(residual) / size) < 1e-6
    start = np.stack([np.zeros(20), rng.uniform(-1, 1, 20)], axis=1)
    np.testing.assert_allclose(
        references.burgers(start, viscosity), -np.sin(np.pi * start[:, 1]), atol=1e-14
    )
    np.testing.assert_allclose(u(2 * x), u(0 * x), atol=1e-12)  # of period 2


def test_the_periodic_network_is_periodic_and_has_the_dsgnar_problem():
    case = lab.case("Burgers-periodic")
    params = case.start(jax.random.key(0))
    u = lambda x: case.field(params, x)
    for end in ([0.3, -1.0], [0.8, 0.2]):
        x = jnp.asarray(end)
        found, wanted = pde.jet(u, x), pde.jet(u, x + jnp.asarray([0.0, 2.0]))
        assert all(np.allclose(a, b, rtol=1e-12) for a, b in zip(found, wanted, strict=True))
    equation, x = case.equation, jnp.asarray([0.3, 0.4])
    v = lambda x: x[0] * x[1] ** 2
    assert abs(equation.residual(v, x) - (0.16 + 0.3**2 * 2 * 0.4**3 - 0.01 * 2 * 0.3)) < 1e-14
    (start,) = equation.conditions
    assert abs(start.residual(v, jnp.asarray([0.0, 0.5])) - 1.0) < 1e-15
    assert case.steps == 1600 and equation.size < equation.inside


def test_the_field_of_burgers_has_its_symmetry_and_its_values():
    case = lab.case("Burgers")
    params = case.start(jax.random.key(0))
    u = lambda t, x: float(case.field(params, jnp.asarray([t, x])))
    assert u(0.7, 0.3) == -u(0.7, -0.3) and abs(u(0.7, 0.3) + np.sin(0.3 * np.pi)) > 1e-3
    assert abs(u(0.0, 0.4) + np.sin(0.4 * np.pi)) < 1e-15 and u(0.7, 0.0) == 0.0
    assert abs(u(0.7, 1.0)) < 1e-15 and abs(u(0.2, -1.0)) < 1e-15
    equation = case.equation
    assert equation.names == ("inside",) and equation.size < equation.inside
    points = np.asarray(equation.points(jax.random.key(1))["inside"][0])
    assert points.min() >= 0 and points.max() <= 1
    assert 0.13 < np.mean(points[:, 1] < 0.01) < 0.15, "the layer"
    # No square of the lattice is empty, and the edges are covered.
    a, c = np.arcsin(points[:, 0] ** (1 / 2)), np.arcsin(points[:, 1] ** (1 / 3))
    counts = np.histogram2d(a, c, bins=15, range=[[0, np.pi / 2]] * 2)[0]
    assert counts.min() >= 6 and counts.max() <= 12
    other = np.asarray(equation.points(jax.random.key(2))["inside"][0])
    assert not np.array_equal(points, other)
    test = case.test(jax.random.key(2))[0]
    assert np.mean(test[:, 1] < 0) > 0.4, "errors are those on the whole strip"


def test_the_reference_of_allen_cahn_solves_it():
    """Against implicit finite differences, which share nothing with Fourier modes."""
    points, values = references.allen_cahn(modes=512, steps=400, kept=4)
    n, steps = 512, 4000
    x = -1 + 2 * np.arange(n) / n
    second = (np.roll(np.eye(n), 1, 0) + np.roll(np.eye(n), -1, 0) - 2 * np.eye(n)) * (n / 2) ** 2
    dt = 0.25 / steps
    # One quarter of the time, by Crank-Nicolson and Adams-Bashforth.
    left = np.linalg.inv(np.eye(n) - dt / 2 * 1e-4 * second)
    step = left @ (np.eye(n) + dt / 2 * 1e-4 * second)
    u = x**2 * np.cos(np.pi * x)
    before = force = 5 * (u - u**3)
    for _ in range(steps):
        force = 5 * (u - u**3)
        u = step @ u + dt * (left @ (1.5 * force - 0.5 * before))
        before = force
    quarter = np.isclose(points[:, 0], 0.25)
    assert np.sqrt(np.mean((values[quarter] - u) ** 2)) < 2e-4


def test_kovasznay_flow_is_one():
    equation = lab.case("Kovasznay").equation
    x = equation.domain(jax.random.key(0), 8)
    inside = jax.vmap(lambda y: jnp.stack(equation.residual(equation.solution, y)))(x)
    assert inside.shape == (8, 3) and np.abs(inside).max() < 1e-11
    batch = equation.points(jax.random.key(1))
    for label, condition in zip(equation.labels, equation.conditions, strict=True):
        r = jax.vmap(lambda y, c=condition: c.residual(equation.solution, y))(batch[label][0])
        assert np.abs(r).max() < 1e-14, label


def test_published_numbers_of_parameters_points_and_curves():
    sizes = {"A": 257, "B": 257, "C": 449, "D": 10_065, "E": 449, "F'": 118_145, "G": 1_325_057}
    assert {name: lab.EQUATIONS[name].size for name in sizes} == sizes
    for name, best in lab.PUBLISHED.items():
        found = lab.curves(name)
        assert found and all(len(curve.marks) >= 10 for curve in found), name
        ends = min(mark.error for mark in found[0].marks)
        assert abs(np.log(ends / best.error)) < 0.7, (name, ends)
        for curve in found:
            steps = [mark.step for mark in curve.marks]
            assert steps == sorted(set(steps)) and curve.source.startswith("arXiv")
    assert lab.curves("Burgers") == []


def test_a_mark_is_compared_with_the_published_curve_that_is_the_best_there():
    made = lambda error, relative: [
        lab.Measured(s, 0.1, 0.2, 0.0, error, relative) for s in (0, *MARKS[:7])
    ]
    found = [(row.mark, row.published[0].method) for row in compared("A", [made(1.0, 2.0)])]
    assert found == [
        (10, "L-BFGS"), (30, "L-BFGS"), (100, "Hessian-free"), (200, "Hessian-free"),
        (400, "Hessian-free"), (800, "ENGD, per layer"), (1600, "ENGD, per layer"),
    ]  # fmt: skip
    # The best at a step up to which no curve went is the one with the least error at its end.
    curve, mark = published.best("A", 10_000)
    assert (curve.method, mark.step, mark.error) == ("ENGD", 5702, 6.186e-8)
    # The median of three is above from step 100 on, at its absolute error.
    lines = table("A", [made(1e-9, 1.0), made(1e-3, 1.0), made(1.0, 1.0)]).splitlines()
    rows = [line for line in lines if line.startswith(("| 30 ", "| 100 "))]
    assert "| 1.0e-03 | 1.0e+00 | 1.0e+00 | 2.5e-03 (L-BFGS, step 30) |" in rows[0]
    assert "| **1.0e-03 above** | 1.0e+00 | 1.0e+00 | 2.8e-04 (Hessian-free, step 9" in rows[1]
    # Where the published solution is normalised, the relative error is compared.
    (row,) = [x for x in table("G", [made(9.0, 0.1)]).splitlines() if x.startswith("| 100 ")]
    assert "| 9.0e+00 | 9.0e+00 | **1.0e-01 above** | 4.0e-02 (SPRING, line search, " in row
    assert len(COLOURS) >= max(len(lab.curves(name)) for name in lab.PUBLISHED)


@pytest.mark.parametrize("name", ["F", "F'", "G"])
def test_normalised_solutions_have_root_mean_square_one(name):
    equation = lab.EQUATIONS[name]
    points = equation.domain(jax.random.key(0), 20_000)
    size = jnp.sqrt(jnp.mean(jax.vmap(equation.solution)(points) ** 2))
    assert abs(float(size) - 1) < 0.01


@pytest.mark.parametrize("name", ["B", "E"])
def test_half_of_the_published_heat_points_are_at_the_start(name):
    equation = lab.case(name, published=True).equation
    x = np.asarray(equation.points(jax.random.key(0))["boundary"][0])
    start = x[:, 0] == 0
    assert start.sum() == equation.border // 2 and x.shape[0] == equation.border
    sides = np.any((x[:, 1:] == 0) | (x[:, 1:] == 1), axis=1)
    assert np.all(sides[~start]) and not np.any(sides[start])


def test_the_published_start_is_uniform_and_ours_has_its_transitions_inside():
    params = lab.case("A", published=True).start(jax.random.key(0))
    (w, b), (v, c) = params
    assert w.shape == (64, 2) and c.shape == (1,)
    assert 0.6 < np.abs(w).max() <= 2**-0.5 and 0.6 < np.abs(b).max() <= 2**-0.5
    assert 0.1 < np.abs(v).max() <= 1 / 8


@pytest.mark.parametrize(
    "name", ["Burgers", "Burgers-periodic", "Allen-Cahn", "Kovasznay", "Inverse", "Helmholtz"]
)
def test_every_case_has_a_start_points_and_a_reference(name, monkeypatch):
    monkeypatch.setattr(cases, "TEST_POINTS", 50)
    monkeypatch.setattr(cases, "allen_cahn", lambda: references.allen_cahn(512, 40, 2))
    case = lab.case(name)
    params = case.start(jax.random.key(0))
    points, exact = case.test(jax.random.key(1))
    error, relative = case.errors(params, points, exact)
    assert np.isfinite(error) and error > 0 and relative > 0
    batch = case.equation.points(jax.random.key(2))
    problem = case.equation.problem(case.field)
    outputs = problem.outputs(params, {label: part[0] for label, part in batch.items()})
    assert set(outputs) == set(case.equation.names)
    assert all(np.all(np.isfinite(r)) for r in jax.tree.leaves(outputs))


def test_the_coefficient_of_the_inverse_problem_enters_the_residual():
    case = lab.case("Inverse")
    solution, x = case.equation.solution, jnp.asarray([0.3, 0.4])
    right = {"log_kappa": jnp.log(problems.CONDUCTIVITY)}
    assert abs(float(case.equation.residual(solution, x, right))) < 1e-12
    assert abs(float(case.equation.residual(solution, x, {"log_kappa": jnp.zeros(())}))) > 0.1
    assert cases.shown({"log_kappa": np.log(0.25)}) == "κ = 0.250000"
    assert isinstance(case.equation.conditions[0], pde.Data)


def test_equations_are_solved_by_the_command(monkeypatch, tmp_path):
    asked = []

    def one(name, seed, *words):
        asked.append((name, seed, *words))
        return [lab.Measured(s, 0.1 * s, 0.1 * s, 0.0, 0.1**s, 0.1**s) for s in (0, 3, 9)]

    monkeypatch.setattr(command, "one", one)
    out = tmp_path / "made"
    words = ["pde", "A", "F'", "--seeds", "2", "--steps", "9", "--as-published"]
    words += ["--minutes", "10", "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "published points and initialisation" in done.output
    assert {path.name for path in out.iterdir()} == {
        "tables.md", "tables.json", "A.png", "F-prime.png",
    }  # fmt: skip
    assert [words[:2] for words in asked] == [("A", 0), ("A", 1), ("F'", 0), ("F'", 1)]
    _, _, steps, seconds, momentum, progress, published, folder, memory = asked[-1]
    assert (steps, seconds, momentum, progress, published) == (9, 600.0, True, True, True)
    assert folder == out / "runs" / "F-prime-published" / "seed-1" and memory is None
    words = ["pde", "C", "--memory", "0.6", "--out", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert asked[-1][-2:] == (out / "runs" / "C-memory-0.6" / "seed-0", 0.6)
    assert CliRunner().invoke(app, ["pde", "C", "--memory", "1"]).exit_code == 2
    assert CliRunner().invoke(app, ["pde", "Z"]).exit_code == 2
    # Without a limit in time a run makes all steps of its equation, up to the last mark.
    assert CliRunner().invoke(app, ["pde", "C", "--out", str(out)]).exit_code == 0
    assert asked[-1][:4] == ("C", 0, 3200, float("inf"))
    assert CliRunner().invoke(app, ["pde", "C", "--minutes", "0"]).exit_code == 2


def test_measurements_are_taken_exactly_at_the_marks():
    for steps in (*cases.STEPS.values(), 15, 30, 60, 100):
        every = run.interval(steps)
        assert all(mark % every == 0 for mark in MARKS if mark <= steps) and steps >= 10 * every
    assert [run.interval(steps) for steps in (1, 9, 20, 60, 100, 3200)] == [1, 1, 2, 5, 10, 10]
