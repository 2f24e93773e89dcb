r"""Adam + L-BFGS and Adam + self-scaled Broyden, the usual training of these networks.

They run in double precision for as many processor seconds as our run, compilation included: other
programs do not change this clock, and where several threads work it is not behind that on the wall.
Adam makes the first steps, a quasi-Newton method the others, with a line search by the strong Wolfe
conditions (Optax's zoom). Where a problem draws new points, these are new every `RENEWED` steps: a
quasi-Newton method compares gradients of one function.

Self-scaled Broyden (of M. Al-Baali; for equations J. Urbán, P. Stefanou, J. Pons, arXiv 2405.04230)
updates a dense inverse Hessian \(H\) with \(s = \theta' - \theta\) and \(y = g' - g\) by

\[ H' = \frac1\tau \Bigl(H - \frac{Hyy^\top H}{y^\top Hy} + \varphi\,y^\top Hy\,vv^\top\Bigr) +
\frac{ss^\top}{s^\top y}, \qquad v = \frac{s}{s^\top y} - \frac{Hy}{y^\top Hy} . \]

BFGS is \(\varphi = 1\) and \(\tau = 1\). Here \(\tau\), at most 1, enlarges an inverse that is too
small along \(s\). `broyden_update` derives both from \(s^\top H^{-1}s\), \(y^\top Hy\) and \(s^\top
y\).
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from .cases import Case, case
from .run import Measured, Notes

METHODS = {"adam-lbfgs": "Adam + L-BFGS", "broyden": "Adam + self-scaled Broyden"}
"""The ends of the names of their folders, and their names."""
ADAM_STEPS, ADAM_RATE = 1000, 1e-3
"""How Adam begins."""
MEMORY = 50
"""How many pairs L-BFGS remembers."""
RENEWED = 500
"""After how many steps points are new, where the problem draws new ones."""
SLACK = 1e-6
"""By what part the loss may rise in a step: that of the approximate conditions of the search."""
LARGEST = 5000
"""Of how many parameters the dense inverse Hessian is kept at most."""


class Broyden(NamedTuple):
    """What self-scaled Broyden keeps; names as in Optax's L-BFGS."""

    count: Int[Array, ""]
    params: Float[Array, " P"]
    """The point before."""
    updates: Float[Array, " P"]
    """The gradient there."""
    inverse: Float[Array, "P P"]
    stiffness: Float[Array, ""]
    """(dᵀH⁻¹d)/(dᵀd) of the last direction d: H⁻¹ itself is not kept."""


def broyden_update(
    inverse: Float[Array, "P P"],
    s: Float[Array, " P"],
    y: Float[Array, " P"],
    stiffness: Float[Array, ""],
) -> Float[Array, "P P"]:
    """Return H' from H, s, y and (sᵀH⁻¹s)/(sᵀs)."""
    tiny = jnp.finfo(s.dtype).eps
    product = inverse @ y
    sy, yhy = s @ y, y @ product
    b, h = stiffness * (s @ s) / sy, yhy / sy
    a = jnp.maximum(b * h - 1, tiny)  # not negative, by Cauchy and Schwarz
    low = jnp.minimum(1.0, h * (1 - jnp.sqrt(a / (1 + a))))
    theta = jnp.maximum((low - 1) / a, jnp.minimum(1 / low, (1 - b) / b))
    sigma, scale = 1 + a * theta, jnp.minimum(1.0, 1 / b)
    spread = sigma ** (-1 / jnp.maximum(s.size - 1, 1))
    tau = jnp.where(
        theta > 0,
        scale * jnp.minimum(spread, 1 / jnp.where(theta > 0, theta, 1.0)),
        jnp.minimum(scale * spread, sigma),
    )
    phi = (1 - theta) / sigma
    v = s / sy - product / yhy
    inner = inverse - jnp.outer(product, product) / yhy + phi * yhy * jnp.outer(v, v)
    return inner / tau + jnp.outer(s, s) / sy


def scale_by_broyden() -> optax.GradientTransformation:
    """Return the direction of self-scaled Broyden, of a vector, for a line search after it."""

    def init(params: Any) -> Broyden:
        zero = jnp.zeros((), params.dtype)
        inverse = jnp.eye(params.size, dtype=params.dtype)
        return Broyden(jnp.zeros((), int), params, jnp.zeros_like(params), inverse, zero)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Broyden]:
        s, y = params - state.params, updates - state.updates
        size, sy = jnp.linalg.norm(s) * jnp.linalg.norm(y), s @ y
        # Where the line search found no lower loss, the inverse begins anew.
        begun = (state.count > 0) & (jnp.linalg.norm(s) > 0)
        # The first pair updates an identity with the scale of the Hessian (Shanno and Phua, 1978).
        first, identity, curvature = state.count == 1, jnp.eye(s.size, dtype=s.dtype), (y @ y) / sy
        old = jnp.where(first, identity / curvature, state.inverse)
        new = broyden_update(old, s, y, jnp.where(first, curvature, state.stiffness))
        curved = sy > jnp.finfo(s.dtype).eps * size
        usable = begun & curved & jnp.all(jnp.isfinite(new))
        anew = identity / jnp.maximum(1.0, jnp.linalg.norm(updates))
        inverse = jnp.where(usable, new, jnp.where(begun, state.inverse, anew))
        direction = inverse @ updates
        stiffness = (direction @ updates) / (direction @ direction)
        count = jnp.where(begun, state.count + usable, 1)
        return direction, Broyden(count, params, updates, inverse, stiffness)

    return optax.GradientTransformation(init, update)


