r"""The Rosenbrock function as a composite, \(h(x) = L(f(x))\):

\[ f(x_1, x_2) = (1 - x_1,\ 10\,(x_2 - x_1^2)), \qquad L(z) = z_1^2 + z_2^2. \]

With the Euclidean metric on the outputs pulled back, natural gradient descent is gradient descent
on the outputs, to first order in the step. From \((-1.2, 1)\) with step \(\tfrac12\) it is at the
minimum after two steps, though not monotonically: \(h = 24.2 \to 2342.56 \to 0\).

**A remark.** The lecture gives no step. Gradient descent on the outputs arrives at once with step
\(\tfrac12\) only: the Hessian of \(L\) is \(2I\), the metric is \(I\). With step 1 it is a
reflection, and natural gradient descent returns to where it started every second step.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure

START = np.array([-1.2, 1.0])
BOUNCING = 2e-3
"""A step of gradient descent. With twice as much the path is chaotic: rounding decides how often it
crosses the valley.
"""


def outputs(x: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """f, with a = 1 and b = 100."""
    return jnp.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


def square(z: Float[Array, " 2"]) -> Float[Array, ""]:
    """L."""
    return jnp.sum(z**2)


PROBLEM = pb.Composite(outputs, loss=square)


def descend(step: float, steps: int) -> list[float]:
    """The values of h along natural gradient descent."""
    x = jnp.asarray(START)
    values = []
    for _ in range(steps + 1):
        ng = pb.natural_gradient(PROBLEM, x)
        values.append(float(ng.value))
        x = x - step * ng.vector
    return values


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Steps on the outputs and natural gradient steps, of sizes 1 and 1/2."""
    j = np.array([[-1.0, 0.0], [24.0, 10.0]])
    z = np.array([2.2, -4.4])
    ng = pb.natural_gradient(PROBLEM, jnp.asarray(START))
    output = {
        step: float(pb.output_step(PROBLEM, jnp.asarray(START), step=step).value)
        for step in (1.0, 0.5)
    }
    half = descend(0.5, 2)
    one = descend(1.0, 4)
    cycle = max(abs(one[2] - 24.2), abs(one[4] - 24.2))
    rows = (
        at_most(
            "a gradient step on the outputs, size 1/2: h after it (24.2 before)", output[0.5], 1e-12
        ),
        at_least(
            "a gradient step on the outputs, size 1, is a reflection: h after it",
            output[1.0],
            24.0,
            Role.CONTROL,
        ),
        at_most("natural gradient, size 1/2: h after two steps", half[2], 1e-20, Role.CONTROL),
        at_most(
            "natural gradient, size 1/2: h = 2342.56 after one step, off by",
            abs(half[1] - 2342.56),
            1e-9,
            Role.CONTROL,
        ),
        at_most(
            "natural gradient, size 1: h = 24.2 again after two and four steps, off by",
            cycle,
            1e-8,
            Role.CONTROL,
        ),
        at_least(
            "natural gradient, size 1: h in between", min(one[1], one[3]), 3.5e4, Role.CONTROL
        ),
        at_most("h = 24.2 at the start, off by", abs(half[0] - 24.2), 1e-12, Role.CONTROL),
        at_most(
            "at (-1.2, 1) the natural gradient is J⁻¹(2z), off by",
            np.abs(np.asarray(ng.vector) - np.linalg.solve(j, 2 * z)).max(),
            1e-12,
            Role.CONTROL,
        ),
    )
    return Measured(rows, {"paths": paths()})


def paths() -> dict[str, np.ndarray]:
    """Gradient descent and the proximal family from the usual start, name -> points."""
    slope = jax.jit(jax.grad(lambda x: square(outputs(x))))
    steps = {
        "gradient descent, 0.001": (400, lambda x: x - 1e-3 * slope(x)),
        "natural gradient, 0.1": (
            30,
            lambda x: pb.linearised_proximal_step(PROBLEM, x, weight=10.0).params,
        ),
        "proximal, $\\lambda$ = 10": (
            30,
            lambda x: pb.proximal_step(PROBLEM, x, weight=10.0).params,
        ),
        "damped Newton, $\\lambda$ = 10": (
            30,
            lambda x: pb.damped_newton_step(PROBLEM, x, weight=10.0).params,
        ),
        "output descent, 0.1": (30, lambda x: pb.output_step(PROBLEM, x, step=0.1).params),
    }
    found = {}
    for name, (count, step) in steps.items():
        path = [jnp.asarray(START)]
        for _ in range(count):
            path.append(step(path[-1]))
        found[name] = np.stack([np.asarray(x) for x in path])
    return found


def draw(data: Mapping[str, Any]) -> Any:
    """Paths from (-1.2, 1), left on the parameters, right on the outputs. Proximal steps (marks of
    their own on one line) and descent on the outputs go straight on the outputs. The natural
    gradient is that to first order in the step only, and bends, as damped Newton does; gradient
    descent crawls along the valley.
    """
    return pb.plot.spaces(PROBLEM, data["paths"], markers=True)[0]


