"""Samples that do not divide by the devices: shares of one length, filled up with absent samples.

Every device has an array of the same length. Where it has fewer samples, the rest of its share has
weight zero (`measure.Filled`), and `Composite.at` replaces what is there by a sample that is
present, so that the content of the filling reaches nothing. A loss that is one number for the whole
batch, and whatever mixes samples, is given the samples alone.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._compat.devices import Layout, copied
from .batch import AnyBatch, Batch, Batches


class Padded(eqx.Module):
    """Inputs in shares of one length; the first `counts[k]` entries of share k are samples.

    The targets beside them lie in the same way.
    """

    inputs: Any
    counts: tuple[int, ...] = eqx.field(static=True)


def positions(counts: tuple[int, ...], length: int) -> np.ndarray:
    """Return where the samples are in an array of that many entries."""
    share, rest = divmod(length, len(counts))
    if rest or max(counts) > share:
        raise ValueError(
            f"the batch has {length} entries, but was padded for {len(counts)} devices with "
            f"{', '.join(map(str, counts))} samples. Pass what pullback.shard returned as it is."
        )
    return np.concatenate([k * share + np.arange(count) for k, count in enumerate(counts)])


def shares(count: int, size: int) -> tuple[int, ...]:
    """Return how many samples each of several devices has, the first ones as many as any."""
    share = -(-count // size)
    return tuple(min(share, max(count - k * share, 0)) for k in range(size))


def bare(batch: Batch) -> Batch:
    """Return a batch as its arrays are, filling included."""
    if not isinstance(batch.inputs, Padded):
        return batch
    return Batch(batch.inputs.inputs, batch.targets)


def sample_places(batch: Batch) -> np.ndarray | None:
    """Return where the samples of a padded batch are; `None` if every entry is one."""
    if not isinstance(batch.inputs, Padded):
        return None
    length = next(x.shape[0] for x in jax.tree.leaves(batch.inputs) if eqx.is_array(x))
    return positions(batch.inputs.counts, length)


def trimmed(batch: AnyBatch | None) -> Any:
    """Return the samples of a batch, or of those of several terms, without filling."""
    if batch is None:
        return None
    if isinstance(batch, Batches):
        return Batches(tuple(map(trimmed, batch.parts)), batch.form)
    places = sample_places(batch)
    return batch if places is None else taken(bare(batch), places)


def filled_up(batch: AnyBatch | None, size: int) -> Any:
    """Return a batch whose samples divide by the number of devices, padded where they do not."""
    if batch is None:
        return None
    if isinstance(batch, Batches):
        return Batches(tuple(filled_up(part, size) for part in batch.parts), batch.form)
    length = next((x.shape[0] for x in jax.tree.leaves(batch.inputs) if eqx.is_array(x)), 0)
    if length % size == 0:
        return batch
    places = sample_places(batch)
    places = np.arange(length) if places is None else places
    counts = shares(len(places), size)
    # Entries that are admitted whatever they mean: those of the last sample again.
    again = np.minimum(np.arange(size * counts[0]), len(places) - 1)
    made = taken(bare(batch), places[again])
    return Batch(Padded(made.inputs, counts), made.targets)


def taken(tree: Any, places: np.ndarray) -> Any:
    """Return some entries of every array along the axis of the samples."""
    return jax.tree.map(lambda x: jnp.take(x, places, axis=0) if eqx.is_array(x) else x, tree)


def of_samples(batch: AnyBatch, tree: Any, layout: Layout) -> Any:
    """Return what has one entry for each of a batch, by term, for its samples only.

    What is not even cannot lie in equal shares: every device has all of it then.
    """
    if isinstance(batch, Batches):
        parts = batch.form.unpack(tree, "the outputs of Terms", "z")
        both = zip(batch.parts, parts, strict=True)
        return batch.form.pack([of_samples(*part, layout) for part in both])
    # Inside of a map of the user's own the share of this device is what goes out, too.
    places = None if layout.inside else sample_places(batch)
    return tree if places is None else taken(copied(tree, layout.mesh), places)