def quasi_newton(method: str) -> optax.GradientTransformationExtraArgs:
    """Return L-BFGS or self-scaled Broyden, each with the line search of Optax's L-BFGS."""
    if method == "adam-lbfgs":
        direction = optax.scale_by_lbfgs(MEMORY)
    else:
        direction = scale_by_broyden()
    search = optax.scale_by_zoom_linesearch(20, initial_guess_strategy="one")
    return optax.chain(direction, optax.scale(-1.0), search)


def steps_of(transformation: Any, loss: Callable[[Array, Any], Array]) -> Callable[..., Any]:
    """Return a compiled function that makes a number of steps on one batch."""
    transformation = optax.with_extra_args_support(transformation)

    @jax.jit
    def steps(params: Array, state: Any, batch: Any, count: Int[Array, ""]):
        here = lambda v: loss(v, batch)
        # A line search has computed the value and the gradient at its end; Adam has none.
        kept = optax.tree.get(state, "value") is not None
        differential = optax.value_and_grad_from_state(here) if kept else None

        def step(_: Any, carry: Any) -> Any:
            params, state, _ = carry
            if differential is None:
                value, gradient = jax.value_and_grad(here)(params)
            else:
                value, gradient = differential(params, state=state)
            update, new = transformation.update(
                gradient, state, params, value=value, grad=gradient, value_fn=here
            )
            there = optax.apply_updates(params, update)
            if not kept:
                return there, new, value
            # Optax takes the last step of a search that failed, and the loss may rise: such a step
            # is left out, and the method begins anew.
            low = optax.tree.get(new, "value") <= value + SLACK * jnp.abs(value)
            begin = lambda: (params, transformation.init(params))
            return *jax.lax.cond(low, lambda: (there, new), begin), value

        value = jnp.full((), jnp.nan, params.dtype)
        return jax.lax.fori_loop(0, count, step, (params, state, value))

    return steps


def moved(state: Any, gradient: Callable[[Array], Array]) -> Any:
    """Return the state of a quasi-Newton method for another function, that of new points."""
    before = optax.tree.get(state, "params")
    # The next pair is one of the new function alone, and nothing is known of it here.
    unknown = jnp.full((), jnp.inf, before.dtype)
    return optax.tree.set(state, updates=gradient(before), value=unknown)


class Clock:
    """Wall-clock and processor time since the start, without what runs in `with clock:`."""

    def __init__(self):
        self.began = self._now()

    def read(self) -> np.ndarray:
        """Return the seconds on both clocks."""
        return self._now() - self.began

    def __enter__(self):
        self.stopped = self._now()

    def __exit__(self, *_: object):
        self.began = self.began + self._now() - self.stopped

    def _now(self) -> np.ndarray:
        return np.array([time.monotonic(), time.process_time()])


def train(
    chosen: Case,
    method: str,
    seed: int,
    seconds: float,
    folder: Path | None = None,
    steps: float = math.inf,
) -> list[Measured]:
    """Train from the start of our run of a seed, on its first points, for so long or so many steps.

    The `seconds` are those of the processor.

    A run ends before if no step is found that lowers the loss.
    """
    start, points, _, test = jax.random.split(jax.random.key(seed), 4)
    params, unravel = ravel_pytree(chosen.start(start))
    equation, compare, notes = chosen.equation, chosen.test(test), Notes(folder)
    if method == "broyden" and params.size > LARGEST:
        raise ValueError(
            f"Self-scaled Broyden keeps a dense inverse Hessian, for at most {LARGEST} parameters: "
            f"{equation.name} has {params.size}."
        )
    problem = equation.problem(chosen.field)
    loss = lambda v, batch: problem.at(batch).value(unravel(v))
    slope = jax.jit(jax.grad(loss))
    measure = jax.jit(lambda v: chosen.errors(unravel(v), *compare))

    def note(step: int, value: Any) -> None:
        now = clock.read()
        with clock:
            error, relative = (float(x) for x in measure(params))
            notes.add(Measured(step, *now, float(value), error, relative))

    clock = Clock()
    note(0, float("nan"))
    clock, step, several, batch = Clock(), 0, 10, equation.points(points)
    for transformation, last in (
        (optax.adam(ADAM_RATE), ADAM_STEPS),
        (quasi_newton(method), math.inf),
    ):
        several_steps, state = steps_of(transformation, loss), transformation.init(params)
        while step < min(last, steps) and clock.read()[1] < seconds:
            if equation.renewed and step > 0 and step % RENEWED == 0:
                batch = equation.points(jax.random.fold_in(points, step))
                if step > ADAM_STEPS:
                    state = moved(state, lambda v, batch=batch: slope(v, batch))
            several = int(min(several, RENEWED - step % RENEWED, steps - step))
            before, began = params, clock.read()[0]
            params, state, value = several_steps(params, state, batch, jnp.asarray(several))
            stalled = bool(jnp.array_equal(params, before))  # which waits for the steps
            several, step = several * (2 if clock.read()[0] - began < 0.5 else 1), step + several
            note(step, value)
            if stalled or not np.isfinite(notes.found[-1].error):
                break
    notes.end(step, complete=True, limit=seconds)
    return notes.found


def one(
    method: str, name: str, seed: int, seconds: float, published: bool, folder: Path | None = None
) -> list[Measured]:
    """One run of a baseline; read from the folder if it is there, with as much time."""
    jax.config.update("jax_enable_x64", True)
    if folder is not None and (folder / "run.json").exists():
        note = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if note["limit"] >= seconds:
            return Notes(folder).found
    if folder is not None:
        for file in ("run.json", "measured.jsonl"):
            (folder / file).unlink(missing_ok=True)
    return train(case(name, published), method, seed, seconds, folder)
