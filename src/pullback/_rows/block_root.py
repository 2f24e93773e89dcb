"""The root of the metric of a batch, from the roots of its samples."""

import jax

from ..metric._base import AbstractRoot


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
