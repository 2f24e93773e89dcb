"""Flows against their closed forms, to t = 1e100, and into a change of rank; drawn in parameters
and on the model.

`python examples/flows.py folder` saves `flows.png` there; defaults to `pictures`.
"""

import sys
from pathlib import Path

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
from _pictures import picture_folder

import pullback as pb

jax.config.update("jax_enable_x64", True)
outputs = lambda x: jnp.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])
ROSENBROCK = pb.Composite(outputs, lambda z: jnp.sum(z**2))
START = jnp.asarray([-1.2, 1.0])
KINDS = {
    "natural flow": (pb.NaturalFlow(), 8.0, None),
    "Euclidean flow": (pb.EuclideanFlow(), 2000.0, dfx.Kvaerno5()),
    "Newton flow": (pb.NewtonFlow(), 8.0, None),
}


def draw_flows(folder: Path) -> float:
    """Rosenbrock: the natural flow is straight on the outputs, z = z₀ e^-2t; the others are not."""
    paths = {}
    for name, (kind, t1, solver) in KINDS.items():
        sol = pb.flow(ROSENBROCK, START, t1=t1, kind=kind, solver=solver, rtol=1e-7, atol=1e-9)
        paths[name] = sol.evaluate(jnp.append(0.0, jnp.geomspace(t1 * 1e-7, t1, 400)))
        end = np.round(np.asarray(sol.params), 6)
        print(f"{name:<15} {sol.message}, {int(sol.accepted)} steps, ends at {end}")
        if name == "natural flow":
            error = jnp.max(jnp.abs(sol.outputs(1.0) * np.exp(2.0) - outputs(START)))
    figure, _ = pb.plot.spaces(ROSENBROCK, paths)
    figure.savefig(folder / "flows.png", dpi=150)
    return float(error)


def separable() -> bool:
    """Logistic regression of separable data: the direction keeps turning, logarithmically in t."""
    rng = np.random.default_rng(0)
    teacher = np.ones(5) / np.sqrt(5)
    x = rng.standard_normal((30, 5))
    x = x[np.abs(x @ teacher) > 0.3]
    y = np.sign(x @ teacher)
    batch = (jnp.asarray(x), jnp.asarray((y + 1) / 2))
    problem = pb.Composite(lambda p, x: x @ jnp.prod(p, axis=0), metric=pb.metric.Bernoulli())
    options = {"kind": pb.EuclideanFlow(), "clock": pb.LogTime(), "rtol": 1e-6, "atol": 1e-8}
    fine = True
    # Explicit steps are of order margin² in log t: the longest times need an implicit integrator.
    for depth in (1, 2):
        for t1, solver in ((1e6, dfx.Tsit5()), (1e100, dfx.Kvaerno5())):
            start = jnp.asarray(0.1 * rng.standard_normal((depth, 5)))
            sol = pb.flow(problem, start, batch, t1=t1, solver=solver, **options)
            beta = np.prod(np.asarray(sol.params), axis=0)
            margin = np.min(y * (x @ beta)) / np.linalg.norm(beta)
            fine &= bool(sol.result == pb.RESULTS.successful)
            count, steps = int(sol.right_hand_sides), int(sol.accepted)  # implicit: not counted
            cost = f"{steps} steps" + (f", {count} right-hand sides" if count >= 0 else "")
            print(f"depth {depth}, t = {t1:.0e}: {cost}, margin {margin:.4f}")
    return fine


def main(folder: Path) -> int:
    error = draw_flows(folder)
    fine = separable()
    square = pb.Composite(lambda w: w**2, lambda z: jnp.sum((z + 1) ** 2) / 2)
    stopped = pb.flow(square, jnp.ones(1), t1=3.0)
    print(f"towards z = -1 with z = w²: {stopped.message}")
    print(f"natural flow against its closed form {error:.1e}")
    return 0 if fine and error < 1e-4 and stopped.result == pb.RESULTS.rank_changed else 1


if __name__ == "__main__":
    sys.exit(main(picture_folder()))
