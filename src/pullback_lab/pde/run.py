"""Solve an equation from a seed, and note the error against steps and wall-clock."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pullback._descent.descent import NaturalGradientDescent
from pullback._fit.fit import fit
from pullback.inverse._base import Tikhonov
from pullback.momentum._base import Spring
from pullback.pde._equation import Equation
from pullback.pde._network import initialise
from pullback.pde._sampling import interior
from pullback.step import Fixed, Geodesic, LevenbergMarquardt

from .problems import EQUATIONS

TEST_POINTS = 20_000


class Measured(NamedTuple):
    """The error at a moment of a run."""

    step: int
    seconds: float
    """Of training, compilation included, measuring not."""
    cpu: float
    """The same on the clock of the processor: what it takes on a machine that others use too."""
    loss: float
    error: float
    """Root mean square."""
    relative: float
    """Relative to the root mean square of the solution."""


def optimiser(equation: Equation, momentum: bool = True) -> NaturalGradientDescent:
    """What an equation is solved with: Levenberg-Marquardt with second-order correction; where the
    points are fewer than the parameters, damped natural gradients with `Spring`; where points are
    renewed and the equation says so, a falling rate.
    """
    problem = equation.problem()
    if equation.inside + equation.border < equation.size:
        # A search along the line would fit its own few points each time, and the loss at the next
        # ones would grow.
        spring = Spring(0.9) if momentum else None
        return NaturalGradientDescent(
            problem, inverse=Tikhonov(1e-3), step=Fixed(0.1), momentum=spring
        )
    rule = LevenbergMarquardt()
    if equation.renewed and equation.whole:
        # The gain is that on the points of the step, which smaller steps always have: the damping
        # needs a floor.
        rule = LevenbergMarquardt(
            rate=lambda count: jnp.minimum(1.0, equation.whole / (count + 1)), minimum=1e-9
        )
    return NaturalGradientDescent(problem, step=Geodesic(rule))


def solve(
    equation: Equation,
    opt: NaturalGradientDescent,
    seed: int,
    steps: int,
    seconds: float,
    every: int,
    progress: bool = True,
) -> list[Measured]:
    """Train from a seed."""
    start, points, draws, test = jax.random.split(jax.random.key(seed), 4)
    params = initialise(start, equation.widths, equation.scale)
    compare = interior(test, TEST_POINTS, equation.dimension)
    measure = jax.jit(lambda params, points: equation.errors(params, points))
    found: list[Measured] = []
    batches = equation.batches(points)
    made = 0
    loss = float("nan")

    def now():
        return np.array([time.monotonic(), time.process_time()])

    def note(params):
        nonlocal outside
        stopped = now()
        error, relative = (float(x) for x in measure(params, compare))
        found.append(Measured(made, *(stopped - began - outside), loss, error, relative))
        outside = outside + now() - stopped

    def watch(report):
        nonlocal made, loss
        made = report.step
        loss = float(report.rows["loss_after"][-1])
        if made >= (found[-1].step if found else 0) + every:
            note(report.params)
        return (now() - began - outside)[0] >= seconds

    began = now()
    outside = np.zeros(2)
    note(params)
    done = fit(opt, params, batches, steps, key=draws, callback=watch, progress=progress)
    if found[-1].step != done.steps:
        note(done.params)
    return found


def one(
    name: str, seed: int, steps: int, seconds: float, momentum: bool, progress: bool
) -> list[Measured]:
    """One run, in whatever process."""
    jax.config.update("jax_enable_x64", True)
    equation = EQUATIONS[name]
    return solve(
        equation,
        optimiser(equation, momentum),
        seed,
        steps,
        seconds,
        max(1, min(10, steps // 10)),
        progress,
    )
