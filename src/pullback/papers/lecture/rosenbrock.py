r"""The Rosenbrock function as a composite, \(h(x) = L(f(x))\):

\[ f(x_1, x_2) = (1 - x_1,\ 10\,(x_2 - x_1^2)), \qquad L(z) = z_1^2 + z_2^2. \]

With the Euclidean metric on the outputs pulled back, natural gradient descent is gradient descent on the outputs, to first order in the
step. From \((-1.2, 1)\) with step \(\tfrac12\) it is at the minimum after two steps, though not monotonically:
\(h = 24.2 \to 2342.56 \to 0\).

**Corrected.** "Gradient descent on the outputs converges instantly" holds for step \(\tfrac12\) only: the Hessian of \(L\) is \(2I\), the
metric is \(I\). With step 1 it is a reflection, and natural gradient descent returns to where it started every second step.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pullback as pb

from .._example import Example, Row, at_least, at_most

START = np.array([-1.2, 1.0])


def outputs(x: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """f, with a = 1 and b = 100.

    **Arguments:**

    - `x`: the two variables.
    """
    return jnp.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


def square(z: Float[Array, " 2"]) -> Float[Array, ""]:
    """L.

    **Arguments:**

    - `z`: the outputs.
    """
    return jnp.sum(z**2)


PROBLEM = pb.Composite(outputs, loss=square)


def descend(step: float, steps: int) -> list[float]:
    """The values of h along natural gradient descent.

    **Arguments:**

    - `step`: the step size.
    - `steps`: how many.
    """
    x, values = jnp.asarray(START), []
    for _ in range(steps + 1):
        ng = pb.natural_gradient(PROBLEM, x)
        values.append(float(ng.value))
        x = x - step * ng.vector
    return values


def measure() -> Iterator[Row]:
    """Two step sizes, the formula at the start, and plain gradient descent for comparison."""
    j = np.array([[-1.0, 0.0], [24.0, 10.0]])
    z = np.array([2.2, -4.4])
    ng = pb.natural_gradient(PROBLEM, jnp.asarray(START))
    yield at_most(
        "at (-1.2, 1) the natural gradient is J⁻¹(2z), off by",
        np.abs(np.asarray(ng.vector) - np.linalg.solve(j, 2 * z)).max(),
        1e-12,
    )
    half, one = descend(0.5, 2), descend(1.0, 4)
    yield at_most("step 1/2: h = 24.2 at the start, off by", abs(half[0] - 24.2), 1e-12)
    yield at_most("step 1/2: h = 2342.56 after one step, off by", abs(half[1] - 2342.56), 1e-9)
    yield at_most("step 1/2: h after two steps", half[2], 1e-20)
    yield at_most(
        "step 1: after two and after four steps h = 24.2 again, off by", max(abs(one[2] - 24.2), abs(one[4] - 24.2)), 1e-8
    )
    yield at_least("step 1: h in between", min(one[1], one[3]), 3.5e4)
    yield at_least("plain gradient descent, step 0.001, 1000 steps: h is still", _plain(1e-3, 1000), 0.01)


def _plain(step: float, steps: int) -> float:
    slope = jax.grad(lambda x: square(outputs(x)))
    x = jax.jit(lambda x: jax.lax.fori_loop(0, steps, lambda _, x: x - step * slope(x), x))(jnp.asarray(START))
    return float(square(outputs(x)))


EXAMPLE = Example(
    "rosenbrock",
    "Grosse, lecture 3, motivating example, corrected",
    "On the Rosenbrock function natural gradient descent arrives in two steps, if the step is 1/2; with step 1, which the lecture's "
    "'instantly' suggests, it goes round in a cycle.",
    measure,
)
