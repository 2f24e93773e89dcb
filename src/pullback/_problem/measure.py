r"""How samples are averaged: \(\sum_i w_i\), the one place where \(1/N\) lives.

The same weights average a per-sample loss and the metric, so that the factor between them cannot
come apart. A sample of weight zero is absent: whatever it contains, even NaN, it does not enter.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._base.types import Scalar


class AbstractMeasure(eqx.Module):
    """A finite measure on the samples of a batch."""

    positive: eqx.AbstractClassVar[bool]
    """Whether every weight is positive, so that no sample can be absent."""

    @abc.abstractmethod
    def weights(self, count: int, dtype) -> Float[Array, " N"]:
        """The weight of each sample.

        **Arguments:**

        - `count`: the number N of samples.
        - `dtype`: the dtype of the weights.
        """

    def total(self, values: Float[Array, " N"]) -> Scalar:
        """The integral of one number per sample; absent samples do not count, whatever their value.

        **Arguments:**

        - `values`: one number per sample.
        """
        w = self.weights(values.shape[0], values.dtype)
        return jnp.sum(jnp.where(w > 0, w * jnp.where(w > 0, values, 0.0), 0.0))


class Mean(AbstractMeasure):
    """Every sample counts 1/N."""

    positive: ClassVar[bool] = True

    def weights(self, count, dtype):
        return jnp.full(count, 1 / count, dtype)


class Sum(AbstractMeasure):
    """Every sample counts 1."""

    positive: ClassVar[bool] = True

    def weights(self, count, dtype):
        return jnp.ones(count, dtype)


class Weights(AbstractMeasure):
    """Every sample counts what is given: importance or quadrature weights, or 0 and 1 for padding.
    They are not normalised.
    """

    values: Float[Array, " N"]
    positive: ClassVar[bool] = False

    def __init__(self, values: Float[ArrayLike, " N"]):
        """Make a measure from weights.

        **Arguments:**

        - `values`: one weight per sample, finite and not negative.
        """
        values = jnp.asarray(values)
        if values.ndim != 1 or not jnp.issubdtype(values.dtype, jnp.floating):
            raise ValueError(
                f"Weights takes a 1-D floating array, one weight a sample, got {values.dtype} of shape {values.shape}."
            )
        if not isinstance(values, jax.core.Tracer) and not np.all(
            np.isfinite(values) & (np.asarray(values) >= 0)
        ):
            raise ValueError(
                "Weights must be finite and >= 0; to leave a sample out give it the weight 0."
            )
        self.values = values

    def weights(self, count, dtype):
        if count != self.values.shape[0]:
            raise ValueError(
                f"the measure has {self.values.shape[0]} weights, but the leading axis of the batch has {count} samples. "
                f"Pass one weight per sample: measure=pullback.Weights(w) with w of shape ({count},)."
            )
        return self.values.astype(dtype)
