r"""The Fubini-Study metric on the amplitudes of a state, with norm and phase projected out.

The outputs are all amplitudes \(\psi_i\) of one state, and with \(\langle a|b\rangle = \sum_i w_i\,
\bar a_i b_i\)

\[ v^\top M v = \frac{\langle v|v\rangle}{\langle\psi|\psi\rangle} -
\frac{|\langle\psi|v\rangle|^2}{\langle\psi|\psi\rangle^2} , \]

so that \(J^\top M J\) is the real part of the quantum geometric tensor of a full sum. A complex
amplitude is a pair of real numbers. In these coordinates multiplication by i is a rotation, and
with the directions of norm and phase, \(u_1 = \psi\) and \(u_2 = \mathrm i\psi\) (the first alone
if amplitudes are real), \(n^2 = \langle\psi|\psi\rangle\), \(p_k = u_k/n\),

\[ M = \frac1{n^2}\Bigl(\mathrm{diag}(w) - \sum_k (w p_k)(w p_k)^\top\Bigr), \qquad S^\top v =
\frac{\sqrt w}{n}\circ\Bigl(v - \sum_k p_k\,(w p_k)^\top v\Bigr), \qquad S^+ c = \frac{n\,c}{\sqrt
w} \ \text{ if } u_k^\top c = 0 . \]

The divergence is \(-\tfrac12\log F\) with the fidelity \(F = |\langle\psi|\phi\rangle|^2 /
(\langle\psi|\psi\rangle\langle\phi|\phi\rangle)\). For \(\phi = \psi + v\) and t the squared ratio
of the part of \(\phi\) that is orthogonal to \(\psi\) to the part along it, it is \(\tfrac12\log(1
+ t) = \tfrac12 v^\top M v + O(v^3)\).

M does not change if ψ or all weights are multiplied by a number.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.tree import Structure
from .._base.vector import norm
from ._base import AbstractMetric, AbstractRoot
from ._outputs import one_array


class FubiniStudyRoot(AbstractRoot):
    """S = (I - Σ (w p)pᵀ) diag(√w/n)."""

    log_scale: Float[Array, " m"]
    weights: Float[Array, " m"]
    directions: Float[Array, "k m"]
    """p_k, zero where the weight is."""
    size_of_state: Float[Array, ""]
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        w = jnp.where(self.weights == 0, 0.0, w)
        return self.like.unravel(w - self.weights * ((self.directions @ w) @ self.directions))

    def unit_transpose(self, v):
        v = jnp.where(self.weights == 0, 0.0, self.like.ravel(v))
        return v - (self.directions @ (self.weights * v)) @ self.directions

    def unit_lift(self, c):
        c = _project(self.directions, self.weights, self.like.ravel(c))
        return _divide(self.size_of_state * (self.size_of_state * c), self.weights)

    @property
    def removed(self):
        each = self.weights[None] * self.directions / self.size_of_state
        return jax.vmap(self.like.unravel)(each)


def _divide(c: Array, weights: Array) -> Array:
    """c/w, zero where the weight is."""
    return jnp.where(weights == 0, 0.0, c / jnp.where(weights == 0, 1.0, weights))


def _project(directions: Array, weights: Array, c: Array) -> Array:
    """The orthogonal projection of c on the range of M: no part along u_k, nor where w = 0."""
    c = jnp.where(weights == 0, 0.0, c)
    # The directions are orthogonal to each other, and as long as each other, without weights too.
    square = jnp.sum(directions[0] ** 2)
    return c - (directions @ c) @ directions / jnp.where(square > 0, square, 1.0)


class FubiniStudy(AbstractMetric):
    """The Fubini-Study metric on all amplitudes of a state, unnormalised, norm and phase removed.

    The outputs are one array, (D,) for real amplitudes or (D, 2) for real and imaginary parts: of a
    model without data, `model(params) -> psi`, or of the batch of all basis states, whose measure
    then has the weights of the inner product. From samples of log ψ use `Scores`. The divergence
    is -½ log F, F the fidelity of two states.

    ```python
    problem = pb.Composite(lambda p: psi(p), energy, pb.metric.FubiniStudy())
    ```

    **Arguments:**

    - `weights`: the weights of the amplitudes in the inner product, non-negative, which `weigh`
        sets from the measure. `None` means 1 each. A common factor of them cancels.
    """

    weights: Float[Array, " D"] | None = None
    nonsingular: ClassVar[bool] = False
    couples_samples: ClassVar[bool] = True
    centred: ClassVar[bool] = True

    def __check_init__(self):
        if self.weights is None:
            return
        good = np.ndim(self.weights) == 1
        if good and checks.is_concrete(self.weights):
            good = bool(np.all(np.asarray(self.weights) >= 0))
        if not good:
            wanted = "a vector of non-negative weights, one per amplitude"
            example = "FubiniStudy(), with the weights in the measure"
            raise checks.error("FubiniStudy", "weights", self.weights, wanted, example)

    def _read(self, z: Any) -> tuple[Array, Array, Structure]:
        """The amplitudes (D, 1) or (D, 2), the weight of each of their numbers, the structure."""
        wanted = "one array of amplitudes, (D,) or (D, 2) for real and imaginary parts"
        instead = "Return all amplitudes of a state, flat."
        z, like = one_array(z, "FubiniStudy()", wanted, instead)
        given = None if self.weights is None else jnp.shape(self.weights)
        if z.ndim > 2 or (z.ndim == 2 and z.shape[1] != 2) or given not in (None, z.shape[:1]):
            raise ValueError(
                f"FubiniStudy() takes {wanted}, and as many weights as amplitudes, got {z.shape} "
                f"and {given}. {instead}"
            )
        weights = (
            jnp.ones(z.shape[0], z.dtype)
            if self.weights is None
            else jnp.asarray(self.weights).astype(z.dtype)
        )
        z = z.reshape(z.shape[0], -1)
        return z, jnp.repeat(weights, z.shape[1], total_repeat_length=z.size), like

    def _at(self, z: Any) -> tuple[Array, Array, Array, Structure]:
        """p_k, the weights, n, and the structure."""
        psi, weights, like = self._read(z)
        present = weights != 0
        psi = jnp.where(present.reshape(psi.shape), psi, 0.0)
        n = norm(jnp.sqrt(weights) * psi.ravel())
        turned = [psi] if psi.shape[1] == 1 else [psi, jnp.stack([-psi[:, 1], psi[:, 0]], axis=1)]
        # A state of norm zero is none: NaN, which is reported.
        directions = jnp.stack([u.ravel() for u in turned]) / jnp.where(n > 0, n, jnp.nan)
        return directions, weights, n, like

    def root(self, z):
        directions, weights, n, like = self._at(z)
        present = weights != 0
        half = jnp.where(present, jnp.log(jnp.where(present, weights, 1.0)) / 2, -jnp.inf)
        return FubiniStudyRoot(half - jnp.log(n), weights, directions, n, like)

    def apply(self, z, v):
        directions, weights, n, like = self._at(z)
        v = jnp.where(weights == 0, 0.0, like.ravel(v))
        inside = v - (directions @ (weights * v)) @ directions
        return like.unravel(weights * inside / n / n)

    def sharp(self, z, c):
        directions, weights, n, like = self._at(z)
        inside = _divide(_project(directions, weights, like.ravel(c)), weights)
        return like.unravel(n * (n * _project(directions, weights, inside)))

    def divergence(self, u, z):
        directions, weights, n, like = self._at(z)
        u = jnp.where(weights == 0, 0.0, like.ravel(u)) / n
        along = directions @ (weights * u)
        across = norm(jnp.sqrt(weights) * (u - along @ directions))
        ratio = across / norm(along)
        # The square may overflow for states that are nearly orthogonal.
        far = ratio > 1e3
        near = jnp.log1p(jnp.where(far, 0.0, ratio) ** 2) / 2
        beyond = jnp.where(far, ratio, 1.0)
        return jnp.where(far, jnp.log(beyond) + jnp.log1p((1 / beyond) ** 2) / 2, near)

    def weigh(self, weights):
        return FubiniStudy(weights)

    def complaint(self, z):
        psi, weights, _ = self._read(z)
        if not bool(jnp.any((psi.ravel() != 0) & (weights > 0))):
            return "FubiniStudy: every amplitude is zero, and a state must have a norm."
        example = "FubiniStudy(), with the weights in the measure"
        wanted = "finite and non-negative"
        return str(checks.error("FubiniStudy", "weights", self.weights, wanted, example))
