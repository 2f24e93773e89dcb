"""What `flow` refuses before anything is compiled, and how a trajectory prints."""

import jax
import jax.numpy as jnp
import pytest

import pullback as pb

PROBLEM = pb.Composite(lambda w: w, lambda z: jnp.sum((z - 2) ** 2) / 2)
START = jnp.asarray([0.5, 0.25])

REFUSED = {
    "kind": ({"kind": "natural"}, r"kind must be a flow, e.g. flow\(..., kind=NaturalFlow\(\)\)"),
    "clock": ({"clock": 1.0}, r"clock must be a clock"),
    "our solver": ({"solver": pb.solver.SVD()}, r"must be a solver of diffrax.*diffrax.Tsit5\(\)"),
    "control": ({"control": 1e-3}, r"control must be a MetricControl"),
    "rank": ({"rank": 1e-3}, r"flow\(rank=0.001\): rank must be a RankChange or None"),
    "constraint": ({"constraint": jnp.tanh}, r"constraint must be one of pullback.constraint"),
    "one event": ({"events": pb.event.LossBelow(1.0)}, r"events must be a sequence of events"),
    "no event": ({"events": [1.0]}, r"events=\[event.LossBelow\(1e-6\)\]"),
    "steps": ({"max_steps": 2.5}, r"max_steps must be an integer of at least 1"),
    "rtol": ({"rtol": -1.0}, r"flow\(rtol=-1.0\): rtol must be finite and >= 0"),
    "atol": ({"atol": float("nan")}, r"flow\(atol=nan\)"),
    "t1": ({"t1": -1.0}, r"flow\(t0=0.0, t1=-1.0\): both must be finite, t0 < t1"),
    "ts outside": ({"ts": [0.5, 2.0]}, r"increasing times in \[t0, t1\]"),
    "ts decreasing": ({"ts": [0.5, 0.2]}, r"increasing times in \[t0, t1\]"),
    "ts empty": ({"ts": []}, r"increasing times in \[t0, t1\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments(name):
    arguments, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        pb.flow(PROBLEM, START, **{"t1": 1.0, **arguments})


def test_pieces_of_flows_refuse_what_is_no_function_or_number():
    with pytest.raises(ValueError, match=r"When\(function=3\): function must be a function"):
        pb.event.When(3)  # pyright: ignore
    with pytest.raises(ValueError, match=r"EuclideanFlow\(log_loss=3\): log_loss must be"):
        pb.EuclideanFlow(3)  # pyright: ignore
    with pytest.raises(ValueError, match=r"NewtonFlow\(rtol=-1\): rtol must be finite and >= 0"):
        pb.NewtonFlow(-1)


def test_a_trajectory_prints_in_one_line_as_text_and_as_a_table():
    run = lambda w, **options: pb.flow(PROBLEM, w, t1=1.0, kind=pb.EuclideanFlow(), **options)
    sol = run(START, ts=[1.0], events=[pb.event.LossBelow(0.5)])
    assert repr(sol).startswith("Trajectory(EuclideanFlow, t = 0 ... 0.83")
    assert "loss 2.65625 -> 0.5. The flow met an event" in repr(sol) and "\n" not in repr(sol)
    assert str(sol).startswith("stopped at t = 0.83") and "the loss fell to 0.5" in str(sol)
    assert "right-hand sides" in str(sol)
    assert sol._repr_html_().startswith("<table>") and "-&gt; 0.5" in sol._repr_html_()
    shown = []
    jax.eval_shape(lambda w: shown.append([f(run(w, ts=[1.0])) for f in (repr, str)]), START)
    assert shown == [["Trajectory(EuclideanFlow, t: float64[])"] * 2]
