r"""Logistic regression on labels ±1.

With \(\tilde x_i = y_i x_i\), \(u = \tilde X\beta\) and \(\varphi\) the sigmoid,

\[ L = \sum_i \log(1 + e^{-u_i}), \qquad \nabla L = -\tilde X^\top \varphi(-u), \qquad F = \tilde
X^\top \mathrm{diag}[\varphi(u)\varphi(-u)]\,\tilde X. \]

Loss and Fisher matrix are both *sums* over samples. (With both as means the natural gradient is the
same; with one sum and one mean it is wrong by a factor N.)

*Natural gradient.* \(F d = \nabla L\) is the normal equation of \(\min_d \sum_i w_i (\tilde x_i
\cdot d + (1 + e^{-u_i}))^2\), \(w = \varphi(u)\varphi(-u)\), because \(\varphi(-u)/w = 1/\varphi(u)
= 1 + e^{-u}\). The factor \(e^{-u}\) that makes \(F\) and \(\nabla L\) vanish on well separated
data is in the weights only, and `least_squares` takes weights of any spread.

*Newton flow.* \(F\) is also the Hessian, so along \(\dot\beta = -F^{+}\nabla L\) the gradient
decays as \(\nabla L(\beta_t) = e^{-t}\,\nabla L(\beta_0)\): see `_newton_flow.py`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.types import Scalar
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
    """Logistic regression: loss, Fisher matrices, exact natural gradient, and its flow.

    In all methods `x` are inputs of shape `(N, D)`, `y` labels ±1 of shape `(N,)`, and `beta`
    coefficients of shape `(D,)`.
    """

    def margins(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, " N"]:
        r"""\(u_i = y_i\,x_i \cdot \beta\).

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        return _margins(*_checked("Logistic.margins", beta, x, y))

    def loss(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Scalar:
        """The sum of log(1 + exp(-u)).

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        return jnp.sum(jax.nn.softplus(-_margins(*_checked("Logistic.loss", beta, x, y))))

    def gradient(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, " D"]:
        """The differential of the loss.

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        beta, x, y = _checked("Logistic.gradient", beta, x, y)
        return -(y * jax.nn.sigmoid(-_margins(beta, x, y))) @ x

    def fisher(self, beta: Float[Array, " D"], x: Float[Array, "N D"]) -> Float[Array, "D D"]:
        """The Fisher matrix summed over inputs, dense.

        For the inputs of the data it is the sample Fisher matrix. For M other inputs it is a
        Monte-Carlo estimate of M times the population's Fisher matrix. Nothing in this class
        inverts it.

        **Arguments:**

        - `beta`, `x`: coefficients and inputs.
        """
        x = checks.floating("Logistic.fisher", "x", x, 2)
        u = x @ _coefficients("Logistic.fisher", beta, x)
        return (x.T * jnp.exp(log_fisher(u))[None, :]) @ x

    def natural_gradient(
        self, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
    ) -> Float[Array, " D"]:
        """F⁺∇L, exact for logits of any spread.

        It overflows only where its own entries exceed the largest number (logits below -700).

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        """
        beta, x, y = _checked("Logistic.natural_gradient", beta, x, y)
        u = _margins(beta, x, y)
        return least_squares(y[:, None] * x, log_fisher(u), jax.nn.softplus(-u), -jnp.ones_like(u))

    def flow(
        self,
        beta: Float[Array, " D"],
        x: Float[Array, "N D"],
        y: Float[Array, " N"],
        t: float,
        tolerance: float = 1e-12,
    ) -> Float[Array, " D"]:
        r"""The natural gradient flow from `beta` at time t, without steps in time.

        The result is the solution of \(\nabla L(\beta_t) = e^{-t}\,\nabla L(\beta_0)\). Where
        rounding would hide the rows that decide it, the equation is solved in more digits.

        **Arguments:**

        - `beta`, `x`, `y`: the start and the data.
        - `t`: the time.
        - `tolerance`: on the change of the logits in the last Newton step, relative to the largest
            of them (at least 1).
        """
        beta, x, y = _checked("Logistic.flow", beta, x, y)
        example = "Logistic().flow(beta, x, y, t=1.0); for the limit call limit_direction"
        checks.positive("Logistic.flow", "t", t, zero=True, example=example)
        signed = np.asarray(y[:, None] * x, float)
        return jnp.asarray(
            newton_flow(np.asarray(beta, float), signed, float(t), tolerance), x.dtype
        )

    def limit_direction(
        self, x: Float[Array, "N D"], y: Float[Array, " N"], beta: Float[Array, " D"] | None = None
    ) -> Float[Array, " D"]:
        r"""The limit of \(\beta_t/t\) on separable data.

        It is \(X^+y\) if the rows of x are independent, and otherwise the solution of a linear
        program; of several solutions the lexicographic one, see `_limit.py`.

        **Arguments:**

        - `x`, `y`: the data.
        - `beta`: the start; defaults to zero. Only the linear program depends on it.
        """
        x, y = checks.labelled("Logistic.limit_direction", x, y)
        start = jnp.zeros(x.shape[1], x.dtype)
        if beta is not None:
            columns = "one coefficient per column of x"
            start = checks.vector("Logistic.limit_direction", "beta", beta, x.shape[1], columns)
        signed = np.asarray(y[:, None] * x, float)
        return jnp.asarray(limit_direction(signed, np.asarray(start, float)), x.dtype)

    def population_fisher(self, beta: Float[Array, " D"]) -> Float[Array, "D D"]:
        r"""\(E[\varphi(s)\varphi(-s)\,xx^\top]\) for standard normal inputs, per sample.

        The expectation is \(aI + (c - a)\,bb^\top\) with \(b = \beta/|\beta|\); for a and c see
        `_population.py`.

        **Arguments:**

        - `beta`: coefficients.
        """
        beta = checks.floating("Logistic.population_fisher", "beta", beta, 1)
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
        """The gradient of the data under the inverse of N times the population's Fisher matrix.

        **Arguments:**

        - `beta`, `x`, `y`: coefficients, inputs and labels.
        - `inputs`: a sample of the population, of at least D independent rows; defaults to standard
            normal inputs, in closed form. Inside `jit` the result is NaN for dependent rows.
        """
        owner = "Logistic.population_natural_gradient"
        beta, x, y = _checked(owner, beta, x, y)
        gradient = self.gradient(beta, x, y)
        count, dimension = x.shape
        if inputs is None:
            return gaussian_natural_gradient(beta, gradient) / count
        inputs = checks.floating(owner, "inputs", inputs, 2).astype(x.dtype)
        if inputs.shape[1] != dimension or inputs.shape[0] < dimension:
            shape = f"(M, {dimension}) with M >= {dimension}"
            cure = "draw more inputs, or leave them out for standard normal ones"
            raise checks.error(
                owner, "inputs", inputs, f"of shape {shape}, not {inputs.shape}; {cure}"
            )
        found, spans = sampled_natural_gradient(inputs, log_fisher(inputs @ beta), gradient)
        if checks.is_concrete(spans) and not bool(spans):
            wanted = f"rows of rank {dimension}, so that the Fisher matrix has an inverse"
            cure = "draw more inputs, or leave them out for standard normal ones"
            raise checks.error(owner, "inputs", inputs, f"{wanted}; {cure}")
        return found / count


def _checked(
    owner: str, beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
) -> tuple[Float[Array, " D"], Float[Array, "N D"], Float[Array, " N"]]:
    """Coefficients, inputs and labels as arrays of one dtype; raises if they do not fit."""
    x, y = checks.labelled(owner, x, y)
    return _coefficients(owner, beta, x), x, y


def _coefficients(
    owner: str, beta: Float[Array, " D"], x: Float[Array, "N D"]
) -> Float[Array, " D"]:
    """Coefficients in the dtype of the inputs; raises unless there is one per column."""
    return checks.vector(owner, "beta", beta, x.shape[1], "one coefficient per column of x").astype(
        x.dtype
    )


def _margins(
    beta: Float[Array, " D"], x: Float[Array, "N D"], y: Float[Array, " N"]
) -> Float[Array, " N"]:
    """The margins of arguments that are checked."""
    return y * (x @ beta)
