"""A flow that gets stuck at a kink says so, and names tolerances that pass it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb

START = jnp.asarray([1.0, 0.0])
SLIDING = pb.Composite(lambda p: p, lambda z: jnp.abs(z[0]) + (z[1] - 3.0) ** 2 / 2)
"""|z₀| is zero after t = 1, and stays so; z₁ = 3 (1 - e^-t)."""


def exact(t):
    return np.asarray([max(1.0 - t, 0.0), 3 * (1 - np.exp(-t))])


def run(problem=SLIDING, start=START, batch=None, t1=4.0, **options):
    options = {"kind": pb.EuclideanFlow(), "max_steps": 300, "throw": False} | options
    return pb.flow(problem, start, batch, t1=t1, **options)


def test_a_flow_along_a_kink_says_so_and_the_tolerances_pass_it():
    stuck = run()
    assert stuck.result == pb.RESULTS.flow_kink and stuck.kink is not None
    assert stuck.kink.jump == pytest.approx(2 / np.hypot(1, 3 - float(stuck.params[1])), rel=1e-3)
    np.testing.assert_allclose(stuck.params, exact(float(stuck.t)), atol=1e-6)
    rtol, atol = stuck.kink.rtol, stuck.kink.atol
    assert f"rtol={rtol:g}, atol={atol:g}" in stuck.message and "kink (relu" in stuck.message
    passed = run(rtol=rtol, atol=atol)
    assert passed.result == pb.RESULTS.successful and passed.kink is None
    np.testing.assert_allclose(passed.params, exact(4.0), atol=100 * rtol)


def test_it_raises_with_the_advice():
    with pytest.raises(RuntimeError, match=r"field of the flow jumps.*rtol=.*It got to t = 1\.0"):
        run(throw=True)


def test_the_tolerance_of_metric_control():
    stuck = run(control=pb.MetricControl(1e-8), kind=pb.NaturalFlow())
    assert stuck.result == pb.RESULTS.flow_kink and np.isnan(stuck.kink.atol)
    assert f"control=MetricControl({stuck.kink.rtol:g})" in stuck.message
    passed = run(control=pb.MetricControl(stuck.kink.rtol), kind=pb.NaturalFlow())
    assert passed.result == pb.RESULTS.successful


def test_the_clock_does_not_matter():
    stuck = run(clock=pb.LogTime())
    assert stuck.result == pb.RESULTS.flow_kink
    passed = run(clock=pb.LogTime(), rtol=stuck.kink.rtol, atol=stuck.kink.atol)
    assert passed.result == pb.RESULTS.successful


def test_a_relu_network():
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=4), "v": rng.normal(size=4) / 4}
    params = jax.tree.map(jnp.asarray, params)
    model = lambda p, x: jax.nn.relu(x @ p["w"] + p["b"][None]) @ p["v"]
    problem = pb.Composite(model, lambda z, y: (z - y) ** 2 / 2)
    rng = np.random.default_rng(0)
    batch = jnp.asarray(rng.normal(size=(20, 3))), jnp.asarray(rng.normal(size=20))
    stuck = run(problem, params, batch, 5.0, max_steps=1000)
    assert stuck.result == pb.RESULTS.flow_kink
    options = {"rtol": stuck.kink.rtol, "atol": stuck.kink.atol, "max_steps": 1000}
    assert run(problem, params, batch, 5.0, **options).result == pb.RESULTS.successful


def test_where_no_tolerance_passes():
    stuck = run(t1=1e8, max_steps=200)
    assert stuck.kink.rtol > 0.1 and "No tolerance passes it" in stuck.message


SMOOTH = {
    "stiff": (lambda z: z[0] ** 2 / 2 + 1e6 * (z[1] - jnp.sin(z[0])) ** 2, START, 100.0),
    "few steps": (lambda z: jnp.sum(jnp.cosh(z)), START, 50.0),
    "singular": (lambda z: jnp.sum(jnp.sqrt(jnp.abs(z))), START + 1.0, 50.0),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_other_reasons_are_not_called_kinks(name):
    loss, start, t1 = SMOOTH[name]
    steps = 8 if name == "few steps" else 300
    sol = run(pb.Composite(lambda p: p, loss), start, t1=t1, max_steps=steps)
    assert sol.kink is None
    assert sol.result == pb.RESULTS.flow_max_steps or sol.result == pb.RESULTS.flow_stalled


def test_inside_jit_and_vmap_the_code_is_that_of_the_integrator():
    ends = jax.vmap(lambda p: run(start=p).result._value)(jnp.stack([START, START]))
    assert np.all(np.asarray(ends) == pb.RESULTS.flow_max_steps._value)
