r"""The contract of a metric on the outputs, and of a likelihood.

At a point \(z\) of the outputs a metric is a positive semi-definite form \(M(z) = S S^\top\). The
library never squares it: it works with the *root* \(S\), which whitens the Jacobian, \(A = S^\top
J\). The root is kept in the graded form

\[ S = \hat S\, \mathrm{diag}(e^{\ell}), \]

\(\hat S\) of order one and \(\ell\) = `log_scale` a vector of logarithms, because a saturated model
(logits of ±1000) has entries of \(S\) that differ by more orders of magnitude than a float holds,
and yet a bounded natural gradient.

All methods act on **one sample**: `z`, `v`, `c` are pytrees of the shape of one sample's outputs.
Families with a natural event shape (a scalar for Bernoulli and Poisson, the last axis for
Categorical and Gaussian) take any leading axes: these are independent factors, and the metric is
block diagonal over them. The average over samples is not here: `_problem/measure.py` takes it.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.show import settings
from .._base.tree import is_coordinate, structure
from .._base.types import OutputCovector, Outputs, OutputVector, Scalar
from ._indefinite import describe, is_indefinite


class AbstractRoot(eqx.Module):
    r"""The root \(S = \hat S\,\mathrm{diag}(e^\ell)\) of a metric at a point.

    The root is a linear operator from \(R^q\) to output covectors.
    """

    log_scale: eqx.AbstractVar[Float[Array, " q"]]
    r"""The logarithms \(\ell\) of the grading; `-inf` for a direction that is absent.

    This is a field, not a property, because `vmap` stacks it.
    """

    @abc.abstractmethod
    def unit(self, w: Float[Array, " q"]) -> OutputCovector:
        r"""\(\hat S w\).

        **Arguments:**

        - `w`: a vector in the whitened space.
        """

    @abc.abstractmethod
    def unit_transpose(self, v: OutputVector) -> Float[Array, " q"]:
        r"""\(\hat S^\top v\).

        **Arguments:**

        - `v`: an output vector.
        """

    @abc.abstractmethod
    def unit_lift(self, c: OutputCovector) -> Float[Array, " q"]:
        r"""\(\hat r = e^{-\ell} S^+ c\): the lifted covector with its grading divided out.

        If \(c\) lies in the range of \(S\) then \(S\,(e^\ell \hat r) = c\); otherwise that is the
        orthogonal projection of \(c\).

        **Arguments:**

        - `c`: an output covector.
        """

    def unreached(self, c: OutputCovector) -> OutputCovector:
        """What of c is on entries that no column reaches: outside the range, and no rounding.

        Zero by default: then the part outside is what the lift does not return, and where that is
        less than the rounding of a loss of order one it does not count.

        **Arguments:**

        - `c`: an output covector.
        """
        return jax.tree.map(jnp.zeros_like, c)

    @property
    def samples(self) -> "AbstractRoot | None":
        r"""The roots of the samples, stacked, if there is one per sample; `None` otherwise.

        A metric that couples samples may declare that it is one root per sample and then a mean
        that is taken off: \(\hat S^\top v\) is \(\hat S_n^\top v_n\), sample after sample, minus
        their mean over samples with the weights `mean`. Solvers then use the structure of the
        model, sample by sample.
        """
        return None

    @property
    def mean(self) -> Float[Array, " N"] | None:
        """The weights, of sum one or zero, of the mean that is taken off after `samples`.

        `None` if none is.
        """
        return None

    @property
    def removed(self) -> OutputCovector | None:
        """What is taken off the rows, as covectors c with a leading axis; `None` for nothing.

        Rows of a metric that is `centred` are differences of larger numbers, and have the rounding
        of the norms of Jᵀc.
        """
        return None

    @property
    def is_finite(self) -> Array:
        """Whether the root is that of a metric; a logarithm of -inf is an absent row, and fine."""
        leaves = [x for x in jax.tree.leaves(self) if is_coordinate(x)]
        good = [jnp.all(~jnp.isnan(x) & (x != jnp.inf)) for x in leaves]
        return jnp.all(jnp.stack(good)) if good else jnp.asarray(True)

    @property
    def size(self) -> int:
        """The number q of columns of the root, at least the rank of the metric."""
        return self.log_scale.shape[-1]

    def mv(self, w: Float[Array, " q"]) -> OutputCovector:
        """S w.

        **Arguments:**

        - `w`: a vector in the whitened space.
        """
        return self.unit(jnp.exp(self.log_scale) * w)

    def transpose(self, v: OutputVector) -> Float[Array, " q"]:
        """Sᵀ v.

        **Arguments:**

        - `v`: an output vector.
        """
        return jnp.exp(self.log_scale) * self.unit_transpose(v)

    def lift(self, c: OutputCovector) -> Float[Array, " q"]:
        """S⁺ c: the r of least norm with S r = c.

        If c is not in the range of S, S r is the orthogonal projection of c on that range.

        **Arguments:**

        - `c`: an output covector.
        """
        return jnp.exp(self.log_scale) * self.unit_lift(c)


class AbstractMetric(eqx.Module):
    """A metric on the outputs of a model: `root`, `apply`, `sharp`, and what it declares.

    Engines use the declarations below, never the type. `pullback.testing.check_metric` checks a
    metric against its declarations. CONTRIBUTING explains how to add a metric.
    """

    nonsingular: eqx.AbstractClassVar[bool]
    """Whether M(z) is invertible at every z, so that every covector is in its range."""

    graded: ClassVar[bool] = False
    """Whether the entries of `log_scale` may differ by many orders of magnitude.

    The entries do so where a family saturates (logits of ±1000).
    """

    couples_samples: ClassVar[bool] = False
    """Whether the metric is one form on the outputs of the whole batch (`Scores`).

    All other metrics are one form per sample.
    """

    constant: ClassVar[bool] = False
    """Whether M(z) is the same at every z and in every sample."""

    centred: ClassVar[bool] = False
    """Whether something is taken off the rows, e.g. their weighted mean (`Scores`).

    They are then differences of larger numbers, and have the rounding of those; the root declares
    which (`AbstractRoot.removed`)."""

    event_ndim: ClassVar[int | None] = None
    """How many trailing axes of an output array the metric couples.

    Leading axes and other leaves are independent factors, over which M is block diagonal. 0: M is
    diagonal. `None`: any two entries may be coupled.
    """

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def root(self, z: Outputs) -> AbstractRoot:
        """The root S of M(z) = S Sᵀ.

        **Arguments:**

        - `z`: the outputs of one sample.
        """

    @abc.abstractmethod
    def apply(self, z: Outputs, v: OutputVector) -> OutputCovector:
        """M(z) v.

        **Arguments:**

        - `z`: the outputs of one sample.
        - `v`: an output vector.
        """

    @abc.abstractmethod
    def sharp(self, z: Outputs, c: OutputCovector) -> OutputVector:
        """M(z)⁺ c, the ambient gradient when c is the differential of a loss.

        **Arguments:**

        - `z`: the outputs of one sample.
        - `c`: an output covector.
        """

    def lift(self, z: Outputs, c: OutputCovector) -> Float[Array, " q"]:
        """The r of least norm with S r = c.

        **Arguments:**

        - `z`: the outputs of one sample.
        - `c`: an output covector.
        """
        return self.root(z).lift(c)

    def divergence(self, u: Outputs, z: Outputs) -> Scalar:
        """The divergence ρ(u, z) whose Hessian in `u` at `u = z` is M(z).

        For Fisher metrics it is KL(p_u ‖ p_z).

        **Arguments:**

        - `u`: the outputs that move.
        - `z`: the outputs that `u` is compared with.
        """
        raise TypeError(f"{type(self).__name__} is a metric without a divergence.")

    @property
    def has_divergence(self) -> bool:
        """Whether `divergence` is defined."""
        return type(self).divergence is not AbstractMetric.divergence

    @property
    def has_log_loss(self) -> bool:
        """Whether the metric is a likelihood that defines `log_loss`."""
        return False

    def observe(self, targets: Any, index: Array) -> "AbstractMetric":
        """The metric of one sample, for metrics that depend on more than the outputs.

        **Arguments:**

        - `targets`: the targets of the sample, `None` if the batch has none.
        - `index`: the position of the sample in the batch.
        """
        return self

    def weigh(self, weights: Float[Array, " N"]) -> "AbstractMetric":
        """The metric with the weights of the measure, for metrics that couple the samples.

        All other metrics are weighted outside, sample by sample.

        **Arguments:**

        - `weights`: the weight of each sample.
        """
        return self

    def complaint(self, z: Outputs) -> str:
        """Why M(z) is not a metric, in one sentence.

        Called outside `jit` after a root turned out not to be finite.

        **Arguments:**

        - `z`: the outputs of one sample.
        """
        name, like = type(self).__name__, structure(z)
        eye = jnp.eye(like.size, dtype=like.dtype)
        matrix = jax.vmap(lambda v: like.ravel(self.apply(z, like.unravel(v))))(eye).T
        if is_indefinite(matrix):
            return describe(matrix, name, "A metric must not be negative in any direction.", z)
        return f"{name} is not finite at these outputs."


class AbstractLikelihood(AbstractMetric):
    """The Fisher metric of a family of distributions, with the loss of that family.

    With `Composite(..., loss=None)` the loss is `negative_log_likelihood`, and `likelihood_lift`
    lifts its differential in closed form. A loss that is given as a function can only be
    differentiated, and its differential underflows where the model saturates.
    """

    score_in_range: ClassVar[bool] = False
    """Whether the differential of the negative log-likelihood is in the range of M.

    It must be for all targets that the family admits; a nonsingular metric need not say so."""

    def admits(self, z: Outputs, targets: Any) -> Array:
        """Whether these can be targets of one sample, e.g. classes from 0 to C - 1.

        Others are refused (`RESULTS.bad_targets`).

        **Arguments:**

        - `z`: the outputs of one sample.
        - `targets`: the targets of one sample.
        """
        return jnp.asarray(True)

    @property
    def support(self) -> str:
        """Which targets the family admits, for the message about others."""
        return "any real numbers"

    @abc.abstractmethod
    def negative_log_likelihood(self, z: Outputs, targets: Any) -> Scalar:
        """-log p(targets | z) up to a constant that does not depend on z.

        **Arguments:**

        - `z`: the outputs of one sample.
        - `targets`: the targets of one sample.
        """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, z: Outputs) -> Any:
        """One draw of the targets from p(· | z).

        **Arguments:**

        - `key`: a PRNG key.
        - `z`: the outputs of one sample.
        """

    @abc.abstractmethod
    def likelihood_lift(self, z: Outputs, targets: Any) -> Float[Array, " q"]:
        """`root(z).unit_lift(c)`, c the differential of the negative log-likelihood, without c.

        **Arguments:**

        - `z`: the outputs of one sample.
        - `targets`: the targets of one sample.
        """

    def log_loss(self, z: Outputs, targets: Any) -> Scalar:
        """log(-log p(targets | z)), accurate where the negative log-likelihood underflows.

        Defined only if `has_log_loss`; then -log p(targets | z) is `negative_log_likelihood`, and
        is positive.

        **Arguments:**

        - `z`: the outputs of one sample.
        - `targets`: the targets of one sample.
        """
        raise TypeError(f"{type(self).__name__} is a likelihood without a closed-form log-loss.")

    @property
    def has_log_loss(self) -> bool:
        """Whether `log_loss` is defined."""
        return type(self).log_loss is not AbstractLikelihood.log_loss
