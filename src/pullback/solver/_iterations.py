"""What iterations need beside lineax: an operator that knows its transpose, the ends of a spectrum,
and conjugate gradients that count.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array


class Operator(lx.AbstractLinearOperator):
    """A linear map whose transpose is given.

    lineax's own would be transposed by JAX, which cannot do that to every root of a metric.
    """

    function: Callable[[Any], Any]
    adjoint: Callable[[Any], Any]
    ins: Any = eqx.field(static=True)
    outs: Any = eqx.field(static=True)

    def mv(self, vector):
        return self.function(vector)

    def transpose(self):
        return Operator(self.adjoint, self.function, self.outs, self.ins)

    def in_structure(self):
        return self.ins

    def out_structure(self):
        return self.outs

    def as_matrix(self):
        raise NotImplementedError("LSMR takes products only")


@lx.linearise.register(Operator)
@lx.conj.register(Operator)
def _(operator):
    return operator


# lineax asks every operator for its structure; this one has none.
for _ask in (
    lx.is_symmetric, lx.is_diagonal, lx.is_tridiagonal, lx.is_lower_triangular,
    lx.is_upper_triangular, lx.is_positive_semidefinite, lx.is_negative_semidefinite,
    lx.has_unit_diagonal,
):  # fmt: skip
    _ask.register(Operator, lambda operator: False)


def ritz_values(action: Callable[[Array], Array], x: Array, steps: int = 10) -> Array:
    """Return Lanczos' approximations of eigenvalues of a symmetric action; x is where it starts."""
    near_zero = jnp.sqrt(jnp.finfo(x.dtype).eps)

    def step(carry, _):
        q, before, beta, alive = carry
        z = action(q)
        alpha = jnp.vdot(q, z)
        scale = jnp.abs(alpha) + beta
        z = z - alpha * q - beta * before
        size = jnp.linalg.norm(z)
        # An invariant subspace is found: what follows would be rounding.
        going = alive & (size > near_zero * scale)
        following = jnp.where(going, size, 0.0)
        new = z / jnp.where(going, size, 1.0)
        return (new, q, following, going), (alpha, following, alive)

    start = (x / jnp.linalg.norm(x), jnp.zeros_like(x), jnp.zeros((), x.dtype), jnp.asarray(True))
    _, (alpha, beta, alive) = jax.lax.scan(step, start, None, length=min(steps, x.size))
    # A value that was found already takes the place of what was not computed.
    diagonal = jnp.where(alive, alpha, alpha[0])
    beta = jnp.where(alive, beta, 0.0)[:-1]
    return jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(beta, 1) + jnp.diag(beta, -1))


def conjugate_gradients(product, inverse, b, rtol, max_steps) -> tuple[Array, Array]:
    """Iterate until the residual is rtol of b in the norm of C⁻¹; return also the products taken.

    By hand: lineax's compares each component of the residual with the same one of b, and that of a
    saturated sample may be 1e-30; JAX's does not count.
    """
    # A right-hand side whose square is zero still matters.
    size = jnp.max(jnp.abs(b), initial=0.0)
    unit = jnp.where(size == 0, 1.0, size)
    b = b / unit
    goal = rtol**2 * (b @ inverse(b))

    def going(state):
        return (state[3] > goal) & (state[4] < max_steps)

    def step(state):
        y, r, p, square, steps = state
        image = product(p)
        rate = square / (p @ image)
        y, r = y + rate * p, r - rate * image
        z = inverse(r)
        following = r @ z
        return y, r, z + following / square * p, following, steps + 1

    def run(y, steps):
        # The residual of the recurrence drifts from the true one; the second run begins where the
        # first has got.
        r = b - product(y)
        z = inverse(r)
        return jax.lax.while_loop(going, step, (y, r, z, r @ z, steps))

    first = run(jnp.zeros_like(b), jnp.zeros((), jnp.int32))
    second = run(first[0], first[4])
    return unit * second[0], second[4]
