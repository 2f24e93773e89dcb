r"""Diagonal linear networks: \(\beta = w_1 \odot \cdots \odot w_L\), the logistic loss of
\(\beta\).

With the cofactors \(c_l = \prod_{k \ne l} w_k\) the Jacobian of \(\beta\) is \(J =
[\mathrm{diag}(c_1) \cdots \mathrm{diag}(c_L)]\), and

\[ JJ^\top = \mathrm{diag}(s^2), \quad s^2 = \sum_k c_k^2, \qquad J = \mathrm{diag}(s)\,V^\top,
\quad V_l = \mathrm{diag}(c_l/s), \]

where V has orthonormal columns (those with \(s_j = 0\) left out). The whitened Jacobian of the
network is \(A = W^{1/2}\tilde X\,\mathrm{diag}(s)\,V^\top\), so that \(A^+ = V\,(W^{1/2}\tilde
X\,\mathrm{diag}(s))^+\): *the natural gradient of the network is that of a linear model whose
inputs are scaled by s*, spread over the layers,

\[ d_l = \frac{c_l}{s} \odot e, \qquad e = \text{natural gradient on the inputs } x \odot s. \]

It is the Moore-Penrose one in w whatever the rank. If the Fisher matrix of \(\beta\) is regular and
no \(s_j\) vanishes, \(e = d_\beta/s\) and \(d_l = c_l\,d_\beta/\sum_k c_k^2\), in O(LD) given
\(d_\beta\): depth does not matter. If it is singular (N < D), s decides what the data leave open,
and depth matters again: at depth 2 as in `_hyperbolic.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.types import Scalar
from . import _check
from ._hyperbolic import hyperbolic_projection, imbalance
from ._logistic import Logistic
from ._newton_flow import logits_in_closed_form
from ._population import log_fisher
from ._weighted import least_squares


class Diagonal(eqx.Module):
    """A diagonal linear network under the logistic loss. `weights` has the shape `(depth, D)`
    everywhere.

    **Arguments:**

    - `depth`: the number of layers.
    """

    depth: int = eqx.field(
        static=True, converter=lambda depth: _check.whole_depth("Diagonal", depth)
    )

    def _weights(self, weights):
        weights = _check.floating("weights", weights, 2)
        if weights.shape[0] != self.depth:
            raise ValueError(
                f"weights must have the shape (depth, D) = ({self.depth}, D), got {weights.shape}."
            )
        return weights

    def product(self, weights: Float[Array, "L D"]) -> Float[Array, " D"]:
        """β, the product of the layers.

        **Arguments:**

        - `weights`: the layers.
        """
        return jnp.prod(self._weights(weights), axis=0)

    def cofactors(self, weights: Float[Array, "L D"]) -> Float[Array, "L D"]:
        """∂β/∂w_l, the product of the other layers; no division, so that zeros are allowed.

        **Arguments:**

        - `weights`: the layers.
        """
        weights = self._weights(weights)
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
        """The smallest change of the layers that changes β by a vector: c_l v / Σ c_k², zero where
        no change is possible.

        **Arguments:**

        - `weights`: the layers.
        - `vector`: a change of β.
        """
        c = self.cofactors(weights)
        vector = _check.like("vector", vector, c.shape[1], "one entry a column of weights").astype(
            c.dtype
        )
        # Scaled by the largest cofactor: the squares of small ones would underflow.
        largest = jnp.max(jnp.abs(c), axis=0)
        unit = c / jnp.where(largest > 0, largest, 1)[None, :]
        square = jnp.sum(unit**2, axis=0) * largest
        return unit * jnp.where(largest > 0, vector / jnp.where(largest > 0, square, 1), 0)[None, :]

    def natural_gradient(
        self, weights: Float[Array, "L D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, "L D"]:
        """The Moore-Penrose natural gradient in the layers, exact for any N, D, spread of the
        logits and zeros in the layers.

        **Arguments:**

        - `weights`, `x`, `y`: the layers, inputs and labels.
        """
        c = self.cofactors(weights)
        x, y = _check.samples(x, y)
        c = c.astype(x.dtype)
        s = jnp.linalg.norm(c, axis=0)
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
        r"""β at time t of the natural gradient flow of a network of depth 2 with independent inputs
        (N ≤ D): the Bregman projection of \(\beta_0\) in the hyperbolic entropy on \(\{X\beta =
        s(t)\}\), without steps in time. For N ≥ D and depth 1 see `Logistic.flow`.

        **Arguments:**

        - `weights`, `x`, `y`: the start and the data.
        - `t`: the time.
        - `tolerance`: on the logits, relative.
        """
        if self.depth != 2:
            raise ValueError(
                f"Diagonal(depth={self.depth}).flow: the closed form is that of depth 2; integrate natural_gradient for other depths."
            )
        weights = self._weights(weights)
        x, y = _check.samples(x, y)
        start = self.product(weights).astype(x.dtype)
        target = y * jnp.asarray(
            logits_in_closed_form(np.asarray(y * (x @ start)), _check.time(t)), x.dtype
        )
        return hyperbolic_projection(
            x, target, start, imbalance(weights).astype(x.dtype), tolerance
        )


def scaled_natural_gradient(
    beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"], s: Float[Array, " D"]
) -> Float[Array, " D"]:
    r"""The natural gradient of a linear model on the inputs \(x \odot s\), at the logits of \(x
    \cdot \beta\).
    """
    u = y * (x @ beta.astype(x.dtype))
    return least_squares(
        y[:, None] * x * s[None, :], log_fisher(u), jax.nn.softplus(-u), -jnp.ones_like(u)
    )
