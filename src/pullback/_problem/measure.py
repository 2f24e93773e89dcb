r"""How samples are averaged: \(\sum_i w_i\), the one place where \(1/N\) lives.

The same weights average a per-sample loss and the metric, so that the two cannot differ by a
factor. A sample of weight zero is absent: nothing depends on what it contains, not even on a NaN.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from .._base import checks
from .._base.axis import Axis, own, total
from .._base.show import settings
from .._base.types import Scalar
from .padding import positions


class AbstractMeasure(eqx.Module):
    """A finite measure on the samples of a batch."""

    positive: eqx.AbstractClassVar[bool]
    """Whether every weight is positive, so that no sample can be absent."""

    def __repr__(self) -> str:
        return settings(self)

    @property
    def axis(self) -> Axis | None:
        """The devices over which the samples are spread; `None` if all are here."""
        return None

    @property
    def counts(self) -> tuple[int, ...] | None:
        """How many samples each share of a padded batch has; `None` if every entry is one."""
        return None

    @property
    def whole(self) -> "AbstractMeasure":
        """The measure on all samples, wherever they are, without padding."""
        return self

    def padded(self, counts: tuple[int, ...]) -> "AbstractMeasure":
        """Return the measure on a batch whose shares were filled up with absent samples.

        **Arguments:**

        - `counts`: how many samples each share has.
        """
        return Filled(self, counts)

    @abc.abstractmethod
    def weights(self, count: int, dtype: DTypeLike) -> Float[Array, " N"]:
        """The weight of each sample.

        **Arguments:**

        - `count`: the number N of samples.
        - `dtype`: the dtype of the weights.
        """

    def observations(self, count: int, dtype: DTypeLike) -> Scalar:
        """How many observations the batch stands for; by default the sum of the weights.

        **Arguments:**

        - `count`: the number N of samples.
        - `dtype`: the dtype of the number.
        """
        return jnp.sum(self.weights(count, dtype))

    def total(self, values: Float[Array, " N"]) -> Scalar:
        """The integral of one number per sample; values of absent samples are ignored.

        **Arguments:**

        - `values`: one number per sample.
        """
        return self.share(values)

    def share(self, values: Float[Array, " N"]) -> Scalar:
        """The part of the integral that is due to the samples of this device; not yet summed.

        What is differentiated is this one: a sum over devices in a derivative would count each
        sample once for each device.

        **Arguments:**

        - `values`: one number per sample.
        """
        w = self.weights(values.shape[0], values.dtype)
        return jnp.sum(jnp.where(w > 0, w * jnp.where(w > 0, values, 0.0), 0.0))


class Mean(AbstractMeasure):
    """The measure with weight 1/N for every sample, the default.

    ```python
    problem = pb.Composite(model, loss, measure=pb.Mean())
    ```
    """

    positive: ClassVar[bool] = True

    def weights(self, count, dtype):
        return jnp.full(count, 1 / count, dtype)

    def observations(self, count, dtype):
        return jnp.asarray(count, dtype)


class Sum(AbstractMeasure):
    """The measure with weight 1 for every sample.

    ```python
    problem = pb.Composite(model, loss, measure=pb.Sum())
    ```
    """

    positive: ClassVar[bool] = True

    def weights(self, count, dtype):
        return jnp.ones(count, dtype)


class Weights(AbstractMeasure):
    """A measure with given weights: importance, quadrature, or 0 and 1 for padding.

    ```python
    problem = pb.Composite(model, loss, measure=pb.Weights(jnp.full(len(x), 0.1)))
    ```

    The weights are not normalised: `Weights(jnp.full(N, 1 / N))` is `Mean()`. No result depends on
    a sample of weight zero; its entries of outputs, pushforwards and projections are its own.
    """

    values: Float[Array, " N"]
    positive: ClassVar[bool] = False

    def __init__(self, values: Float[ArrayLike, " N"]):
        """Make a measure from weights.

        **Arguments:**

        - `values`: one weight per sample, finite and not negative.
        """
        values = jnp.asarray(values)
        example = "Weights(jnp.array([1.0, 0.5, 0.0]))"
        if values.ndim != 1 or not jnp.issubdtype(values.dtype, jnp.floating):
            kind = f"{values.dtype} of shape {values.shape}"
            wanted = f"a floating vector, one weight per sample, not {kind}"
            raise checks.error("Weights", "values", values, wanted, example)
        if checks.is_concrete(values):
            numbers = np.asarray(values)
            if not np.all(np.isfinite(numbers) & (numbers >= 0)):
                wanted = "finite and >= 0; the weight 0 leaves a sample out"
                raise checks.error("Weights", "values", values, wanted, example)
        self.values = values

    def weights(self, count, dtype):
        if count != self.values.shape[0]:
            raise ValueError(
                f"the measure has {self.values.shape[0]} weights, but the leading axis of the "
                f"batch has {count} samples. Pass one weight per sample: "
                f"measure=pullback.Weights(w) with w of shape ({count},)."
            )
        return self.values.astype(dtype)


class Filled(AbstractMeasure):
    """A measure on the samples of a padded batch; what fills its shares has weight zero."""

    measure: AbstractMeasure
    shares: tuple[int, ...] = eqx.field(static=True)
    positive: ClassVar[bool] = False

    @property
    def counts(self):
        return self.shares

    @property
    def whole(self):
        return self.measure

    def weights(self, count, dtype):
        places = positions(self.shares, count)
        return jnp.zeros(count, dtype).at[places].set(self.measure.weights(len(places), dtype))

    def observations(self, count, dtype):
        return self.measure.observations(sum(self.shares), dtype)


class Shared(AbstractMeasure):
    """A measure on the samples of all devices, seen from one of them.

    Each device has as many samples as any other; `count` is the number of those that are here.
    """

    measure: AbstractMeasure
    devices: Axis = eqx.field(static=True)

    @property
    def positive(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every weight is positive."""
        return self.measure.positive

    @property
    def axis(self):
        return self.devices

    @property
    def counts(self):
        return self.measure.counts

    @property
    def whole(self):
        return self.measure.whole

    def padded(self, counts):
        return Shared(self.measure.padded(counts), self.devices)

    def weights(self, count, dtype):
        return own(self.all_weights(count, dtype), self.devices)

    def all_weights(self, count: int, dtype: DTypeLike) -> Float[Array, " n"]:
        """Return the weights of the samples of all devices."""
        return self.measure.weights(count * self.devices.size, dtype)

    def observations(self, count, dtype):
        return self.measure.observations(count * self.devices.size, dtype)

    def total(self, values):
        return total(self.share(values), self.devices)
