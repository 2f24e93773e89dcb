"""The benchmark's own arithmetic: what it takes for true, for the floor, for met."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import __main__ as command
from bench import environments, goals, krylov, measure, page, reference, scaling
from bench.entries import ENTRIES, FLOOR, OURS, TANGENTS, TORCH, Entry
from bench.models import MODELS, loss, whitening
from bench.peers import floor, ours
from bench.problems import GROUPS, TABLES, WORKLOADS, find, flat, layers, leaves, make


@pytest.fixture(autouse=True)
def plain_jax():
    # The workloads are written as users write them.
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", [name for name in TABLES if name != "W5"])
def test_parameters_lie_as_jax_lays_them(name):
    params, _ = make(WORKLOADS[name])
    assert all(a is b for a, b in zip(leaves(params), jax.tree.leaves(params), strict=True))
    dense = sum((layer.inputs + 1) * layer.outputs for layer in layers(WORKLOADS[name]))
    # Scales of normalisations; a machine has no constant; complex numbers are pairs.
    other, pairs = {"R2": 2 * 5 * 64, "V2": -1}.get(name, 0), 2 if name == "V3" else 1
    assert flat(params).size == pairs * (dense + other)


def test_the_root_whitens_and_lifts():
    workload = find("mlp-3-4-5@6")
    z = jnp.asarray(np.random.default_rng(0).standard_normal((6, 5)))
    y = jnp.asarray([0, 1, 2, 3, 4, 4])
    root, r = whitening(workload, z, y)
    p = jax.nn.softmax(z)
    wanted = (jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]) / 6
    assert np.allclose(jnp.einsum("naq,nbq->nab", root, root), wanted, atol=1e-15)
    assert np.allclose(
        jnp.einsum("naq,nq->na", root, r), (p - jax.nn.one_hot(y, 5, dtype=p.dtype)) / 6, atol=1e-15
    )


@pytest.mark.parametrize("name", ["mlp-3-8-4@5", "mlp-3-2-4@40"])
def test_the_reference_solves_the_dense_equations(name):
    workload = find(name)
    params, (x, y) = make(workload)
    params, x = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (params, x))
    point, unravel = jax.flatten_util.ravel_pytree(params)
    jacobian = jax.jacrev(lambda p: MODELS["mlp"](unravel(p), x))(point)
    p = jax.nn.softmax(MODELS["mlp"](params, x))
    hessian = (jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]) / workload.samples
    metric = jnp.einsum(
        "nap,nab,nbq->pq", jacobian, hessian, jacobian
    ) + workload.damping * jnp.eye(point.size)
    g = jax.grad(lambda p: loss(workload, unravel(p), (x, jnp.asarray(y))))(point)
    wanted = jnp.linalg.solve(metric, g)
    v = reference.solve(workload)
    assert np.linalg.norm(v - wanted) < 1e-10 * np.linalg.norm(wanted)
    assert reference.residual(workload, v) < 1e-12 < 1e-3 < reference.residual(workload, 1.01 * v)


@pytest.mark.parametrize("name", GROUPS["VMC"])
def test_the_reference_of_wave_functions_solves_the_dense_equations(name, monkeypatch):
    """Small ones, with the centred covariance and with pairs of real numbers written out."""
    workload = dataclasses.replace(WORKLOADS[name], sizes=(3, 4, 1), samples=9)
    params, (x, y) = jax.tree.map(jnp.asarray, make(workload))
    point, unravel = jax.flatten_util.ravel_pytree(params)
    model = lambda p: MODELS[workload.kind](unravel(p), x)[:, 0]
    if name == "V3":
        half = np.asarray(jax.jacfwd(model, holomorphic=True)(point))
        # dz = J dθ for pairs, (re, im) after (re, im).
        a = np.stack([[half.real, -half.imag], [half.imag, half.real]]).transpose(2, 0, 3, 1)
        a, gap = a.reshape(18, -1), np.asarray(model(point) - y[:, 0])
        c = np.stack([gap.real, gap.imag], 1).ravel() / 9
    else:
        a = np.asarray(jax.jacrev(model)(point))
        a, c = a - a.mean(0), 2 * np.asarray(y) / 9
    wanted = np.linalg.solve(a.T @ a / 9 + workload.damping * np.eye(a.shape[1]), a.T @ c)
    v = reference.solve(workload)
    assert np.linalg.norm(v - wanted) < 1e-10 * np.linalg.norm(wanted)
    assert reference.residual(workload, v) < 1e-9 < 1e-3 < reference.residual(workload, 1.01 * v)
    monkeypatch.setitem(WORKLOADS, "small", workload)
    for approach in ("default", "undeclared" if name == "V3" else "generic"):
        adapter = ours.build("small", approach)
        adapter.prepare()
        found = adapter.vector(adapter.run())
        assert np.linalg.norm(found - wanted) < 1e-10 * np.linalg.norm(wanted)


def _flops(calls):
    cost = {
        "gemm": lambda a, b, c: 2 * a * b * c,
        "syrk": lambda n, k: n * n * k,
        "cholesky": lambda n: n**3 / 3,
    }
    return sum(times * cost[kind](*shape) for (kind, *shape), times in calls.calls.items())


def test_the_floor_counts_half_of_the_gram_products():
    n, m = 256, 2304
    gram = sum(n * n * a + m * m * b for a, b in ((64, 256), (256, 256), (256, 10)))
    to_taps = 2 * m * (256 * 256 + 10 * 256)
    passes = 2 * n * (3 * (256 * 256 + 256 * 10) + 2 * 64 * 256)
    assert math.isclose(_flops(floor._calls(WORKLOADS["W1"])), gram + to_taps + passes + m**3 / 3)
    # Primal: N P², the lower half of 2 N P², to the share of the diagonals.
    calls = floor._calls(WORKLOADS["W3"])
    calls.calls = {
        key: times
        for key, times in calls.calls.items()
        if key[0] == "gemm" and key[2] == 20_000 and key[1] > 100
    }
    assert math.isclose(_flops(calls), 20_000 * 2058**2, rel_tol=0.02)


def test_a_worker_answers_fails_and_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SCRATCH", tmp_path)
    tiny = "mlp-3-4-3@5"
    broken = Entry("broken", "ours", "floor", "floor")
    good, bad = measure.measure(
        tiny, [FLOOR, broken._replace(adapter="nothing")], 1, 2, compare=False
    )
    assert good["status"] == "ok" and good["n"] == 2 and 0 < good["seconds"] < 1
    assert bad["status"].startswith("failed: ModuleNotFoundError") and "seconds" not in bad
    monkeypatch.setattr(measure, "PATIENCE", 0.01)
    (silent,) = measure.measure(tiny, [FLOOR], 1, 2, compare=False)
    assert silent["status"] == "failed: no answer within 0 s"


@pytest.fixture
def double():
    """An adapter sets the precision of its workload."""
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize(
    "approach", ["default", "whole", "generic", "krylov", "dual", "primal", "svd"]
)
def test_our_approaches_agree_with_the_reference(approach, double):
    tiny = "mlp-3-4-3@5"
    wanted = reference.solve(find(tiny))
    adapter = ours.build(tiny, approach)
    adapter.prepare()
    found = adapter.vector(adapter.run())
    assert np.linalg.norm(found - wanted) < 1e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("approach", ["gradients", "metric-products", "kernel-products"])
def test_our_products_run(approach, double):
    adapter = ours.build("mlp-3-4-3@5", approach)
    adapter.prepare()
    assert np.isfinite(adapter.vector(adapter.run())).all()


def test_the_kernel_product_is_that_of_the_kernel(double):
    import pullback as pb

    workload = find("mlp-3-4-3@5")
    params, batch = jax.tree.map(jnp.asarray, make(workload))
    metric = pb.pullback(ours.problem(pb, workload), params, batch)
    y = jnp.arange(metric.rows, dtype=metric.whitened.dtype)
    product = ours.kernel_product(metric.whitened)(y)
    assert np.allclose(product, metric.kernel() @ y, rtol=1e-4)


def test_krylov_products_are_counted():
    import pullback as pb

    workload = find("mlp-3-4-3@5")
    params, (x, y) = jax.tree.map(jnp.asarray, make(workload))
    params, x = jax.tree.map(lambda a: a.astype(jnp.float64), (params, x))
    composite = ours.problem(pb, workload)
    for kind in (None, pb.solver.SampleBlocks(), pb.solver.Nystrom(2)):
        loose, tight = krylov.products(pb, composite, params, (x, y), kind)
        assert 0 < loose <= tight < 200


def test_what_disagrees_is_not_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SCRATCH", tmp_path)
    np.save(measure.reference_path("mlp-3-4-3@5"), np.ones(31))
    (wrong,) = measure.measure("mlp-3-4-3@5", [OURS], 1, 2)
    assert wrong["status"].startswith("disagrees") and "seconds" not in wrong


def test_what_cannot_be_installed_is_skipped_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setitem(
        environments.ENVIRONMENTS, "torch", environments.Environment(("torch",), ((3, 1),))
    )
    monkeypatch.setattr(measure, "SCRATCH", tmp_path)
    (skipped,) = measure.measure("mlp-3-4-3@5", [TORCH], 1, 1, compare=False)
    assert skipped["status"] == "skipped: needs Python 3.1, which is not here"


def _results():
    def record(entry, seconds):
        return {
            "approach": entry.label,
            "status": "ok",
            "seconds": seconds,
            "n": 2,
            "error": 1e-6,
            "peak": 10.0,
        }

    rows = [
        record(OURS, 0.15),
        record(FLOOR, 0.1),
        record(TANGENTS, 0.6),
        {"approach": "netket minSR", "status": "skipped: no network"},
    ]
    machine = {"cpu": "a processor", "cores": "2", "memory": "8", "python": "3.11"}
    head = {
        "when": "2026-01-01T00:00:00+00:00",
        "rounds": 2,
        "peers": True,
        "slow": 5.0,
        "load": 0.0,
        "machine": machine,
    }
    return head | {"threads1": {"W1": rows}, "threads2": {}}


def test_goals_are_met_missed_or_not_measured():
    lines = {
        line["text"]: line
        for line in (goal.line(_results()) for goal in goals.GOALS)
        if line["subject"] == "W1"
    }
    assert (
        lines["ours / floor"]["verdict"] == "**missed**"
        and lines["ours / floor"]["measured"] == "1.5 ×"
    )
    assert lines[f"{TANGENTS.label} / ours"]["verdict"] == "met"
    assert (
        lines["netket minSR / ours"]["verdict"] == "-"
        and "no network" in lines["netket minSR / ours"]["measured"]
    )


def test_every_goal_for_compiling_is_measured(monkeypatch, tmp_path):
    """A full run of the workloads, with records in place of measurements."""
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(command, "measure", lambda *words, **more: [{"approach": "x"}])
    monkeypatch.setattr(command, "call", lambda *words, **more: {"error": "not run"})
    monkeypatch.setattr(command, "compile_seconds", lambda *words: 3.5)
    wanted = [goal for goal in goals.GOALS if goal.subject == "compile"]
    names = [goal.text.partition(",")[0] for goal in wanted]
    assert {"W2p", "P5", "P10"} < set(names)
    results = command.full(names, False, 1, lambda text: None)
    verdicts = {
        name: goal.line(results)["verdict"] for name, goal in zip(names, wanted, strict=True)
    }
    assert verdicts == {
        "W1": "**missed**",
        "W4": "**missed**",
        "W2p": "met",
        "P5": "met",
        "P10": "met",
    }


def test_the_whole_call_stands_beside_the_vector():
    for name in ("W2p", "P5", "P10"):
        assert [entry.approach for entry in ENTRIES[name]][:2] == ["default", "whole"]


def test_the_page_shows_misses_and_reasons():
    text = page.page(json.loads(json.dumps(_results())))
    assert "**missed**" in text and "- netket minSR: skipped: no network" in text
    assert "| pullback | 0.15 s | 1.00 | 1.50 |" in text


def test_krylov_is_judged_by_the_smallest_residual():
    counts = {
        "steps": 50,
        "damping": 1e-6,
        "residuals": [1e-6, 1e-8],
        "plain": [100, 300],
        "preconditioned": {"a": [90, 100], "b": [20, None]},
    }
    results = _results() | {"krylov": counts}
    (line,) = (goal.line(results) for goal in goals.GOALS if goal.subject == "Krylov")
    assert line["measured"] == "3 ×" and line["verdict"] == "met"
    assert "| none | 100 | 300 |" in page.page(results) and "| b | 20 | not reached |" in page.page(
        results
    )


def test_every_goal_names_an_entry():
    labels = {entry.label for entries in ENTRIES.values() for entry in entries}
    assert {OURS.label, FLOOR.label, TANGENTS.label} <= labels
    assert all(
        len({entry.label for entry in entries}) == len(entries) for entries in ENTRIES.values()
    )


def test_the_takeover_is_where_the_curves_cross():
    # t = n and t = 64: they cross at 64, between the points.
    points = [
        {"value": n, "size": n, "route": route, "seconds": seconds}
        for n in (10, 50, 90)
        for route, seconds in (("dual", n), ("primal", 64), ("default", 1))
    ]
    ((x, before, after),) = scaling.takeovers("N", points)
    assert (before, after) == ("dual", "primal") and 60 < x < 66
