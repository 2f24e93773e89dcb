r"""The Fisher metric as the covariance of scores, estimated from samples.

The outputs are the log-probabilities of the batch, \(z_i = \log p_\theta(x_i)\), and

\[ M = \mathrm{diag}(w) - \frac{w w^\top}{W}, \qquad W = \sum_i w_i, \]

one form on all of \(R^N\), so that \(J^\top M J\) is the (weighted) covariance of the scores
\(\nabla_\theta \log p_\theta(x_i)\): an unnormalised model needs no partition function, because
centring removes it. In variational Monte Carlo this is the quantum geometric tensor (stochastic
reconfiguration). It is the Fisher matrix in expectation if the samples come from the model.

With \(n = \sqrt w/\sqrt W\), a unit vector, \(S = \mathrm{diag}(\sqrt w)\,(I - nn^\top)\), in
\(O(N)\) memory:

\[ S x = \sqrt w \circ x - w\,\frac{\sqrt w^\top x}{W}, \qquad S^\top v = \sqrt w \circ \Bigl(v -
\frac{w^\top v}{W}\Bigr), \qquad S^+ c = \frac{c}{\sqrt w} \ \text{ if } \sum_i c_i = 0 . \]

(\(S S^\top = \mathrm{diag}(w) - ww^\top/W\), and \(c/\sqrt w \perp n\), hence \(c/\sqrt w\) is in
the range of \(S^\top\).) A sample of weight zero is absent.

Several outputs per sample, (N, k) or a tree of arrays, are as many families: each output is centred
by its own mean, and M is the sum over outputs. For \(\log\psi = a + \mathrm{i}b\) as the pair
\((a, b)\) this is the real part of the quantum geometric tensor,

\[ \mathrm{Re}\,\bigl\langle\overline{(O - \langle O\rangle)}\,(O - \langle O\rangle)\bigr\rangle,
\qquad O = \partial_\theta\log\psi ; \]

with \(\log p = 2\,\mathrm{Re}\log\psi\) for the output it is four times that of the modulus.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.tree import Structure, split, structure
from ._base import AbstractMetric, AbstractRoot
from ._roots import DiagonalRoot


class Columns(eqx.Module):
    """Outputs of a batch as an array (N, q), a row per sample."""

    like: Structure = eqx.field(static=True)
    """Of the outputs of one sample."""
    count: int = eqx.field(static=True)

    def read(self, tree: Any) -> Float[Array, "N q"]:
        """The array of a tree."""
        tree = split(tree)[0]
        shapes = tuple(jnp.shape(x) for x in jax.tree.leaves(tree))
        wanted = tuple((self.count, *shape) for shape in self.like.shapes)
        if shapes != wanted:
            raise ValueError(f"expected a tree with shapes {wanted}, got shapes {shapes}.")
        return jax.vmap(self.like.ravel)(tree)

    def write(self, columns: Float[Array, "N q"]) -> Any:
        """The tree of an array."""
        return jax.vmap(self.like.unravel)(columns)


class ScoresRoot(AbstractRoot):
    """S = (I - w 1ᵀ/W) diag(√w) for each output of a sample."""

    log_scale: Float[Array, " m"]
    weights: Float[Array, " N"]
    columns: Columns

    def unit(self, w):
        w = _present(self.weights, w.reshape(self.columns.count, -1))
        mean = self.weights / _total(self.weights)
        return self.columns.write(w - mean[:, None] * jnp.sum(w, axis=0, keepdims=True))

    def unit_transpose(self, v):
        return _centre_vector(self.weights, self.columns.read(v)).ravel()

    def unit_lift(self, c):
        c = _centre_covector(self.weights, self.columns.read(c))
        return _divide(c, self.weights).ravel()

    @property
    def samples(self):
        log_scale = jnp.zeros((self.columns.count, self.columns.like.size), self.log_scale.dtype)
        return DiagonalRoot(log_scale, self.columns.like)

    @property
    def mean(self):
        return self.weights / _total(self.weights)

    @property
    def removed(self):
        # Of each output Σ w_i J_i/√W, the mean row as large as it is in A.
        one = self.weights / jnp.sqrt(_total(self.weights))
        each = jnp.eye(self.columns.like.size, dtype=one.dtype)
        return jax.vmap(lambda e: self.columns.write(one[:, None] * e[None, :]))(each)


def _total(weights: Array) -> Array:
    """W, or 1 if all weights are zero."""
    total = jnp.sum(weights)
    return jnp.where(total == 0, 1.0, total)


def _present(weights: Array, x: Array) -> Array:
    """An array (N, q), zero where the weight is."""
    return jnp.where(weights[:, None] == 0, 0.0, x)


def _divide(c: Array, weights: Array) -> Array:
    """c/w, zero where the weight is."""
    return _present(weights, c / jnp.where(weights == 0, 1.0, weights)[:, None])


def _centre_vector(weights: Array, v: Array) -> Array:
    """v minus its weighted mean, on the samples that are present."""
    v = _present(weights, v)
    share = (weights / _total(weights))[:, None]
    # Twice: the first time the rounding of the mean stays, that of all there was.
    for _ in range(2):
        v = _present(weights, v - jnp.sum(share * v, axis=0, keepdims=True))
    return v


def _centre_covector(weights: Array, c: Array) -> Array:
    """The orthogonal projection of c on the range of M: sum zero, and zero where the weight is."""
    c = _present(weights, c)
    count = jnp.sum((weights != 0).astype(weights.dtype))
    return _present(weights, c - jnp.sum(c, axis=0, keepdims=True) / jnp.maximum(count, 1.0))


class Scores(AbstractMetric):
    """The covariance of scores on the log-probabilities of a batch.

    The outputs are those of the whole batch: log-probabilities of shape (N,), or (N, k) and trees
    of such arrays, where each output of a sample is centred by its own mean. The divergence, with
    δ = u - z, is W times the KL divergence between the weighted samples reweighted by e^δ and the
    weighted samples: KL(p_u ‖ p_z) from samples; summed over the outputs of a sample if there are
    several.

    **Arguments:**

    - `weights`: the weights of the samples, non-negative, which `weigh` sets from the measure.
        `None` means 1/N each.
    """

    weights: Float[Array, " N"] | None = None
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
            raise checks.error(
                "Scores",
                "weights",
                self.weights,
                "a vector of non-negative weights, one per sample",
                "Scores(), with the weights in the measure",
            )

    def _read(self, z) -> tuple[Array, Array, Columns]:
        """The outputs (N, q), the weights of the samples, and how to read others like them."""
        leaves = jax.tree.leaves(split(z)[0])
        shapes = [x.shape for x in leaves]
        counts = {shape[:1] for shape in shapes}
        given = None if self.weights is None else jnp.shape(self.weights)
        if len(counts) != 1 or () in counts or given not in (None, *counts):
            raise ValueError(
                "Scores() takes log-probabilities of shape (N,), or several per sample, (N, k), and"
                f" as many weights, got {shapes[0] if len(shapes) == 1 else shapes} and {given}. "
                "Return one log-probability per sample."
            )
        count = leaves[0].shape[0]
        one = structure(jax.tree.map(lambda x: x[0], split(z)[0]))
        columns = Columns(one, count)
        weights = (
            jnp.full(count, 1 / count, one.dtype)
            if self.weights is None
            else jnp.asarray(self.weights).astype(one.dtype)
        )
        return columns.read(z), weights, columns

    def root(self, z):
        _, weights, columns = self._read(z)
        present = weights != 0
        half = jnp.where(present, jnp.log(jnp.where(present, weights, 1.0)) / 2, -jnp.inf)
        return ScoresRoot(jnp.repeat(half, columns.like.size), weights, columns)

    def apply(self, z, v):
        _, weights, columns = self._read(z)
        return columns.write(weights[:, None] * _centre_vector(weights, columns.read(v)))

    def sharp(self, z, c):
        _, weights, columns = self._read(z)
        inside = _divide(_centre_covector(weights, columns.read(c)), weights)
        return columns.write(_centre_covector(weights, inside))

    def divergence(self, u, z):
        z, weights, columns = self._read(z)
        gap = _present(weights, columns.read(u) - z)
        share = (weights / _total(weights))[:, None]
        log_mean = jax.nn.logsumexp(gap, b=share, axis=0, keepdims=True)
        # A probability that becomes zero adds nothing.
        lost = gap == -jnp.inf
        log_ratio = jnp.where(lost, 0.0, gap - log_mean)
        each = jnp.where(lost, 0.0, jnp.exp(log_ratio) * log_ratio)
        return jnp.sum(weights[:, None] * each)

    def weigh(self, weights):
        return Scores(weights)

    def complaint(self, z):
        example = "Scores(), with the weights in the measure"
        wanted = "finite and non-negative"
        return str(checks.error("Scores", "weights", self.weights, wanted, example))
