r"""The geometry of a state in its log-amplitudes, with Born's probabilities.

The outputs are \(z_i = \log|\psi(\sigma_i)| - \tfrac12\log q_i\) for configurations \(\sigma_i\)
that were drawn from \(q\), up to constants. With the weights \(w_i\) of the measure,

\[ p_i = \frac{w_i e^{2z_i}}{\sum_j w_j e^{2z_j}}, \qquad M(z) = \mathrm{diag}(p) - pp^\top . \]

All configurations with \(q = 1\): \(p\) is \(|\psi|^2/\langle\psi|\psi\rangle\) and \(J^\top M J\)
the real part of the quantum geometric tensor, exactly. Samples of \(q = |\psi|^2\): \(p_i = 1/N\),
and \(J^\top M J\) is its estimate, the covariance of the log-derivatives. Other \(q\): importance
weights, normalised by their sum. The phases of a complex wave function are a second column, with
the same weights.

The divergence is half the negative logarithm of the fidelity, whose Hessian is \(M\):

\[ \rho(u, z) = -\tfrac12 \log \frac{|\langle\psi_u|\psi_z\rangle|^2}
   {\langle\psi_u|\psi_u\rangle\langle\psi_z|\psi_z\rangle}
   = \tfrac12\log\langle e^{2\delta}\rangle_p - \log|\langle e^{\delta}\rangle_p| ,
   \qquad \delta = u - z . \]
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..metric import AbstractMetric, Scores
from ..metric._outputs import one_array


class Signed(NamedTuple):
    """Log-moduli and signs of a real wave function."""

    log: Float[Array, " N"]
    sign: Int[Array, " N"]


class Born(AbstractMetric):
    """The Fubini-Study metric on log-amplitudes: the covariance under Born's probabilities.

    **Arguments:**

    - `weights`: the weights of the configurations, which `weigh` sets from the measure. `None`
        means equal ones.
    """

    weights: Float[Array, " N"] | None = None
    nonsingular: ClassVar[bool] = False
    couples_samples: ClassVar[bool] = True
    centred: ClassVar[bool] = True

    def _scores(self, z) -> Scores:
        """The covariance with the weights p(z)."""
        return Scores(probabilities(_amplitudes(z)[0], self.weights))

    def root(self, z):
        return self._scores(z).root(z)

    def apply(self, z, v):
        return self._scores(z).apply(z, v)

    def sharp(self, z, c):
        return self._scores(z).sharp(z, c)

    def divergence(self, u, z):
        at, phase = _amplitudes(z)
        moved, turned = _amplitudes(u)
        p = probabilities(at, self.weights)
        gap = jnp.where(p > 0, moved - at, 0.0)
        top = jnp.max(gap)
        grown = jnp.exp(gap - top)
        turn = jnp.asarray(z.sign * u.sign, gap.dtype) if isinstance(z, Signed) else 1.0
        angle = jnp.zeros_like(gap) if phase is None or turned is None else turned - phase
        real = jnp.sum(p * grown * turn * jnp.cos(angle))
        imaginary = jnp.sum(p * grown * jnp.sin(angle))
        overlap = real * real + imaginary * imaginary
        return (jnp.log(jnp.sum(p * grown * grown)) - jnp.log(overlap)) / 2

    def weigh(self, weights):
        return Born(weights)


def probabilities(
    z: Float[Array, " N"], weights: Float[Array, " N"] | None = None
) -> Float[Array, " N"]:
    """Born's probabilities of log-amplitudes."""
    if weights is None:
        return jax.nn.softmax(2 * z)
    present = weights > 0
    log_weights = jnp.log(jnp.where(present, weights, 1.0)).astype(z.dtype)
    return jax.nn.softmax(jnp.where(present, 2 * z + log_weights, -jnp.inf))


def _amplitudes(z) -> tuple[Array, Array | None]:
    """The log-moduli, and the phases if there are any."""
    array, _ = one_array(
        z,
        "Born()",
        "one array of log-amplitudes, of shape (N,), or (N, 2) with phases",
        "Return one log-amplitude per configuration.",
    )
    if array.ndim == 1:
        return array, None
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(
            "Born() takes log-amplitudes of shape (N,), or (N, 2) with phases in the second "
            f"column, got {array.shape}."
        )
    return array[:, 0], array[:, 1]
