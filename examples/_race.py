"""What `digits.py` and `diabetes.py` share: optimisers run for the same time, and the picture of
it.
"""

import time

import jax
import matplotlib
import optax

matplotlib.use("Agg")


def race(step, carry, seconds, enough=-1.0):
    """The (seconds, loss) of `step(carry) -> (carry, loss)` within a time or until the loss is
    `enough`, compilation not counted.
    """
    step(step(carry)[0])
    began, found = time.monotonic(), []
    while (now := time.monotonic() - began) < seconds:
        carry, value = step(carry)
        found.append((now, float(value)))
        if value < enough:
            break
    return found


def with_optax(tx, loss, params):
    """A jitted step of an Optax optimiser, and what it starts from."""

    @jax.jit
    def step(carry):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = tx.update(
            gradient, state, params, value=value, grad=gradient, value_fn=loss
        )
        return (optax.apply_updates(params, updates), state), value

    return step, (params, tx.init(params))


def picture(runs, path, title, **scales):
    """The losses against time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, run in runs.items():
        axes.plot(*zip(*run, strict=True), "o-" if len(run) < 20 else "-", ms=3, label=name)
    axes.set(xlabel="seconds", ylabel="training loss", title=title, **scales)
    figure.legend(loc="outside lower center", frameon=False)
    figure.savefig(path, dpi=150)
