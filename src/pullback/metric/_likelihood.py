r"""The Fisher metric of a discrete distribution of your own, summed over a finite support.

\[ M = \sum_k p_k s_k s_k^\top, \qquad p_k = p(y_k \mid z), \quad s_k = \nabla_z \log p_k . \]

The columns \(\sqrt{p_k}\,s_k\) are a root, but where one value \(t\) has \(p_t \to 1\) its score is
a difference of numbers of order one, and drowns the others. Since \(\sum_k p_k s_k = 0\), it is
\(s_t = -\sum_{k \ne t} (p_k/p_t)\,s_k\), and the reflection that sends \(\sqrt p\) to \(-e_t\)
leaves one column less:

\[ S = B\,\mathrm{diag}(\sqrt{p_j})_{j \ne t}, \qquad b_j = s_j - \frac{\sqrt{p_t}}{1 +
\sqrt{p_t}}\,s_t . \]

\(B\) is of order one and nothing is divided by a probability. The score of an observed value \(y\)
is lifted in closed form: before the reflection \(\hat r_k = 1 - \delta_{ky}/p_y\). For
`Categorical` logits this is the root of `_categorical.py`.

**Assumes** \(\sum_k p_k = 1\); otherwise the root is NaN, and the error shows the sum.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._base import checks
from .._base.functions import canonical
from .._base.tree import Structure, common_dtype, structure
from .._base.types import Outputs, Scalar
from .._base.vector import finite_or_nan
from ._autodiff import on_vector
from ._base import AbstractLikelihood, AbstractRoot
from ._roots import overflows

_OWNER = "Likelihood(logpmf=...)"


class LikelihoodRoot(AbstractRoot):
    """The root B diag(√p_j) of the module."""

    log_scale: Float[Array, " q"]
    columns: Float[Array, "k q"]
    """B."""
    log_p: Float[Array, " K"]
    likeliest: Int[Array, ""]
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        return self.like.unravel(self.columns @ w)

    def unit_transpose(self, v):
        return self.columns.T @ self.like.ravel(v)

    def unit_lift(self, c):
        c = self.like.ravel(c)
        # With independent columns S⁺ = diag(p^-½) B⁺, in two factors; 0 wins where they overflow.
        w = self.pinv(self.columns) @ c
        present = (self.log_scale > -jnp.inf) & ((w != 0) | ~overflows(-2 * self.log_scale))
        half = jnp.exp(-jnp.where(present, self.log_scale, 0.0))
        apart = jnp.where(present, (w * half) * half, 0.0)
        return jnp.where(self.independent, apart, self.project(c * jnp.exp(-self.top)))

    @property
    def independent(self) -> Bool[Array, ""]:
        """Whether the columns of B, all of them present, are linearly independent."""
        q = self.columns.shape[1]
        if q > self.columns.shape[0]:
            return jnp.asarray(False)
        return (self._rank(self.columns) == q) & jnp.all(self.log_scale > -jnp.inf)

    @property
    def top(self) -> Scalar:
        """The logarithm of the longest column of S; zero if there is none."""
        lengths = jnp.linalg.norm(jax.lax.stop_gradient(self.columns), axis=0)
        logs = self.log_scale + jnp.log(jnp.where(lengths > 0, lengths, 1.0))
        top = jnp.max(jnp.where(lengths > 0, logs, -jnp.inf), initial=-jnp.inf)
        return jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))

    @property
    def scaled(self) -> Float[Array, "k q"]:
        """S e^-top."""
        return self.columns * jnp.exp(self.log_scale - self.top)[None, :]

    @property
    def resolved(self) -> Bool[Array, ""]:
        """Whether S has the rank of B in floating point; not so where the sample is saturated."""
        present = jnp.where((self.log_scale > -jnp.inf)[None, :], self.columns, 0.0)
        return self._rank(self.scaled) == self._rank(present)

    def project(self, c: Float[Array, " k"]) -> Float[Array, " q"]:
        """Return e^-ℓ S⁺ (e^top c) = Bᵀ M⁺ (e^top c), which divides by no probability."""
        inverse = self.pinv(self.scaled)
        return self.columns.T @ (inverse.T @ (inverse @ c)) * jnp.exp(-self.top)

    def pinv(self, matrix: Array) -> Array:
        """Return the pseudo-inverse, NaN of a matrix that is not finite."""
        return jnp.linalg.pinv(finite_or_nan(matrix))

    def _rank(self, matrix: Array) -> Array:
        s = jnp.linalg.svd(finite_or_nan(jax.lax.stop_gradient(matrix)), compute_uv=False)
        return jnp.sum(s > 10 * max(matrix.shape) * jnp.finfo(s.dtype).eps * jnp.max(s))


class Likelihood(AbstractLikelihood):
    """A discrete distribution given by its log-probabilities on a finite support.

    ```python
    def logpmf(z, y):  # a binomial of 5 trials with logit z
        return log_choose(5, y) + y * jax.nn.log_sigmoid(z) + (5 - y) * jax.nn.log_sigmoid(-z)

    metric = pullback.metric.Likelihood(logpmf, jnp.arange(6.0))
    ```

    Targets are values of the support. A sample has one row of A less than the support has values.
    """

    logpmf: Callable[[Outputs, Any], Scalar]
    values: Array
    nonsingular: ClassVar[bool] = False
    graded: ClassVar[bool] = True
    score_in_range: ClassVar[bool] = True

    def __init__(self, logpmf: Callable[[Outputs, Any], Scalar], support: Any):
        """Make a family from its log-probabilities.

        **Arguments:**

        - `logpmf`: `logpmf(outputs, y)`, the logarithm of the probability of one value, one number,
            smooth in the outputs of one sample. Compute it as a logarithm (`log_sigmoid`), so that
            it stays finite where a probability underflows.
        - `support`: all values y, stacked along the first axis, at least two. Their probabilities
            must sum to one.
        """
        checks.function("Likelihood", "logpmf", logpmf, "Likelihood(lambda z, y: ..., support)")
        support = jnp.asarray(support)
        if support.ndim == 0 or support.shape[0] < 2:
            wanted = "an array with at least two values along its first axis"
            example = "Likelihood(logpmf, jnp.arange(10))"
            raise checks.error("Likelihood", "support", support, wanted, example)
        self.logpmf = canonical(logpmf)
        self.values = support

    def root(self, z):
        like, log_p, scores = structure(z), *self._scores(z)
        top = jnp.argmax(log_p)
        rest = _others(top, log_p.shape[0])
        log_q, others = log_p[rest], scores[rest]
        own = -jnp.exp(log_q - log_p[top]) @ others
        half = jnp.exp(log_p[top] / 2)
        columns = (others - (half / (1 + half) * own)[None, :]).T
        columns = jnp.where(self._is_normalised(log_p), columns, jnp.nan)
        return LikelihoodRoot(log_q / 2, columns, log_p, top, like)

    def _at(self, z: Outputs) -> Array:
        """The values of the support; floating ones in the precision of the outputs."""
        floating = jnp.issubdtype(self.values.dtype, jnp.floating)
        return self.values.astype(structure(z).dtype) if floating else self.values

    def _log_p(self, z: Outputs) -> Float[Array, " K"]:
        """The logarithms of the probabilities of the support."""
        x = structure(z).ravel(z)
        return jax.vmap(lambda y: on_vector(lambda z: self.logpmf(z, y), z, _OWNER)(x))(self._at(z))

    def _scores(self, z: Outputs) -> tuple[Float[Array, " K"], Float[Array, "K k"]]:
        """The logarithms of the probabilities, and their gradients."""
        x = structure(z).ravel(z)

        def one(y):
            return jax.value_and_grad(on_vector(lambda z: self.logpmf(z, y), z, _OWNER))(x)

        log_p, scores = jax.vmap(one)(self._at(z))
        # A value of probability zero is absent; its score need not be finite.
        return log_p, jnp.where((log_p > -jnp.inf)[:, None], scores, 0.0)

    def _is_normalised(self, log_p: Float[Array, " K"]) -> Bool[Array, ""]:
        off = jnp.abs(jnp.sum(jnp.exp(log_p)) - 1)
        return off <= 10 * jnp.sqrt(jnp.finfo(log_p.dtype).eps)

    def apply(self, z, v):
        root = self.root(z)
        return root.mv(root.transpose(v))

    def sharp(self, z, c):
        root = self.root(z)
        inverse = root.pinv(root.scaled)
        twice = inverse.T @ (inverse @ (root.like.ravel(c) * jnp.exp(-root.top)))
        return root.like.unravel(twice * jnp.exp(-root.top))

    def divergence(self, u, z):
        log_u, log_z = self._log_p(u), self._log_p(z)
        present = log_u > -jnp.inf
        gap = jnp.where(present, log_u, 0.0) - jnp.where(present, log_z, 0.0)
        return jnp.sum(jnp.where(present, jnp.exp(log_u) * gap, 0.0))

    def _is_value(self, targets: Any) -> Bool[Array, " K"]:
        """Which value of the support the targets of one sample are."""
        y, values = jnp.asarray(targets), self.values
        if y.shape != values.shape[1:]:
            raise ValueError(
                f"{_OWNER} targets of one sample must have the shape {values.shape[1:]} of a value "
                f"of the support, got {y.shape}."
            )
        kind = common_dtype(y.dtype, values.dtype)
        same = values.astype(kind) == y.astype(kind)[None]
        return jnp.all(same.reshape(values.shape[0], -1), axis=1)

    def admits(self, z, targets):
        return jnp.any(self._is_value(targets))

    @property
    def support(self) -> str:
        """Which targets the family admits."""
        return f"the {self.values.shape[0]} values of its support"

    def negative_log_likelihood(self, z, targets):
        # By its place in the support: a function of integers stays one.
        y = self._at(z)[jnp.argmax(self._is_value(targets))]
        return -on_vector(lambda z: self.logpmf(z, y), z, _OWNER)(structure(z).ravel(z))

    def sample(self, key, z):
        return self._at(z)[jax.random.categorical(key, self._log_p(z))]

    def likelihood_lift(self, z, targets):
        root = self.root(z)
        log_p, top = root.log_p, root.likeliest
        seen = self._is_value(targets)
        rest = _others(top, log_p.shape[0])
        half = jnp.exp(log_p[top] / 2)
        # √p_t r̂_t; if t was seen, 1 - 1/p_t is the probability of the others.
        others = jnp.sum(jnp.exp(log_p[rest]))
        own = jnp.where(seen[top], -others / half, half) / (1 + half)
        lifted = 1 - jnp.where(seen[rest], jnp.exp(-log_p[rest]), 0.0) - own
        # S r̂ e^-2top, whose projection on the row space is least in norm.
        weights = jnp.exp(2 * (root.log_scale - root.top))
        seen_weight = jnp.where(seen[rest], jnp.exp(-2 * root.top), 0.0)
        c = root.columns @ (weights * (1 - own) - seen_weight)
        least = root.project(c) * jnp.exp(root.top)
        return jnp.where(root.independent | ~root.resolved, lifted, least)

    def complaint(self, z):
        total = float(jnp.sum(jnp.exp(self._log_p(z))))
        if np.isfinite(total) and abs(total - 1) > 10 * np.sqrt(jnp.finfo(structure(z).dtype).eps):
            return (
                f"{_OWNER}: the probabilities of the {self.values.shape[0]} values of the support "
                f"sum to {total:.9g}, not to 1. Give the whole support, or normalise logpmf."
            )
        return f"{_OWNER} or its gradient is not finite at these outputs."


def _others(top: Int[Array, ""], count: int) -> Int[Array, " q"]:
    """The places of all values but one."""
    places = jnp.arange(count - 1)
    return jnp.where(places >= top, places + 1, places)
