"""Residuals at exact solutions, derivatives against closed forms, and an equation solved."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback import pde
from pullback_lab import pde as lab
from pullback_lab.pde import __main__ as command

X = jnp.asarray([0.3, 0.7, 0.2])


def field(x):
    return jnp.sin(2 * x[0]) * jnp.exp(x[1]) + x[2] ** 3


def test_derivatives_in_closed_form():
    x, y, z = map(float, X)
    np.testing.assert_allclose(pde.partial(field, X, 0), 2 * np.cos(2 * x) * np.exp(y), rtol=1e-14)
    np.testing.assert_allclose(
        pde.laplacian(field, X), -3 * np.sin(2 * x) * np.exp(y) + 6 * z, rtol=1e-13
    )
    np.testing.assert_allclose(pde.laplacian(field, X, (2,)), 6 * z, rtol=1e-13)
    np.testing.assert_allclose(
        pde.second(field, X, jnp.asarray([0.0, 2.0, 0.0])),
        4 * np.sin(2 * x) * np.exp(y),
        rtol=1e-13,
    )


@pytest.mark.parametrize("name", list(lab.EQUATIONS))
def test_the_residual_of_the_solution_is_zero_and_of_another_field_is_not(name):
    equation = lab.EQUATIONS[name]
    points = equation.domain(jax.random.key(1), 5)
    zero = jax.vmap(lambda x: equation.residual(equation.solution, x))(points)
    assert np.abs(zero).max() < 1e-11
    other = jax.vmap(
        lambda x: equation.residual(lambda y: equation.solution(y) + jnp.sum(y**2), x)
    )(points)
    assert np.abs(other).min() > 0.01


def test_collocation_points_are_where_they_should_be():
    points, inside = pde.collocation(jax.random.key(0), 50, 400, 3, evolution=True)
    assert int(inside.sum()) == 50 and np.all((points >= 0) & (points <= 1))
    faces = np.asarray((points == 0) | (points == 1))
    assert not faces[:50].any() and np.all(faces[50:].sum(1) == 1)
    assert not np.any(points[50:, 0] == 1), "the end of time is no boundary"
    # Five faces, each about as often: 80 of 400.
    counts = [
        int(np.sum(points[50:, i] == side))
        for i in range(3)
        for side in (0, 1)
        if (i, side) != (0, 1)
    ]
    assert sum(counts) == 400 and min(counts) > 50


def test_where_points_are_renewed_an_equation_may_ask_for_a_falling_rate():
    falling = lab.optimiser(lab.EQUATIONS["C"]).rule.step_rule
    assert [float(falling.rate(jnp.asarray(count))) for count in (0, 99, 199, 999)] == [
        1.0,
        1.0,
        0.5,
        0.1,
    ] and falling.minimum == 1e-9
    for name in "ABE":
        whole = lab.optimiser(lab.EQUATIONS[name]).rule.step_rule
        assert whole.rate == 1.0 and whole.minimum == 0.0


def test_the_metric_is_averaged_where_that_is_asked_for():
    memory = lambda **words: lab.optimiser(lab.EQUATIONS["C"], **words).metric_memory
    assert memory() is None and memory(memory=0.6).factor == 0.6


def test_the_loss_is_half_the_two_mean_squares():
    equation = lab.EQUATIONS["A"]
    params = pde.initialise(jax.random.key(0), equation.widths)
    batch = equation.points(jax.random.key(1))
    problem = equation.problem()
    residuals = problem.outputs(params, {name: part[0] for name, part in batch.items()})
    assert residuals["inside"].shape == (900,) and residuals["boundary"].shape == (120,)
    means = [float(jnp.mean(r**2)) / 2 for r in residuals.values()]
    np.testing.assert_allclose(problem.value(residuals, batch), sum(means), rtol=1e-12)
    error, relative = equation.errors(params, pde.interior(jax.random.key(2), 2000, 2))
    np.testing.assert_allclose(error / relative, 0.5, rtol=0.03)  # the root mean square of sin sin


def test_a_small_equation_is_solved(tmp_path):
    """-u'' = π² sin πx on [0, 1] with twelve units."""
    small = pde.Equation(
        "small",
        "Poisson, 1-D",
        lambda u, x: pde.laplacian(u, x) + jnp.pi**2 * jnp.sin(jnp.pi * x[0]),
        lambda x: jnp.sin(jnp.pi * x[0]),
        (1, 12, 1),
        40,
        10,
    )
    opt = pb.NaturalGradientDescent(
        small.problem(), step=pb.step.Geodesic(pb.step.LevenbergMarquardt())
    )
    found = lab.solve(small, opt, 0, 60, 600.0, 20)
    assert found[0].error > 0.1 and found[-1].error < 1e-4 and found[-1].step == 60
    assert [m.step for m in found] == [0, 20, 40, 60], "exactly there, however fast the steps are"
    # In a folder it resumes: the same errors, and a clock that goes on.
    half = lab.solve(small, opt, 0, 30, 600.0, 20, folder=tmp_path)
    with (tmp_path / "measured.jsonl").open("a") as file:
        file.write('{"step": 31, "sec')  # killed while writing
    rest = lab.solve(small, opt, 0, 60, 600.0, 20, folder=tmp_path)
    # The loss before the first step is not a number, which is unlike itself.
    seen = lambda run: [(m.step, m.seconds, m.error) for m in run]
    assert seen(rest)[: len(half)] == seen(half) and rest[-1].step == 60
    assert [m.step for m in rest] == [0, 20, 30, 40, 60]
    assert rest[-1].error == found[-1].error, "the bits are those of the run that was not resumed"
    assert rest[-1].seconds > half[-1].seconds
    note = lambda: json.loads((tmp_path / "run.json").read_text())
    ended = {"complete": True, "steps": 60, "made": 60}
    assert ended.items() <= note().items() and note()["version"] == pb.__version__
    (tmp_path / "run.json").write_text(json.dumps(note() | {"date": "2000-01-01"}))
    assert seen(lab.solve(small, opt, 0, 60, 600.0, 20, folder=tmp_path)) == seen(rest)
    assert note()["date"] == "2000-01-01", "the run was made then"
    # A run without time left says so.
    lab.solve(small, opt, 0, 90, 1e-9, 20, folder=tmp_path)
    assert {"complete": False, "steps": 90, "made": 60}.items() <= note().items()


def test_the_command_says_what_it_knows(capsys, monkeypatch, tmp_path):
    made = lambda *steps: [
        lab.Measured(s, 0.1 * s, 0.2 * s, 0.0, 10.0**-s, 2 * 10.0**-s) for s in steps
    ]
    monkeypatch.setattr(
        command, "one", lambda name, seed, *_: made(0, 3, 10, 20) if seed else made(0, 3, 10, 16)
    )
    assert command.main(["A", "F'", "--seeds", "2", "--out", str(tmp_path / "t.md")]) == 0
    shown = capsys.readouterr().out
    assert (
        "| 10 | 1 | 2 | 1.0e-10 | 1.0e-10 | 2.0e-10 |" in shown
        and "(257 parameters)" in shown
        and "(118145 parameters)" in shown
    )
    assert "| 18 | 2 | 4 | 5.0e-17 | 1.0e-16 | 1.0e-16 |" in shown, (
        "the end of every run, however long it was"
    )
    assert (
        "6.2e-08" in shown
        and (tmp_path / "t.md").read_text().count("###") == 2
        and (tmp_path / "t.json").exists()
        and (tmp_path / "t-A.png").stat().st_size > 10_000
        and (tmp_path / "t-F-prime.png").exists()
    )
    assert "| 2.0e-10 | 2.0e-02 (L-BFGS, step 10) |" in shown, (
        "the best at this step, not at its end"
    )
    assert "above" not in shown
    for words in (["Z"], ["A", "--seeds", "0"], ["A", "--processes", "0"]):
        with pytest.raises(SystemExit) as left:
            command.main(words)
        assert left.value.code == 2


@pytest.mark.slow
def test_runs_in_several_processes_are_the_same_runs(tmp_path):
    words = [sys.executable, "-m", "pullback_lab.pde", "A", "--seeds", "2", "--steps", "3", "--out"]
    for name, more in (("one", []), ("two", ["--processes", "2"])):
        subprocess.run([*words, tmp_path / f"{name}.md", *more], check=True, capture_output=True)
    one, two = (json.loads((tmp_path / f"{name}.json").read_text())["A"] for name in ("one", "two"))
    assert [[m["error"] for m in run] for run in one] == [[m["error"] for m in run] for run in two]
    assert one[0][-1]["step"] == 3 and one[0][-1]["error"] != one[1][-1]["error"]


def test_a_direction_that_is_an_axis_is_explained():
    u, x = lambda y: y[0] * y[1] ** 3, jnp.asarray([2.0, 3.0])
    with pytest.raises(ValueError, match=r"v must be a direction of shape \(2,\).*\[axis\]"):
        pb.pde.second(u, x, 1)
    assert float(pb.pde.second(u, x, jnp.asarray([0, 1]))) == 36.0
    assert float(pb.pde.laplacian(u, x, [1])) == 36.0
