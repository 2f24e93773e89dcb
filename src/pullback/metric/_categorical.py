r"""The Fisher metric of categorical variables in their logits: \(M = \mathrm{diag}(p) - pp^\top\),
\(p\) the softmax.

It has rank \(C - 1\), and so has the root used here. Let \(k\) be the likeliest class and

\[ a_k = \sqrt{p_k}, \qquad a_i = \frac{p_i}{1 + \sqrt{p_k}} \ (i \ne k), \qquad \sum_i a_i = 1. \]

Then \(S = \hat S\,\mathrm{diag}(\sqrt{p_j})_{j \ne k}\) with \(\hat S w = w - a\,(1^\top w)\),
\(w_k = 0\). It is \(\mathrm{diag}(\sqrt p)\) times the Householder reflection that sends \(\sqrt
p\) to \(-e_k\), without its k-th column. Check, for \(i, l \ne k\):

\[ \sum_j p_j(\delta_{ij} - a_i)(\delta_{lj} - a_l) = p_i\delta_{il} - \frac{2 p_i p_l}{1 +
\sqrt{p_k}} + p_i p_l \frac{1 - p_k}{(1 + \sqrt{p_k})^2} = p_i\delta_{il} - p_i p_l . \]

A whitened row is \(\sqrt{p_j}\,(J_j - a^\top J)\): every entry has full relative accuracy however
small \(p_j\) is, because \(1 - p_k\) is never formed. For \(c\) with \(1^\top c = 0\) (any loss
that ignores a common shift of the logits), \(\hat r_j = c_j/p_j - (c_k/\sqrt{p_k})/(1 +
\sqrt{p_k})\).
"""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from .._base.tree import Structure, split, structure
from ._base import AbstractLikelihood, AbstractRoot
from ._log_loss import log_softplus
from ._roots import overflows


class CategoricalRoot(AbstractRoot):
    """The rank C - 1 root, over the leading axes of one array of logits."""

    log_scale: Float[Array, " q"]
    log_p: Float[Array, "batch C"]
    a: Float[Array, "batch C"]
    """The vector a of the module."""
    likeliest: Int[Array, " batch"]
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        batch, classes = self.log_p.shape
        padded = _insert(w.reshape(batch, classes - 1), self.likeliest)
        return self.like.unravel(
            (padded - self.a * jnp.sum(padded, axis=-1, keepdims=True)).ravel()
        )

    def unit_transpose(self, v):
        v = self.like.ravel(v).reshape(self.log_p.shape)
        return _delete(v - jnp.sum(self.a * v, axis=-1, keepdims=True), self.likeliest).ravel()

    def unit_lift(self, c):
        # Project on the range of M, {c : Σc = 0}, then use the closed form, with c_k = -Σ_{j≠k} c_j
        # for its relative accuracy.
        c = self.like.ravel(c).reshape(self.log_p.shape)
        c = _delete(_centred(c, self.log_p), self.likeliest)
        log_p = _delete(self.log_p, self.likeliest)
        half = jnp.exp(-jnp.where((c == 0) & overflows(-log_p), 0.0, log_p) / 2)
        return (c * half * half - _shared(-jnp.sum(c, axis=-1), self.log_p)).ravel()


def _centred(c: Array, log_p: Array) -> Array:
    """The projection of c on {c : Σc = 0}."""
    eps = float(jnp.finfo(c.dtype).eps)
    total = jnp.sum(c, axis=-1, keepdims=True)
    size = jnp.sum(jnp.abs(c), axis=-1, keepdims=True)
    # A sum that is zero up to rounding is not spread over the classes: on an unlikely class, the
    # lift would divide that rounding error by p. Where one class has p ≈ 1, c = p - 1 of a loss of
    # order one is rounded like a number of order one.
    others = jnp.sum(jnp.exp(log_p), axis=-1, keepdims=True) - jnp.exp(
        jnp.max(log_p, axis=-1, keepdims=True)
    )
    saturated = others <= math.sqrt(eps)
    rounding = jnp.abs(total) <= 2 * eps * jnp.where(saturated, 1 + size, size)
    return c - jnp.where(rounding, 0.0, total / c.shape[-1])


def _shared(c_k: Array, log_p: Array) -> Array:
    """(c_k/√p_k)/(1 + √p_k), the term that all classes share."""
    top = jnp.exp(jnp.max(log_p, axis=-1) / 2)
    return (c_k / top / (1 + top))[:, None]


def _delete(x: Array, k: Array) -> Array:
    """Each row without its entry `k`."""
    # Two shifted copies are much less to compile, and to run, than an indexed look-up.
    place = jnp.arange(x.shape[-1] - 1)[None, :]
    return jnp.where(place >= k[:, None], x[:, 1:], x[:, :-1])


def _insert(x: Array, k: Array) -> Array:
    """Put a zero at position `k` of each row."""
    place, k = jnp.arange(x.shape[-1] + 1)[None, :], k[:, None]
    before, after = jnp.pad(x, ((0, 0), (0, 1))), jnp.pad(x, ((0, 0), (1, 0)))
    return jnp.where(place < k, before, jnp.where(place > k, after, 0.0))


