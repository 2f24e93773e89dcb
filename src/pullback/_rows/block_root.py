"""The root of the metric of a batch, from the roots of its samples or of the batch as one."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.axis import Axis, gathered, own, total
from .._base.types import Outputs
from ..metric._base import AbstractMetric, AbstractRoot


class BlockRoot(AbstractRoot):
    """The root of a batch: one root per sample, block diagonal."""

    roots: AbstractRoot

    @property
    def log_scale(self):
        return self.roots.log_scale.ravel()

    @property
    def samples(self):
        return self.roots

    @property
    def complex_linear(self):
        return self.roots.complex_linear

    def unit(self, w):
        return jax.vmap(lambda root, w: root.unit(w))(
            self.roots, w.reshape(self.roots.log_scale.shape)
        )

    def unit_transpose(self, v):
        return jax.vmap(lambda root, v: root.unit_transpose(v))(self.roots, v).ravel()

    def unit_lift(self, c):
        return jax.vmap(lambda root, c: root.unit_lift(c))(self.roots, c).ravel()

    def unreached(self, c):
        return jax.vmap(lambda root, c: root.unreached(c))(self.roots, c)


class SharedRoot(AbstractRoot):
    """The share of one device of a root that couples the samples of all devices."""

    whole: AbstractRoot
    devices: Axis = eqx.field(static=True)

    @property
    def log_scale(self):
        return own(self.whole.log_scale, self.devices)

    @property
    def is_finite(self):
        return self.whole.is_finite

    @property
    def removed(self):
        found = self.whole.removed
        return None if found is None else jax.vmap(lambda c: own(c, self.devices))(found)

    # Of the samples of other devices only a mean, or a sum, is needed: rows of J, of which the
    # second makes rows of A, stay where they are, and so does what the first is given of those.

    def unit(self, w):
        roots, mean = self.whole.samples, self.whole.mean
        if roots is None or mean is None:
            return own(self.whole.unit(gathered(w, self.devices)), self.devices)
        roots, mean = own((roots, mean), self.devices)
        mean = mean.astype(w.dtype)[:, None]
        w = jnp.where(mean == 0, 0.0, w.reshape(mean.shape[0], -1))
        w = w - mean * total(jnp.sum(w, axis=0, keepdims=True), self.devices)
        return jax.vmap(lambda root, w: root.unit(w))(roots, w)

    def unit_transpose(self, v):
        roots, mean = self.whole.samples, self.whole.mean
        if roots is None or mean is None:
            return own(self.whole.unit_transpose(gathered(v, self.devices)), self.devices)
        roots, mean = own((roots, mean), self.devices)
        y = jax.vmap(lambda root, v: root.unit_transpose(v))(roots, v)
        mean = mean.astype(y.dtype)[:, None]
        y = jnp.where(mean == 0, 0.0, y)
        # Twice: the mean of what is left is that of its rounding.
        for _ in range(2):
            y = y - total(jnp.sum(mean * y, axis=0, keepdims=True), self.devices)
        return jnp.where(mean == 0, 0.0, y).ravel()

    def unit_lift(self, c):
        return own(self.whole.unit_lift(gathered(c, self.devices)), self.devices)

    def unreached(self, c):
        return own(self.whole.unreached(gathered(c, self.devices)), self.devices)


def joint_root(
    metric: AbstractMetric, weights: jax.Array, outputs: Outputs, axis: Axis | None
) -> AbstractRoot:
    """Return the root of a metric that couples samples, which may be spread over devices."""
    root = metric.weigh(gathered(weights, axis)).root(gathered(outputs, axis))
    if axis is None:
        return root
    rows = root.log_scale.shape[0]
    if rows % axis.size:
        raise ValueError(
            f"{type(metric).__name__} has {rows} rows for the samples of all devices, which are no "
            f"multiple of {axis.size} devices. Copy the batch to every device: "
            "jax.device_put(batch, NamedSharding(mesh, P()))."
        )
    return SharedRoot(root, axis)
