"""The batch: inputs and targets with one leading sample axis, counted in one place.

A problem of several terms has one batch for each of them (`Batches`).
"""

from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.tree import structure
from .._base.types import Params
from .form import Form, about


class Batch(NamedTuple):
    """Inputs and targets; inputs are `None` for a model without data, which may have targets."""

    inputs: Any
    targets: Any

    @property
    def parts(self) -> "tuple[Batch, ...]":
        """The batch of each term: this one."""
        return (self,)


class Batches(eqx.Module):
    """The batches of several terms, in the order of the terms."""

    parts: tuple[Batch, ...]
    form: Form = eqx.field(static=True)

    @property
    def inputs(self) -> Any:
        """The inputs of each term, by name or by place."""
        return self.form.pack([part.inputs for part in self.parts])

    @property
    def targets(self) -> Any:
        """The targets of each term, by name or by place."""
        return self.form.pack([part.targets for part in self.parts])


AnyBatch: TypeAlias = Batch | Batches
"""The batch of one term, or of several."""


def as_batch(batch: Any) -> Any:
    """Return a `Batch` from `None`, `(inputs,)`, `(inputs, targets)` or `(None, targets)`.

    The batches of several terms, which `Terms.as_batch` has read, stay what they are.
    """
    if isinstance(batch, Batch | Batches):
        return batch
    if batch is None:
        return Batch(None, None)
    if not isinstance(batch, tuple | list) or len(batch) not in (1, 2):
        raise ValueError(
            "batch must be (inputs, targets), (inputs,), (None, targets) or None, got "
            + ("one array" if eqx.is_array(batch) else type(batch).__name__)
            + (f" of length {len(batch)}." if isinstance(batch, tuple | list) else ".")
        )
    return Batch(batch[0], batch[1] if len(batch) == 2 else None)


def as_batches(form: Form, batch: Any) -> Batches:
    """Return the batches of several terms from a dictionary or a tuple of that form."""
    if isinstance(batch, Batches):
        if batch.form != form:
            raise ValueError(
                f"the batches are those of the terms {', '.join(batch.form.labels)}; the problem "
                f"has the terms {', '.join(form.labels)}."
            )
        return batch
    if batch is None:
        batch = form.pack([None] * form.count)
    parts = []
    given = form.unpack(batch, "the batch of Terms", "(inputs, targets)")
    for label, part in zip(form.labels, given, strict=True):
        with about(label):
            parts.append(as_batch(part))
    return Batches(tuple(parts), form)


def sample_count(batch: Batch) -> int | None:
    """Return the number of samples, `None` without data; raise if leading axes disagree."""
    if batch.inputs is None:
        return None
    arrays = [x for x in jax.tree.leaves(batch.inputs) if eqx.is_array(x)]
    counts = [x.shape[0] if x.ndim else None for x in arrays]
    if not counts or counts[0] is None or any(count != counts[0] for count in counts):
        raise ValueError(
            "the inputs must be arrays with one common leading sample axis, got leading axes "
            f"{counts}. Samples of two kinds, e.g. points inside and on a boundary, are two terms: "
            "pullback.Terms(inside=..., boundary=...)."
        )
    count = int(counts[0])
    if count == 0:
        raise ValueError("the batch is empty (0 samples).")
    for leaf in jax.tree.leaves(batch.targets):
        if eqx.is_array(leaf) and (leaf.ndim == 0 or leaf.shape[0] != count):
            raise ValueError(
                f"targets have shape {leaf.shape}, but the inputs have {count} samples."
            )
    return count


def entries(params: Params, *batches: AnyBatch | None) -> int | None:
    """Return the number of parameters times that of samples; `None` for a model without data."""
    counts = [None if batch is None else _total(batch) for batch in batches]
    count = max((count for count in counts if count is not None), default=None)
    return None if count is None else structure(params).size * count


def _total(batch: AnyBatch) -> int | None:
    """Return the number of samples of all terms; `None` if one has no data."""
    counts = counts_of(batch)
    return None if None in counts else sum(count or 0 for count in counts)


def counts_of(batch: AnyBatch) -> list[int | None]:
    """Return the number of samples of each term; raise, and name the term, if axes disagree."""
    if isinstance(batch, Batch):
        return [sample_count(batch)]
    counts = []
    for label, part in zip(batch.form.labels, batch.parts, strict=True):
        with about(label):
            counts.append(sample_count(part))
    return counts


def replace_absent(batch: Batch, weights: Float[Array, " N"]) -> Batch:
    """Replace every sample of weight zero by the first present one.

    What an absent sample contains, even NaN, then cannot reach the result.
    """
    index = jnp.where(weights > 0, jnp.arange(weights.shape[0]), jnp.argmax(weights > 0))
    take = lambda x: jnp.take(x, index, axis=0) if eqx.is_array(x) else x
    return jax.tree.map(take, batch)
