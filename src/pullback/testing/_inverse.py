r"""`check_inverse`: a filter that is one, declarations that are true, and the same numbers from
every solver that can apply it as from the dense reference.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .._natural.natural_gradient import natural_gradient
from ..inverse import AbstractInverse
from ..inverse._base import respond
from ..inverse._contract import check_declarations
from ..metric import Bernoulli
from ..solver import SVD, Dual, Krylov, Primal
from ._problems import prescribed
from ._reference import reference_natural_gradient
from ._solver import SHAPES, accepts, close

SPECTRA = {
    "well separated": (1.0, 0.3, 0.1),
    "coincident": (0.5, 0.5, 0.5),
    "wide": (1.0, 1e-3, 1e-6),
    "with zeros": (2.0, 0.1, 0.0),
}


def check_inverse(inverse: AbstractInverse, *, tolerance: float = 1e-9) -> list[str]:
    """Check an inverse against its contract; return what was checked.

    Raises a `ValueError` for a filter that contradicts its declarations, and an `AssertionError`
    with the measured numbers for everything else.

    **Arguments:**

    - `inverse`: any inverse; a gauge must fit 4, 5 and 7 parameters (a number does).
    - `tolerance`: how large a relative error may be, in float64.
    """
    check_declarations(inverse)
    name = type(inverse).__name__
    checked = [f"{name}: declarations"]
    for what, values in SPECTRA.items():
        s = jnp.asarray(values)
        found, kept, _ = respond(inverse, s, (3, 3))
        h = np.asarray(found)
        assert h.shape == s.shape, f"{name}, {what}: h has shape {h.shape}, s has {s.shape}."
        fine = np.all(np.isfinite(h)) and np.all(h >= 0)
        assert fine, f"{name}, {what}: h({values}) = {h.tolist()} is negative or not finite."
        assert kept.shape == s.shape and kept.dtype == jnp.bool_, f"{name}.kept is no mask."
        compiled = jax.jit(lambda s, i=inverse: respond(i, s, (3, 3)).h)(s)
        close(f"{name}, {what}: under jit", compiled, h, tolerance)
        checked.append(f"{name}: {what}")
    for shape, (rank, rows, size) in SHAPES.items():
        for metric in (None, Bernoulli()):
            example = prescribed(rank, rows, size, metric=metric)
            expected = reference_natural_gradient(*example, inverse=inverse)
            for solver in (SVD(), Primal(), Dual(), Krylov()):
                if not accepts(solver, inverse):
                    continue
                what = f"{name}, {type(solver).__name__}, {shape}, {type(metric).__name__}"
                ng = natural_gradient(*example, inverse=inverse, solver=solver)
                close(what, ng.vector, expected.vector, tolerance)
                checked.append(what)
    return checked