def run_valley(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Plain gradient descent, with steps of a series."""
    sizes = 1e-3 * 2.0 ** np.arange(-2, 4)
    ends = [_plain(float(size), 1000) for size in sizes]
    finite = [
        i
        for i, (path, value) in enumerate(ends)
        if np.isfinite(value) and np.all(np.abs(path) < 1e3)
    ]
    shown = int(np.flatnonzero(sizes == BOUNCING)[0])
    path = ends[shown][0]
    across = np.asarray(jax.vmap(outputs)(jnp.asarray(path)))[:, 1]
    bounces = int(np.sum(across[1:] * across[:-1] < 0))
    return Measured(
        (
            at_least(
                f"step {BOUNCING:g}: times the path crosses the floor of the valley",
                bounces,
                10,
            ),
            at_least(
                "h after 1000 steps, best of all steps that do not diverge",
                min(ends[i][1] for i in finite),
                1e-4,
            ),
            at_most(
                f"step sizes, of {len(sizes)}, that do not diverge: longer ones do",
                len(finite),
                len(sizes) - 1,
                Role.CONTROL,
            ),
            at_most(
                "natural gradient, step 1/2, two steps", descend(0.5, 2)[2], 1e-20, Role.CONTROL
            ),
        ),
        {
            "step": BOUNCING,
            "path": path,
            "across": across,
            "values": np.sum(np.asarray(jax.vmap(outputs)(jnp.asarray(path))) ** 2, axis=1),
        },
    )


def draw_valley(data: Mapping[str, Any]) -> Any:
    """Left, contours of the Rosenbrock function and 1000 steps of gradient descent, which jump from
    one side of the valley to the other and then crawl along its floor. Right, the function against
    the steps: it stays high.
    """
    figure, axes = open_figure(columns=2, size=(5.2, 4.0))
    x, y = np.meshgrid(np.linspace(-1.6, 1.4, 200), np.linspace(-0.6, 2.2, 200))
    h = (1 - x) ** 2 + 100 * (y - x**2) ** 2
    axes[0].contour(x, y, h, levels=np.geomspace(0.3, 1500, 12), colors="0.75", linewidths=0.8)
    axes[0].plot(*data["path"].T, "o-", color=COLOURS[1], ms=2, lw=0.4, label="gradient descent")
    axes[0].plot(1, 1, "*", color=COLOURS[2], ms=11, label="minimum")
    axes[0].plot(*START, "ko", ms=5, label="start")
    title = f"gradient descent, step {data['step']:.3g}"
    axes[0].set(xlabel="$x_1$", ylabel="$x_2$", title=title, xlim=(-1.6, 1.4), ylim=(-0.6, 2.2))
    axes[0].legend(frameon=False, loc="upper center")
    axes[1].semilogy(data["values"], color=COLOURS[1], lw=1)
    axes[1].set(xlabel="steps", ylabel="h", title="it gets stuck")
    return figure


def _plain(step: float, steps: int) -> tuple[np.ndarray, float]:
    """The path of gradient descent, and h at its end."""
    slope = jax.grad(lambda x: square(outputs(x)))
    walk = lambda x, _: (x - step * slope(x), x)
    end, path = jax.jit(lambda x: jax.lax.scan(walk, x, None, length=steps))(jnp.asarray(START))
    return np.asarray(path), float(square(outputs(end)))


CLAIMS = (
    Claim(
        name="rosenbrock",
        source="lecture",
        place="Motivating example, and the pullback metric revisited",
        quotation=(
            "If we could do gradient descent on the outputs, then it would converge instantly. Of "
            "course, this is cheating."
        ),
        statement=(
            "The Rosenbrock function is L(f(x)) with a quadratic L: gradient descent on the "
            "outputs would arrive instantly."
        ),
        verdict=Verdict.HOLDS,
        run=run,
        remark=(
            "The lecture gives no step size. It does with step 1/2 only: the Hessian of L is 2I "
            "and the metric I. With step 1 it is a reflection, and natural gradient descent goes "
            "round in a cycle of two. With step 1/2 natural gradient descent arrives after two "
            "steps, though not monotonically."
        ),
        draw=draw,
    ),
    Claim(
        name="rosenbrock-valley",
        source="lecture",
        place="Motivating example",
        quotation="Gradient descent bounces across the valley and gets stuck",
        statement=(
            "Gradient descent on the Rosenbrock function bounces across the valley and gets stuck."
        ),
        verdict=Verdict.HOLDS,
        run=run_valley,
        remark=(
            "With steps of 0.002 it bounces at first, and crawls from then on. With 0.004 it "
            "bounces all the time, but chaotically: how often is a matter of rounding. With 0.008 "
            "it diverges."
        ),
        draw=draw_valley,
    ),
)