class Categorical(AbstractLikelihood):
    """Categorical variables; the last axis of the outputs holds the logits.

    The outputs are one array, whose leading axes are independent variables. Targets are integer
    classes (of the shape of the leading axes) or probabilities (of the shape of the outputs).
    Probabilities that do not sum to one are counts: the loss is -Σ y_j log p_j all the same.
    """

    nonsingular: ClassVar[bool] = False
    graded: ClassVar[bool] = True
    event_ndim: ClassVar[int | None] = 1
    score_in_range: ClassVar[bool] = True

    def root(self, z):
        z, like = _logits(z)
        log_p = jax.nn.log_softmax(z.reshape(-1, z.shape[-1]), axis=-1)
        k = jnp.argmax(log_p, axis=-1)
        top = jnp.exp(jnp.max(log_p, axis=-1, keepdims=True) / 2)
        likeliest = jnp.arange(z.shape[-1])[None, :] == k[:, None]
        a = jnp.where(likeliest, top, jnp.exp(log_p) / (1 + top))
        return CategoricalRoot((_delete(log_p, k) / 2).ravel(), log_p, a, k, like)

    def apply(self, z, v):
        def one(z, v):
            p = jax.nn.softmax(z, axis=-1)
            return p * (v - jnp.sum(p * v, axis=-1, keepdims=True))

        return jax.tree.map(one, split(z)[0], v)

    def sharp(self, z, c):
        def one(z, c):
            # M v = c for v = c/p up to a shift, if Σc = 0; M⁺c is the v with Σv = 0.
            c = _centred(c, jax.nn.log_softmax(z, axis=-1))
            p = jax.nn.softmax(z, axis=-1)
            v = c / jnp.where((c == 0) & (p < jnp.finfo(p.dtype).tiny), 1.0, p)
            return v - jnp.mean(v, axis=-1, keepdims=True)

        return jax.tree.map(one, split(z)[0], c)

    def divergence(self, u, z):
        def one(u, z):
            log_u = jax.nn.log_softmax(u)
            log_z = jax.nn.log_softmax(z)
            return jnp.sum(jnp.exp(log_u) * (log_u - log_z))

        return sum(jax.tree.leaves(jax.tree.map(one, split(u)[0], split(z)[0])))

    def admits(self, z, targets):
        z, _ = _logits(z)
        targets = jnp.asarray(targets)
        if _are_classes(targets, z):
            return jnp.all((targets >= 0) & (targets < z.shape[-1]))
        return jnp.all(_probabilities(targets, z) >= 0)

    @property
    def support(self):
        return "classes 0, ..., C - 1, or probabilities (not negative)"

    def negative_log_likelihood(self, z, targets):
        z, _ = _logits(z)
        return -jnp.sum(_probabilities(targets, z) * jax.nn.log_softmax(z, axis=-1))

    def sample(self, key, z):
        return jax.random.categorical(key, _logits(z)[0], axis=-1)

    def likelihood_lift(self, z, targets):
        root = self.root(z)
        z, _ = _logits(z)
        y = _probabilities(targets, z).reshape(root.log_p.shape)
        total = jnp.sum(y, axis=-1, keepdims=True)
        y = _delete(y, root.likeliest)
        log_p = _delete(root.log_p, root.likeliest)
        # With t = Σy, c_j/p_j = t - y_j/p_j, where y_j = 0 must win over an overflowing 1/p_j.
        ratio = jnp.where(y == 0, 0.0, y * jnp.exp(-log_p))
        c_k = -jnp.sum(total * jnp.exp(log_p) - y, axis=-1)
        return (total - ratio - _shared(c_k, root.log_p)).ravel()

    def log_loss(self, z, targets):
        z, _ = _logits(z)
        classes = z.shape[-1]
        # Row j holds the logits of all classes but j.
        others = jnp.where(
            jnp.eye(classes, dtype=bool),
            -jnp.inf,
            jnp.broadcast_to(z[..., None, :], (*z.shape, classes)),
        )
        odds = logsumexp(others, axis=-1) - z
        return logsumexp(jnp.log(_probabilities(targets, z)) + log_softplus(odds))


def _logits(z) -> tuple[Array, Structure]:
    """The one array of logits of the outputs, and the structure of the outputs."""
    leaves = jax.tree.leaves(split(z)[0])
    if len(leaves) != 1 or leaves[0].ndim == 0 or leaves[0].shape[-1] < 2:
        raise ValueError(
            f"Categorical() takes one array of logits with at least 2 classes on its last axis, "
            f"got outputs of shapes {[x.shape for x in leaves]}. For several heads use "
            f"Product({{'a': Categorical(), ...}}); for one logit use Bernoulli()."
        )
    return leaves[0], structure(z)


def _are_classes(targets: Array, z: Array) -> bool:
    """Whether targets are integer classes, not probabilities."""
    return jnp.issubdtype(targets.dtype, jnp.integer) and targets.shape == z.shape[:-1]


def _probabilities(targets, z: Array) -> Array:
    """Targets as probabilities of the shape of the logits."""
    targets = jnp.asarray(targets)
    if _are_classes(targets, z):
        return jax.nn.one_hot(targets, z.shape[-1], dtype=z.dtype)
    if targets.shape == z.shape and not jnp.issubdtype(targets.dtype, jnp.complexfloating):
        return targets.astype(z.dtype)
    raise ValueError(
        f"Categorical targets must be integer classes of shape {z.shape[:-1]} or probabilities "
        f"of shape {z.shape}, got {targets.dtype} of shape {targets.shape}."
    )
