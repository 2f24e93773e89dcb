"""Steps and CPU seconds of natural gradients and of Adam until a loss is reached."""

import time

import jax
import numpy as np
import optax

import pullback as pb

CHUNK, RATES = 50, (0.1, 0.01, 0.001)


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


def adam(problem, params, batch, enough, most):
    """The fewest steps of Adam over the rates, and their seconds; `None` where all were too few."""
    loss = lambda p: problem.at(batch).value(p)

    @jax.jit
    def chunk(params, state, rate):
        def step(carry, _):
            value, gradient = jax.value_and_grad(loss)(carry[0])
            updates, state = optax.adam(rate).update(gradient, carry[1])
            return (optax.apply_updates(carry[0], updates), state), value

        return jax.lax.scan(step, (params, state), None, CHUNK)

    found, initial = [], optax.adam(0.1).init(params)
    for rate in RATES:
        jax.block_until_ready(chunk(params, initial, rate))
        now, began = (params, initial), time.process_time()
        for count in range(0, most, CHUNK):
            now, values = chunk(*now, rate)
            if (below := np.flatnonzero(np.asarray(values) <= enough)).size:
                found.append((count + int(below[0]), time.process_time() - began))
                break
    return min(found) if found else None


def report(name, example, margin, step, above_minimum=False, most=20_000):
    """Print a line; `margin` is a loss, or one above the minimum that a long natural run finds."""
    problem, params, batch = example
    if above_minimum:
        end = natural(problem, params, batch, -np.inf, step, 40)[2]
        margin = margin + float(problem.at(batch).value(end))
    steps, seconds, _ = natural(problem, params, batch, margin, step)
    other = adam(problem, params, batch, margin, most)
    theirs = f"more than {most} steps" if other is None else f"{other[0]} steps, {other[1]:.2g} s"
    print(f"{name:46s} natural {steps:3d} steps, {seconds:.2g} s, Adam {theirs}", flush=True)
