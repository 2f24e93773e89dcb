r"""`check_preconditioner`: symmetric, positive definite, and harmless to the solution."""

import jax
import jax.numpy as jnp
import numpy as np

from .._natural.natural_gradient import natural_gradient
from .._natural.pullback_metric import pullback
from .._problem.composite import Composite
from ..inverse import Tikhonov
from ..metric import Categorical
from ..solver import AbstractPreconditioner, Krylov
from ._problems import Example, prescribed, tanh_mlp
from ._reference import reference_natural_gradient
from ._solver import close

DAMPING = 0.03


def check_preconditioner(
    preconditioner: AbstractPreconditioner, *, tolerance: float = 1e-8
) -> list[str]:
    """Check a preconditioner against its contract; return what was checked.

    Raises an `AssertionError` with the measured numbers.

    **Arguments:**

    - `preconditioner`: any preconditioner.
    - `tolerance`: how large a relative error may be, in float64.
    """
    name = type(preconditioner).__name__
    checked = []
    for what, example in _examples().items():
        rows = pullback(*example).whitened
        size = rows.shape[0] if preconditioner.on_rows else rows.shape[1]
        action = preconditioner.build(rows, jnp.asarray(DAMPING))
        # One after the other: an action need not be a function that vmap can handle.
        matrix = np.asarray(jax.lax.map(action, jnp.eye(size, dtype=rows.dtype)))
        assert matrix.shape == (size, size), f"{name}, {what}: shape {matrix.shape} on {size}."
        assert matrix.dtype == rows.dtype, f"{name}, {what}: {matrix.dtype}, not {rows.dtype}."
        asymmetry = np.max(np.abs(matrix - matrix.T)) / np.max(np.abs(matrix))
        assert asymmetry < 1e-10, f"{name}, {what}: not symmetric, by {asymmetry:.1e}."
        least = np.linalg.eigvalsh((matrix + matrix.T) / 2)[0]
        assert least > 0, f"{name}, {what}: not positive definite, eigenvalue {least:.3e}."
        inverse = Tikhonov(DAMPING)
        expected = reference_natural_gradient(*example, inverse=inverse)
        solver = Krylov(preconditioner=preconditioner)
        ng = natural_gradient(*example, inverse=inverse, solver=solver)
        flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
        close(f"{name}, {what}: solution", flat(ng.vector), flat(expected.vector), tolerance)
        checked.append(f"{name}, {what}")
    return checked


def _examples() -> dict[str, Example]:
    """Return problems with and without layers, with fewer and with more parameters than rows."""
    model = tanh_mlp(2, 3, 3, jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (6, 2))
    layered = Composite(model.function, metric=Categorical())
    return {
        "fewer parameters than rows": prescribed(4, 7, 4),
        "more parameters than rows": prescribed(4, 4, 7),
        "layers": Example(layered, model.params, (inputs, jnp.arange(6) % 3)),
    }
