r"""Section 4. For many parameters the damped inverse is found on the side of the samples
(Woodbury): with \(A\) of shape \(m \times P\), \(m \ll P\),

\[ (A^\top A + \lambda I_P)^{-1}A^\top r = A^\top(AA^\top + \lambda I_m)^{-1}r. \]

As \(\lambda \to 0\) it becomes \(A^+ r\): what is used "instead of" the generalised inverse has it
as its limit, and the limit itself costs no more.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_most, equals
from .._numbers import distance, generator

SAMPLES = 12
INPUTS = 5
HIDDEN = 40
DAMPINGS = (1e-1, 1e-3)


def network(params: tuple, x: Float[Array, "N 5"]) -> Float[Array, " N"]:
    """A small network."""
    return jnp.tanh(x @ params[0]) @ params[1]


def rows(
    w0: np.ndarray, w1: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A and r of the network with half the mean squared error, written out in NumPy."""
    h = np.tanh(x @ w0)
    first = (x[:, :, None] * ((1 - h**2) * w1)[:, None, :]).reshape(SAMPLES, -1)
    a = np.concatenate([first, h], axis=1)
    return a / np.sqrt(SAMPLES), (h @ w1 - y) / np.sqrt(SAMPLES)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A network of 240 parameters on 12 samples."""
    rng = generator(key)
    params = tuple(
        jnp.asarray(rng.standard_normal(shape)) for shape in ((INPUTS, HIDDEN), (HIDDEN,))
    )
    x = jnp.asarray(rng.standard_normal((SAMPLES, INPUTS)))
    y = jnp.asarray(rng.standard_normal(SAMPLES))
    problem = pb.Composite(network, loss=lambda z, y: (z - y) ** 2 / 2)

    def vector(inverse, solver):
        ng = pb.natural_gradient(problem, params, (x, y), inverse=inverse, solver=solver)
        return np.concatenate([np.asarray(part).ravel() for part in ng.vector]), ng

    a, r = rows(*(np.asarray(p) for p in params), np.asarray(x), np.asarray(y))
    dense = []
    sides = []
    for damping in DAMPINGS:
        inverse = pb.Tikhonov(damping)
        dual = vector(inverse, pb.solver.Dual())[0]
        primal = vector(inverse, pb.solver.Primal())[0]
        dense.append(
            distance(dual, np.linalg.solve(a.T @ a + damping * np.eye(a.shape[1]), a.T @ r))
        )
        sides.append(distance(dual, primal))
    limit = np.linalg.lstsq(a, r, rcond=1e-12)[0]
    exact = vector(pb.MoorePenrose(), pb.solver.Dual())[0]
    tiny = a.T @ np.linalg.solve(a @ a.T + 1e-9 * np.eye(SAMPLES), r)
    return Measured(
        (
            at_most(
                "Dual, on the side of the samples, is the damped inverse on the parameters: "
                "largest error",
                max(dense),
                1e-10,
            ),
            at_most("Dual and Primal agree: largest difference", max(sides), 1e-10),
            at_most(
                "the limit λ → 0 is the Moore-Penrose solution: distance at λ = 1e-9",
                distance(tiny, limit),
                1e-6,
            ),
            at_most(
                "Dual with MoorePenrose, undamped, is that limit: error",
                distance(exact, limit),
                1e-10,
            ),
            equals(
                "rank of A, 12 samples and 240 parameters",
                np.linalg.matrix_rank(a),
                SAMPLES,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="woodbury",
    source="invariance",
    place="Section 4, practical considerations",
    quotation="the Woodbury matrix identity with damping is often used instead",
    statement=(
        "Where there are many parameters the Woodbury identity with damping can take the place "
        "of the generalised inverse."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
