r"""Diagonal linear networks: \(\beta = w_1 \odot \cdots \odot w_L\) under the logistic loss.

With the cofactors \(c_l = \prod_{k \ne l} w_k\) the Jacobian of \(\beta\) is \(J =
[\mathrm{diag}(c_1) \cdots \mathrm{diag}(c_L)]\), and

\[ JJ^\top = \mathrm{diag}(s^2), \quad s^2 = \sum_k c_k^2, \qquad J = \mathrm{diag}(s)\,V^\top,
\quad V_l = \mathrm{diag}(c_l/s), \]

where V has orthonormal columns (those with \(s_j = 0\) left out). The whitened Jacobian of the
network is \(A = W^{1/2}\tilde X\,\mathrm{diag}(s)\,V^\top\), so that \(A^+ = V\,(W^{1/2}\tilde
X\,\mathrm{diag}(s))^+\): *the natural gradient of the network is that of a linear model whose
inputs are scaled by s*, spread over the layers,

\[ d_l = \frac{c_l}{s} \odot e, \qquad e = \text{natural gradient on the inputs } x \odot s. \]

It is the Moore-Penrose natural gradient in w whatever the rank. If the Fisher matrix of \(\beta\)
is regular and no \(s_j\) vanishes, \(e = d_\beta/s\) and \(d_l = c_l\,d_\beta/\sum_k c_k^2\), in
O(LD) given \(d_\beta\): depth does not matter. If the Fisher matrix is singular (N < D), s decides
what the data leave open, and depth matters again: `_hyperbolic.py` has depth 2.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.types import Scalar
from ._hyperbolic import hyperbolic_projection, imbalance
from ._logistic import Logistic
from ._newton_flow import logits_in_closed_form
from ._population import log_fisher
from ._weighted import least_squares


class Diagonal(eqx.Module):
    """A diagonal linear network under the logistic loss.

    In all methods `weights` are the layers, of shape `(depth, D)`; `x` and `y` are inputs and
    labels as in `Logistic`.

    **Arguments:**

    - `depth`: the number of layers.
    """

    depth: int = eqx.field(static=True)

    def __init__(self, depth: int):
        self.depth = checks.integer(
            "Diagonal", "depth", depth, least=1, example="Diagonal(depth=2)"
        )

    def _checked(self, method: str, weights: Float[Array, "L D"]) -> Float[Array, "L D"]:
        """The layers as an array; raises unless there are `depth` of them."""
        owner = f"Diagonal.{method}"
        weights = checks.floating(owner, "weights", weights, 2)
        if weights.shape[0] != self.depth:
            shape = f"(depth, D) = ({self.depth}, D)"
            raise checks.error(owner, "weights", weights, f"of shape {shape}, not {weights.shape}")
        return weights

    def product(self, weights: Float[Array, "L D"]) -> Float[Array, " D"]:
        """β, the product of the layers.

        **Arguments:**

        - `weights`: the layers.
        """
        return jnp.prod(self._checked("product", weights), axis=0)

    def cofactors(self, weights: Float[Array, "L D"]) -> Float[Array, "L D"]:
        """∂β/∂w_l, the product of the other layers.

        **Arguments:**

        - `weights`: the layers, which may contain zeros.
        """
        # β/w_l would be 0/0 where a layer is zero.
        weights = self._checked("cofactors", weights)
        one = jnp.ones_like(weights[:1])
        before = jnp.cumprod(jnp.concatenate([one, weights[:-1]]), axis=0)
        after = jnp.cumprod(jnp.concatenate([one, weights[:0:-1]]), axis=0)[::-1]
        return before * after

    def loss(
        self, weights: Float[Array, "L D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Scalar:
        """The logistic loss of the product.

        **Arguments:**

        - `weights`, `x`, `y`: the layers, inputs and labels.
        """
        return Logistic().loss(self.product(weights), x, y)

    def gradient(
        self, weights: Float[Array, "L D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, "L D"]:
        """The differential of the loss.

        **Arguments:**

        - `weights`, `x`, `y`: the layers, inputs and labels.
        """
        return self.cofactors(weights) * Logistic().gradient(self.product(weights), x, y)[None, :]

    def lift(self, weights: Float[Array, "L D"], vector: Float[Array, " D"]) -> Float[Array, "L D"]:
        """The smallest change of the layers that changes β by a vector: c_l v / Σ c_k².

        Where no change of β is possible, the change of the layers is zero.

        **Arguments:**

        - `weights`: the layers.
        - `vector`: a change of β.
        """
        c = self.cofactors(weights)
        columns = "one entry per column of weights"
        vector = checks.vector("Diagonal.lift", "vector", vector, c.shape[1], columns)
        vector = vector.astype(c.dtype)
        # Scaled by the largest cofactor: the squares of small ones would underflow.
        largest = jnp.max(jnp.abs(c), axis=0)
        unit = c / jnp.where(largest > 0, largest, 1)[None, :]
        square = jnp.sum(unit**2, axis=0) * largest
        return unit * jnp.where(largest > 0, vector / jnp.where(largest > 0, square, 1), 0)[None, :]

    def natural_gradient(
        self, weights: Float[Array, "L D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, "L D"]:
        """The Moore-Penrose natural gradient in the layers.

        It is exact for all N and D, logits of any spread, and layers with zeros.

        **Arguments:**

        - `weights`, `x`, `y`: the layers, inputs and labels.
        """
        x, y = checks.labelled("Diagonal.natural_gradient", x, y)
        c = self.cofactors(weights).astype(x.dtype)
        # The squares of small cofactors would underflow.
        largest = jnp.max(jnp.abs(c), axis=0)
        s = largest * jnp.linalg.norm(c / jnp.where(largest > 0, largest, 1)[None, :], axis=0)
        e = scaled_natural_gradient(self.product(weights), x, y, s)
        return c / jnp.where(s > 0, s, 1)[None, :] * e[None, :]

    def flow(
        self,
        weights: Float[Array, "2 D"],
        x: Float[Array, "N D"],
        y: Float[Array, " N"],
        t: float,
        tolerance: float = 1e-10,
    ) -> Float[Array, " D"]:
        r"""β at time t of the natural gradient flow of a network of depth 2, without steps in time.

        The rows of x must be independent (N ≤ D). The result is the Bregman projection of
        \(\beta_0\) in the hyperbolic entropy on \(\{X\beta = s(t)\}\). For N ≥ D and depth 1 use
        `Logistic.flow`.

        **Arguments:**

        - `weights`, `x`, `y`: the start and the data.
        - `t`: the time.
        - `tolerance`: on the logits, relative.
        """
        if self.depth != 2:
            raise ValueError(
                f"Diagonal(depth={self.depth}).flow: the closed form is that of depth 2; integrate "
                f"natural_gradient for other depths."
            )
        weights = self._checked("flow", weights)
        x, y = checks.labelled("Diagonal.flow", x, y)
        example = "Diagonal(2).flow(weights, x, y, t=1.0)"
        checks.positive("Diagonal.flow", "t", t, zero=True, example=example)
        if x.shape[0] > x.shape[1]:
            cure = "for N > D integrate natural_gradient"
            wanted = f"of shape (N, D) with N <= D, not {x.shape}; {cure}"
            raise checks.error("Diagonal.flow", "x", x, wanted)
        start = self.product(weights).astype(x.dtype)
        margins = logits_in_closed_form(np.asarray(y * (x @ start)), float(t))
        target = y * jnp.asarray(margins, x.dtype)
        kappa = imbalance(weights).astype(x.dtype)
        return hyperbolic_projection(x, target, start, kappa, tolerance)


def scaled_natural_gradient(
    beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"], s: Float[Array, " D"]
) -> Float[Array, " D"]:
    """The natural gradient of a linear model on the inputs x ⊙ s, at the logits xβ."""
    u = y * (x @ beta.astype(x.dtype))
    return least_squares(
        y[:, None] * x * s[None, :], log_fisher(u), jax.nn.softplus(-u), -jnp.ones_like(u)
    )
