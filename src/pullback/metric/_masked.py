r"""A metric that ignores some entries of the outputs: \(M_E = E M E\), \(E\) the diagonal 0/1
projection on the entries that are kept.

\(S_E = ES\), and the lift of \(c\) is that of its projection on the range: \(\hat r = \hat S^\top
E\,M_E^+ c\). Where \(E\) commutes with \(M\) (the mask keeps or drops whole independent factors:
any mask on a diagonal metric, whole rows of logits under `Categorical`), \(M_E^+ = E M^+ E\) and
the lift is that of \(Ec\), exact and graded as the metric itself. Otherwise \(M_E^+\) comes from a
dense pseudo-inverse of \(ES\), which resolves singular values to eps relative.

The mask acts on the tangent space, not on the family: dropping a logit is not renormalising the
other classes. The divergence keeps the masked entries of `u` at those of `z`.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .._base import checks
from .._base.tree import Structure, split, structure
from .._base.types import Outputs
from .._base.vector import finite_or_nan
from ._base import AbstractMetric, AbstractRoot
from ._check import require_metrics
from ._roots import dense_factor


class MaskedRoot(AbstractRoot):
    """E S; `inverse` is its pseudo-inverse, or `None` if E commutes with M."""

    log_scale: Float[Array, " q"]
    root: AbstractRoot
    keep: Bool[Array, " k"]
    inverse: Float[Array, "q k"] | None
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        return _project(self.like, self.keep, self.root.unit(w))

    def unit_transpose(self, v):
        return self.root.unit_transpose(_project(self.like, self.keep, v))

    def unit_lift(self, c):
        c = _project(self.like, self.keep, c)
        if self.inverse is None:
            return self.root.unit_lift(c)
        return self.unit_transpose(
            self.like.unravel(self.inverse.T @ (self.inverse @ self.like.ravel(c)))
        )

    def unreached(self, c):
        below, masked = self.root.unreached(c), _project(self.like, ~self.keep, c)
        return jax.tree.map(jnp.add, _project(self.like, self.keep, below), masked)


def _project(like: Structure, keep: Array, tree: PyTree) -> PyTree:
    """E applied to a tree."""
    return like.unravel(jnp.where(keep, like.ravel(tree), 0.0))


def _inverse(root: AbstractRoot, keep: Array, like: Structure) -> Float[Array, "q k"]:
    """(E S)⁺."""
    return jnp.linalg.pinv(finite_or_nan(jnp.where(keep[:, None], dense_factor(root, like), 0.0)))


class Masked(AbstractMetric):
    """A metric on the entries of the outputs where the mask is `True`; it ignores all others.

    **Arguments:**

    - `metric`: a metric on the outputs of one sample.
    - `mask`: booleans, a tree that the outputs extend (one array serves all leaves below it). An
        array with fewer axes than the outputs masks whole rows, along the leading axes; axes of
        size 1 are repeated.
    """

    metric: AbstractMetric
    mask: PyTree[Bool[Array, "..."] | bool]
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        example = "Masked(Categorical(), jnp.array([True, False]))"
        require_metrics("Masked", "metric", [self.metric], "a metric", example)
        leaves = jax.tree.leaves(self.mask)
        if not leaves or not all(
            isinstance(x, bool) or getattr(x, "dtype", None) == jnp.bool_ for x in leaves
        ):
            raise checks.error("Masked", "mask", self.mask, "booleans", example)

    @property
    def graded(self) -> bool:
        """The value of `metric`."""
        return self.metric.graded

    @property
    def event_ndim(self) -> int | None:
        """The value of `metric`."""
        return self.metric.event_ndim

    @property
    def has_divergence(self):
        return self.metric.has_divergence

    def _read(self, z: Outputs) -> tuple[Structure, Bool[Array, " k"], bool]:
        """The structure of the outputs, the entries kept, and whether the mask commutes with M."""
        event = self.metric.event_ndim
        commutes = []

        def spread(mask, part):
            mask = jnp.asarray(mask)

            def one(x):
                shape = (*mask.shape, *(1,) * (x.ndim - mask.ndim))
                if len(shape) != x.ndim or any(
                    m not in (1, n) for m, n in zip(shape, x.shape, strict=True)
                ):
                    raise ValueError(
                        f"Masked(mask=...) of shape {mask.shape} does not fit outputs of shape "
                        f"{x.shape}: the mask must have their shape, or a leading part of it, with "
                        f"1 where an axis is repeated."
                    )
                commutes.append(
                    event is not None and all(m == 1 for m in shape[max(x.ndim - event, 0) :])
                )
                return jnp.broadcast_to(mask.reshape(shape), x.shape)

            return jax.tree.map(one, part)

        coordinates = split(z)[0]
        try:
            keep = jax.tree.map(spread, self.mask, coordinates)
        except ValueError as error:
            if "Masked(mask=...)" in str(error):
                raise
            raise ValueError(
                f"Masked(mask=...) has the structure {jax.tree.structure(self.mask)}, which does "
                f"not fit the outputs {jax.tree.structure(coordinates)}. Give one array, or a tree "
                f"of arrays with the keys of the outputs."
            ) from error
        like = structure(z)
        flat = jnp.concatenate(
            [jnp.ravel(x) for x in jax.tree.leaves(keep)] or [jnp.zeros(0, bool)]
        )
        return like, flat, all(commutes)

    def root(self, z):
        like, keep, commutes = self._read(z)
        root = self.metric.root(z)
        return MaskedRoot(
            root.log_scale, root, keep, None if commutes else _inverse(root, keep, like), like
        )

    def apply(self, z, v):
        like, keep, _ = self._read(z)
        return _project(like, keep, self.metric.apply(z, _project(like, keep, v)))

    def sharp(self, z, c):
        like, keep, commutes = self._read(z)
        if commutes:
            return _project(like, keep, self.metric.sharp(z, _project(like, keep, c)))
        inverse = _inverse(self.metric.root(z), keep, like)
        return like.unravel(inverse.T @ (inverse @ like.ravel(c)))

    def divergence(self, u, z):
        like, keep, _ = self._read(z)
        return self.metric.divergence(
            eqx.combine(like.unravel(jnp.where(keep, like.ravel(u), like.ravel(z))), split(z)[1]), z
        )

    def observe(self, targets, index):
        return Masked(self.metric.observe(targets, index), self.mask)

    def complaint(self, z):
        return self.metric.complaint(z)
