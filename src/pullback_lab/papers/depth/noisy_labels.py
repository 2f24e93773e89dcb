r"""Section 5.1, on Amari et al. (2020): Euclidean descent generalises better from clean labels,
natural gradient descent may from noisy ones.

Squared loss, linear model, N < D, inputs of covariance \(\Sigma\). From zero, Euclidean flow ends
at the interpolant of least norm, the natural flow with the population Fisher matrix \(\Sigma\) at
that of least \(\Sigma\)-norm: \(\beta = Ay\) with \(A = PX^\top(XPX^\top)^{-1}\), \(P = I\) or
\(\Sigma^{-1}\). For a true \(\beta_\star\) of covariance \(I/D\) and noise of variance \(s^2\)
the risk on new inputs is, exactly given X,

\[ \tfrac1D\,\mathrm{tr}\,(I - AX)^\top\Sigma(I - AX) \;+\; s^2\,\mathrm{tr}\,A^\top\Sigma A . \]
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import l2_interpolant

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from .low_rank import surely


def interpolation(x: np.ndarray, spectrum: np.ndarray, natural: bool) -> np.ndarray:
    """A, column by column: interpolants of the library on inputs that are whitened or not."""
    scale = spectrum**-0.5 if natural else np.ones_like(spectrum)
    inputs = jnp.asarray(x * scale)
    columns = jax.vmap(lambda y: l2_interpolant(inputs, y), out_axes=1)(jnp.eye(len(x)))
    return scale[:, None] * np.asarray(columns)


def parts(x: np.ndarray, spectrum: np.ndarray, natural: bool) -> tuple[float, float]:
    """Bias, and variance for noise of variance 1."""
    a = interpolation(x, spectrum, natural)
    rest = np.eye(len(spectrum)) - a @ x
    bias = np.sum(spectrum[:, None] * rest**2) / len(spectrum)
    return float(bias), float(np.sum(spectrum[:, None] * a**2))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Covariances with eigenvalues that fall as a power."""
    columns, samples = (400, 200) if budget.full else (80, 40)
    spectrum = np.arange(1, columns + 1) ** -1.0
    found, check = [], []
    for seed in range(20):
        rng = generator(jax.random.fold_in(key, seed))
        x = rng.standard_normal((samples, columns)) * np.sqrt(spectrum)
        found.append([parts(x, spectrum, natural) for natural in (False, True)])
        p = 1 / spectrum
        direct = (p[:, None] * x.T) @ np.linalg.inv((x * p) @ x.T)
        check.append(distance(interpolation(x, spectrum, True), direct))
    (bias, variance) = np.moveaxis(np.array(found), 2, 0)
    rows = (
        at_least(
            "clean labels: log of the risk of NGD over EGD, mean less 2 standard errors",
            surely(np.log(bias[:, 1] / bias[:, 0])),
            0.0,
        ),
        at_least(
            "noise alone: log of the risk of EGD over NGD, mean less 2 standard errors",
            surely(np.log(variance[:, 0] / variance[:, 1])),
            0.0,
        ),
        at_least(
            "there is a noise from which on NGD is better: fraction of the data sets",
            np.mean((variance[:, 0] > variance[:, 1]) & (bias[:, 1] > bias[:, 0])),
            1.0,
        ),
        at_most(
            "interpolant of whitened inputs against Σ⁻¹Xᵀ(XΣ⁻¹Xᵀ)⁻¹, largest distance",
            max(check),
            1e-9,
            Role.CONTROL,
        ),
    )
    return Measured(rows, {"bias": bias, "variance": variance})


CLAIM = Claim(
    name="depth-noisy-labels",
    source="depth",
    place="section 5.1, on Amari et al. (2020)",
    quotation=(
        "EGD generalises better for clean labels, but in scenarios like misspecification or when "
        "the labels are noisy, NGD may have an advantage"
    ),
    statement=(
        "Squared loss, N < D, isotropic truth: the limit of Euclidean descent has the smaller risk "
        "from clean labels, that of natural gradient descent with the population Fisher from "
        "labels that are noisy enough."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
