r"""Metrics side by side on the parts of the outputs: \(M = \mathrm{diag}(M_1, \dots, M_n)\), hence
\(S = \mathrm{diag}(S_1, \dots, S_n)\), gradings kept.

The metrics form a tree (a dictionary, a tuple, a named tuple, possibly nested), and each metric
acts on the part of the outputs at its place. If all metrics are likelihoods and the parts are
independent given the outputs, their joint distribution has this Fisher metric: `ProductLikelihood`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PyTree

from .._base import checks
from ._base import AbstractLikelihood, AbstractMetric, AbstractRoot
from ._check import require_metrics


class ProductRoot(AbstractRoot):
    """The roots of the parts, their columns one after the other."""

    log_scale: Float[Array, " q"]
    roots: tuple[AbstractRoot, ...]
    treedef: Any = eqx.field(static=True)

    def unit(self, w):
        pieces = jnp.split(w, np.cumsum([root.size for root in self.roots])[:-1])
        return jax.tree.unflatten(
            self.treedef, [root.unit(x) for root, x in zip(self.roots, pieces, strict=True)]
        )

    def unit_transpose(self, v):
        parts = self.treedef.flatten_up_to(v)
        return jnp.concatenate(
            [root.unit_transpose(x) for root, x in zip(self.roots, parts, strict=True)]
        )

    def unit_lift(self, c):
        parts = self.treedef.flatten_up_to(c)
        return jnp.concatenate(
            [root.unit_lift(x) for root, x in zip(self.roots, parts, strict=True)]
        )

    def unreached(self, c):
        parts = self.treedef.flatten_up_to(c)
        return jax.tree.unflatten(
            self.treedef, [root.unreached(x) for root, x in zip(self.roots, parts, strict=True)]
        )


def _flatten(metrics: PyTree) -> tuple[list[Any], Any]:
    """The metrics of a tree, and its structure."""
    return jax.tree.flatten(metrics, is_leaf=lambda x: isinstance(x, AbstractMetric))


class AbstractProduct(AbstractMetric):
    """What the two products share: everything but the likelihood."""

    metrics: eqx.AbstractVar[PyTree[AbstractMetric]]

    @property
    def nonsingular(self) -> bool:
        """Whether all metrics are."""
        return all(metric.nonsingular for metric in _flatten(self.metrics)[0])

    @property
    def graded(self) -> bool:
        """Whether one of the metrics is."""
        return any(metric.graded for metric in _flatten(self.metrics)[0])

    @property
    def event_ndim(self) -> int | None:
        """The largest among the metrics."""
        metrics = _flatten(self.metrics)[0]
        known = [metric.event_ndim for metric in metrics if metric.event_ndim is not None]
        return max(known) if len(known) == len(metrics) else None

    @property
    def has_divergence(self):
        return all(metric.has_divergence for metric in _flatten(self.metrics)[0])

    def parts(self, *trees: PyTree) -> list[tuple]:
        """The metrics, each with its part of the trees."""
        metrics, treedef = _flatten(self.metrics)
        try:
            columns = [treedef.flatten_up_to(tree) for tree in trees]
        except (ValueError, TypeError) as error:
            name = type(self).__name__
            raise ValueError(
                f"{name}(metrics) needs one metric for each part of the outputs: the metrics have "
                f"the structure {treedef}, which does not fit "
                f"{[str(jax.tree.structure(t)) for t in trees]}. For outputs "
                f"{{'a': ..., 'b': ...}} write {name}({{'a': Categorical(), 'b': Gaussian()}})."
            ) from error
        return list(zip(metrics, *columns, strict=True))

    def root(self, z):
        roots = tuple(metric.root(x) for metric, x in self.parts(z))
        return ProductRoot(
            jnp.concatenate([root.log_scale for root in roots]), roots, _flatten(self.metrics)[1]
        )

    def apply(self, z, v):
        return jax.tree.unflatten(
            _flatten(self.metrics)[1], [metric.apply(x, y) for metric, x, y in self.parts(z, v)]
        )

    def sharp(self, z, c):
        return jax.tree.unflatten(
            _flatten(self.metrics)[1], [metric.sharp(x, y) for metric, x, y in self.parts(z, c)]
        )

    def divergence(self, u, z):
        return sum(metric.divergence(x, y) for metric, x, y in self.parts(u, z))

    def observe(self, targets, index):
        metrics, treedef = _flatten(self.metrics)
        try:
            each = treedef.flatten_up_to(targets)
        except (ValueError, TypeError):
            each = [targets] * len(metrics)
        observed = [metric.observe(y, index) for metric, y in zip(metrics, each, strict=True)]
        return type(self)(jax.tree.unflatten(treedef, observed))

    def complaint(self, z):
        is_leaf = lambda x: isinstance(x, AbstractMetric)
        paths = jax.tree_util.tree_leaves_with_path(self.metrics, is_leaf=is_leaf)
        bad = [
            f"Part {jax.tree_util.keystr(path)}: {metric.complaint(x)}"
            for (path, _), (metric, x) in zip(paths, self.parts(z), strict=True)
            if not metric.root(x).is_finite
        ]
        return " ".join(bad) or f"{type(self).__name__} is not finite at these outputs."


class Product(AbstractProduct):
    """One metric for each part of the outputs: `Product({"a": Categorical(), "b": Euclidean()})`.

    Targets of the structure of `metrics` are split, and each metric that uses targets gets its
    part. Otherwise each metric gets all targets.

    **Arguments:**

    - `metrics`: a pytree of metrics that the outputs extend: each metric has the place of its part
        of the outputs.
    """

    metrics: PyTree[AbstractMetric]

    def __check_init__(self):
        metrics = _flatten(self.metrics)[0] or [None]
        require_metrics("Product", "metrics", metrics, "a tree of metrics", f"Product({_EXAMPLE})")


class ProductLikelihood(AbstractProduct, AbstractLikelihood):
    """Independent variables of several families, one for each part of the outputs.

    For example `ProductLikelihood({"class": Categorical(), "count": Poisson()})`. Targets have the
    structure of `metrics`, with the targets of each family at its place.

    **Arguments:**

    - `metrics`: a pytree of likelihoods that the outputs extend.
    """

    metrics: PyTree[AbstractLikelihood]

    def __check_init__(self):
        families = _flatten(self.metrics)[0] or [None]
        wanted = "a tree of likelihoods"
        example = f"ProductLikelihood({_EXAMPLE})"
        require_metrics("ProductLikelihood", "metrics", families, wanted, example)
        for family in families:
            checks.instance(
                "ProductLikelihood",
                "metrics",
                family,
                AbstractLikelihood,
                wanted,
                f"{example}; for metrics that are no likelihoods use Product(metrics)",
            )

    @property
    def has_log_loss(self) -> bool:
        """Whether all families have a log-loss."""
        return all(family.has_log_loss for family in _flatten(self.metrics)[0])

    @property
    def score_in_range(self) -> bool:
        """Whether it is in every family."""
        families = _flatten(self.metrics)[0]
        return all(family.nonsingular or family.score_in_range for family in families)

    def admits(self, z, targets):
        parts = [family.admits(x, y) for family, x, y in self.parts(z, targets)]
        return jnp.all(jnp.stack(parts))

    @property
    def support(self):
        families = _flatten(self.metrics)[0]
        return "; ".join(f"{type(family).__name__}: {family.support}" for family in families)

    def negative_log_likelihood(self, z, targets):
        return sum(family.negative_log_likelihood(x, y) for family, x, y in self.parts(z, targets))

    def sample(self, key, z):
        parts = self.parts(z)
        keys = jax.random.split(key, len(parts))
        draws = [family.sample(k, x) for k, (family, x) in zip(keys, parts, strict=True)]
        return jax.tree.unflatten(_flatten(self.metrics)[1], draws)

    def likelihood_lift(self, z, targets):
        return jnp.concatenate(
            [family.likelihood_lift(x, y) for family, x, y in self.parts(z, targets)]
        )

    def log_loss(self, z, targets):
        parts = [family.log_loss(x, y) for family, x, y in self.parts(z, targets)]
        return logsumexp(jnp.stack(parts))


_EXAMPLE = "{'class': Categorical(), 'value': Gaussian()}"
