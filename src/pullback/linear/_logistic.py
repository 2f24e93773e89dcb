r"""Logistic regression on labels ±1. With \(\tilde x_i = y_i x_i\), \(u = \tilde X\beta\) and
\(\varphi\) the sigmoid,

\[ L = \sum_i \log(1 + e^{-u_i}), \qquad \nabla L = -\tilde X^\top \varphi(-u), \qquad F = \tilde
X^\top \mathrm{diag}[\varphi(u)\varphi(-u)]\,\tilde X. \]

Loss and Fisher matrix are both *sums* over samples (with both as means the natural gradient is the
same; with one of each, it is N times too large).

*Natural gradient.* \(F d = \nabla L\) is the normal equation of \(\min_d \sum_i w_i (\tilde x_i
\cdot d + (1 + e^{-u_i}))^2\), \(w = \varphi(u)\varphi(-u)\), because \(\varphi(-u)/w = 1/\varphi(u)
= 1 + e^{-u}\). The factor \(e^{-u}\) that makes \(F\) and \(\nabla L\) vanish on data that are well
separated is in the weights only, and `least_squares` takes weights of any spread.

*Newton flow.* \(F\) is also the Hessian, so along \(\dot\beta = -F^{+}\nabla L\) the gradient
decays as \(\nabla L(\beta_t) = e^{-t}\,\nabla L(\beta_0)\): see `_newton_flow.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.types import Scalar
from . import _check
from ._limit import limit_direction
from ._newton_flow import newton_flow
from ._population import (
    gaussian_moments,
    gaussian_natural_gradient,
    log_fisher,
    sampled_natural_gradient,
)
from ._weighted import least_squares


class Logistic(eqx.Module):
    """Logistic regression: loss, Fisher matrices, exact natural gradient, natural gradient flow at
    any time, and where it tends to.

    `x` are inputs of shape `(N, D)`, `y` labels ±1 of shape `(N,)`, `beta` coefficients of shape
    `(D,)`, everywhere.
    """

    def margins(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, " N"]:
        r"""\(u_i = y_i\,x_i \cdot \beta\).

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        x, y = _check.samples(x, y)
        return y * (
            x
            @ _check.like("beta", beta, x.shape[1], "one coefficient a column of x").astype(x.dtype)
        )

    def loss(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Scalar:
        """The sum of log(1 + exp(-u)).

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        return jnp.sum(jax.nn.softplus(-self.margins(beta, x, y)))

    def gradient(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, " D"]:
        """The differential of the loss.

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        u = self.margins(beta, x, y)
        x, y = _check.samples(x, y)
        return -(y * jax.nn.sigmoid(-u)) @ x

    def fisher(self, beta: Float[Array, " D"], x: Float[Array, "N D"]) -> Float[Array, "D D"]:
        """The Fisher matrix summed over inputs: the sample Fisher matrix for those of the data, a
        Monte-Carlo estimate of M times the population's for M others. For looking at: nothing here
        inverts it.

        **Arguments:**

        - `beta`, `x`: coefficients and inputs.
        """
        x = _check.floating("x", x, 2)
        u = x @ _check.like("beta", beta, x.shape[1], "one coefficient a column of x").astype(
            x.dtype
        )
        return (x.T * jnp.exp(log_fisher(u))[None, :]) @ x

    def natural_gradient(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, " D"]:
        """F⁺∇L, exact for logits of any spread; it overflows only where it is itself larger than
        the largest number (logits below -700).

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        u = self.margins(beta, x, y)
        x, y = _check.samples(x, y)
        return least_squares(y[:, None] * x, log_fisher(u), jax.nn.softplus(-u), -jnp.ones_like(u))

    def flow(
        self,
        beta: Float[Array, " D"],
        x: Float[Array, "N D"],
        y: Float[Array, " N"],
        t: float,
        tolerance: float = 1e-12,
    ) -> Float[Array, " D"]:
        r"""The natural gradient flow from `beta` at time t, not by steps in time but as the
        solution of \(\nabla L(\beta_t) = e^{-t}\,\nabla L(\beta_0)\).

        **Arguments:**

        - `beta`, `x`, `y`: the start and the data.
        - `t`: the time.
        - `tolerance`: on the change of the logits in the last Newton step, relative to the largest
            of them (at least 1).
        """
        x, y = _check.samples(x, y)
        beta = _check.like("beta", beta, x.shape[1], "one coefficient a column of x").astype(
            x.dtype
        )
        signed = np.asarray(y[:, None] * x, float)
        return jnp.asarray(
            newton_flow(np.asarray(beta, float), signed, _check.time(t), tolerance), x.dtype
        )

    def limit_direction(
        self, x: Float[Array, "N D"], y: Float[Array, " N"], beta: Float[Array, " D"] | None = None
    ) -> Float[Array, " D"]:
        r"""The limit of \(\beta_t/t\) on separable data: \(X^+y\) if the rows of x are independent,
        else a linear program.

        **Arguments:**

        - `x`, `y`: the data.
        - `beta`: the start; zero if left out. It matters to the linear program only.
        """
        x, y = _check.samples(x, y)
        start = (
            jnp.zeros(x.shape[1], x.dtype)
            if beta is None
            else _check.like("beta", beta, x.shape[1], "one a column of x")
        )
        return jnp.asarray(
            limit_direction(np.asarray(y[:, None] * x, float), np.asarray(start, float)), x.dtype
        )

    def population_fisher(self, beta: Float[Array, " D"]) -> Float[Array, "D D"]:
        r"""\(E[\varphi(s)\varphi(-s)\,xx^\top] = aI + (c - a)\,bb^\top\) for standard normal
        inputs, \(b = \beta/|\beta|\); per sample.

        **Arguments:**

        - `beta`: coefficients.
        """
        beta = _check.floating("beta", beta, 1)
        norm = jnp.linalg.norm(beta)
        a, c = gaussian_moments(norm)
        b = beta / jnp.where(norm > 0, norm, 1)
        return a * jnp.eye(beta.shape[0], dtype=beta.dtype) + (c - a) * jnp.outer(b, b)

    def population_natural_gradient(
        self,
        beta: Float[Array, " D"],
        x: Float[Array, "N D"],
        y: Float[Array, " N"],
        inputs: Float[Array, "M D"] | None = None,
    ) -> Float[Array, " D"]:
        """The gradient of the data, with the Fisher matrix of the population of inputs, times N.

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        - `inputs`: a sample of the population, of at least D independent rows; standard normal
            inputs, in closed form, if left out.
        """
        gradient = self.gradient(beta, x, y)
        x, _ = _check.samples(x, y)
        beta = jnp.asarray(beta).astype(x.dtype)
        if inputs is None:
            return gaussian_natural_gradient(beta, gradient) / x.shape[0]
        inputs = _check.floating("inputs", inputs, 2).astype(x.dtype)
        if inputs.shape[1] != x.shape[1] or inputs.shape[0] < x.shape[1]:
            raise ValueError(
                f"inputs must have the shape (M, {x.shape[1]}) with M >= {x.shape[1]}, got {inputs.shape}; draw more, or leave it out."
            )
        return sampled_natural_gradient(inputs, log_fisher(inputs @ beta), gradient) / x.shape[0]
