"""Solves an equation from a seed and measures the error against steps and wall-clock time."""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pullback import NaturalGradientDescent, Report, Spring, Tikhonov, fit
from pullback.pde import Equation, initialise, interior
from pullback.step import Fixed, Geodesic, LevenbergMarquardt

from .problems import EQUATIONS

TEST_POINTS = 20_000


class Measured(NamedTuple):
    """The error at a moment of a run."""

    step: int
    seconds: float
    """The time of training with compilation, without the measurements."""
    cpu: float
    """The same time on the clock of the processor, which other programs do not change."""
    loss: float
    error: float
    """The root mean square error."""
    relative: float
    """The error relative to the root mean square of the solution."""


def optimiser(equation: Equation, momentum: bool = True) -> NaturalGradientDescent:
    """The optimiser of an equation.

    Levenberg-Marquardt with second-order correction; with fewer points than parameters, damped
    natural gradients with `Spring`. Where points are renewed and the equation has a `whole`, the
    rate falls.
    """
    problem = equation.problem()
    if equation.inside + equation.border < equation.size:
        # A line search would fit the few points of the step, and the loss on the next ones would
        # grow.
        spring = Spring(0.9) if momentum else None
        return NaturalGradientDescent(
            problem, inverse=Tikhonov(1e-3), step=Fixed(0.1), momentum=spring
        )
    rule = LevenbergMarquardt()
    if equation.renewed and equation.whole:
        # The gain on the points of the step lets the damping shrink to zero, so it has a minimum.
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
    """Train from a seed; returns the measurements, one every `every` steps and one at the end."""
    start, points, draws, test = jax.random.split(jax.random.key(seed), 4)
    params = initialise(start, equation.widths, equation.scale)
    compare = interior(test, TEST_POINTS, equation.dimension)
    measure = jax.jit(lambda params, points: equation.errors(params, points))
    found: list[Measured] = []
    batches = equation.batches(points)
    made = 0
    loss = float("nan")

    def now() -> np.ndarray:
        return np.array([time.monotonic(), time.process_time()])

    def note(params: PyTree) -> None:
        nonlocal outside
        stopped = now()
        error, relative = (float(x) for x in measure(params, compare))
        found.append(Measured(made, *(stopped - began - outside), loss, error, relative))
        outside = outside + now() - stopped

    def watch(report: Report) -> bool:
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
    """One run, in the process that calls it."""
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
