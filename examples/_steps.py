"""Steps and CPU seconds of natural gradients and of Adam until a loss is reached."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from _core import stay_on_one_core

import pullback as pb

CHUNK, RATES = 50, (0.1, 0.01, 0.001)
stay_on_one_core()


def natural(problem, params, batch, enough, step, most=500):
    """Steps and seconds of natural gradient descent, and where it ended."""
    opt = pb.NaturalGradientDescent(problem, step=step)
    start = opt.init(params)
    jax.block_until_ready(opt.step(params, start, batch))
    state, count, value, began = start, 0, np.inf, time.process_time()
    while value > enough and count < most:
        params, state, record = opt.step(params, state, batch)
        value, count = float(record.loss_after), count + 1
    return count, time.process_time() - began, params


class Adam(NamedTuple):
    """Where Adam came with the best of its rates."""

    reached: tuple[int, float] | None
    """The fewest steps and their seconds to reach the loss; `None` where all were too few."""
    same: Any
    """The parameters after as many seconds as the natural gradient took."""
    end: Any
    """The parameters of least loss after all steps."""
    seconds: float
    """The seconds of all steps with that rate."""


def adam(problem, params, batch, enough, most, seconds):
    """Run Adam with each rate until the loss is reached; see `Adam`."""
    loss = jax.jit(lambda p: problem.at(batch).value(p))

    @jax.jit
    def chunk(params, state, rate):
        def step(carry, _):
            value, gradient = jax.value_and_grad(loss)(carry[0])
            updates, state = optax.adam(rate).update(gradient, carry[1])
            return (optax.apply_updates(carry[0], updates), state), value

        return jax.lax.scan(step, (params, state), None, CHUNK)

    found, same, ends, initial = [], [], [], optax.adam(0.1).init(params)
    for rate in RATES:
        jax.block_until_ready(chunk(params, initial, rate))
        now, then, began = (params, initial), None, time.process_time()
        for count in range(0, most, CHUNK):
            now, values = chunk(*now, rate)
            if (below := np.flatnonzero(np.asarray(values) <= enough)).size:
                found.append((count + int(below[0]), time.process_time() - began))
                break
            if then is None and time.process_time() - began >= seconds:
                then = now[0]
        ends.append((time.process_time() - began, now[0]))
        same.append(now[0] if then is None else then)
    taken, end = min(ends, key=lambda x: float(loss(x[1])))
    return Adam(min(found) if found else None, min(same, key=loss), end, taken)


def report(name, example, margin, step, above_minimum=False, most=20_000, error=None):
    """Print a line; `margin` is a loss, or one above the minimum that a long natural run finds.

    Where Adam does not reach the loss, a second line has `error` of both methods' parameters.
    """
    problem, params, batch = example
    if above_minimum:
        end = natural(problem, params, batch, -np.inf, step, 40)[2]
        margin = margin + float(problem.at(batch).value(end))
    steps, seconds, found = natural(problem, params, batch, margin, step)
    other = adam(problem, params, batch, margin, most, seconds)
    few, reached = f"more than {most} steps", other.reached
    theirs = few if reached is None else f"{reached[0]} steps, {reached[1]:.2g} s"
    print(f"{name:46s} natural {steps:3d} steps, {seconds:.2g} s, Adam {theirs}", flush=True)
    if reached is None and error is not None:
        errors = f"natural {error(found):.1e}, Adam {error(other.same):.1e} at equal time"
        print(f"  error: {errors}, {error(other.end):.1e} after {other.seconds:.2g} s", flush=True)
