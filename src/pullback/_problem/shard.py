"""`shard`: a batch on the devices of a mesh, whatever the number of its samples is."""

import zlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._base.checks import error
from .._compat.devices import context
from .._compat.processes import everywhere, spans, texts
from .batch import Batch, as_batch, sample_count
from .padding import Padded, bare, shares

EXAMPLE = 'shard((x, y), jax.make_mesh((4,), ("data",)), "data")'


def shard(batch: Any, mesh: Mesh | None = None, over: str | tuple[str, ...] = "data") -> Any:
    """Return a batch whose samples are spread over the devices of a mesh.

    ```python
    batch = pb.shard((x, y), mesh)
    fit = pb.fit(opt, params, batch, steps=100)
    ```

    `jax.device_put` raises if the samples do not divide by the devices. Here every share is filled
    up to the same length, and what fills it is absent: the answers are those of the samples alone,
    and `Mean()` and `Weights(w)` count these.

    On several processes each process passes samples of its own, as many as it has, and all of them
    must call this function. The samples are counted in the order of the devices of the mesh.

    **Arguments:**

    - `batch`: `(inputs, targets)` or `(inputs,)`; for `Terms` a dictionary of such batches by name.
    - `mesh`: the mesh; defaults to that of `jax.set_mesh`.
    - `over`: the axis of the mesh over which the samples are spread, or several.

    **Returns:**

    The batch, for `natural_gradient`, `step`, `fit` and `minibatches`; a dictionary of batches for
    a dictionary.
    """
    if mesh is None:
        mesh = context()  # pyright: ignore[reportAssignmentType]
    if not isinstance(mesh, Mesh):
        raise error("shard", "mesh", mesh, "a jax.sharding.Mesh with devices", EXAMPLE)
    names = (over,) if isinstance(over, str) else tuple(over)
    if not names or not set(names) <= set(mesh.axis_names):
        wanted = f"one of the axes of the mesh, {mesh.axis_names}"
        raise error("shard", "over", over, wanted, EXAMPLE)
    if isinstance(batch, dict):
        return {name: shard(batch[name], mesh, names) for name in sorted(batch)}
    sharding = NamedSharding(mesh, PartitionSpec(names))
    size = int(np.prod([mesh.shape[name] for name in names]))
    return _several(batch, sharding, size) if spans(mesh) else _one(batch, sharding, size)


def _one(batch: Any, sharding: NamedSharding, size: int) -> Batch:
    """Return a batch that this process has as a whole, on devices of this process."""
    batch, count = _counted(batch)
    counts = shares(count, size)
    return _placed(batch, sharding, counts, counts[0], list(range(size)))


def _several(batch: Any, sharding: NamedSharding, size: int) -> Batch:
    """Return a batch of which this process has some samples, on devices of several processes."""
    failure, count, kind = None, 0, 0
    try:
        batch, count = _counted(batch)
        kind = zlib.crc32(_description(batch).encode()) & 0x7FFFFFFF
    except ValueError as found:
        failure = found
    # The shares of this process: devices that differ along other axes of the mesh have the same.
    index = sharding.addressable_devices_indices_map((size,))
    mine = sorted({cut[0].start or 0 for cut in index.values() if cut is not None})
    counts = np.full(size, -1)
    if mine:
        counts[mine] = shares(count, len(mine))
    table = everywhere([failure is not None, kind, count, *counts])
    if table[:, 0].any():
        told = texts("" if failure is None else str(failure))
        if failure is not None:
            raise failure
        place = int(np.argmax(table[:, 0]))
        raise ValueError(f"shard: process {place}: {told[place]}")
    if len(set(table[:, 1])) > 1:
        told = texts(_description(batch))
        raise ValueError(
            "shard: the arrays of the processes are not alike, apart from the number of samples: "
            + "; ".join(f"process {k} has {text}" for k, text in enumerate(told))
        )
    held = [set(column[column >= 0].tolist()) for column in table[:, 3:].T]
    if any(len(found) > 1 for found in held):
        raise ValueError(
            "shard: processes whose devices have the same samples passed different numbers of "
            f"them, {table[:, 2].tolist()} by process."
        )
    everyone = tuple(found.pop() for found in held)
    return _placed(batch, sharding, everyone, max(everyone), mine)


def _counted(batch: Any) -> tuple[Batch, int]:
    """Return a batch with its arrays in NumPy, and the number of its samples."""
    batch = bare(as_batch(batch))
    leaves = [x for x in jax.tree.leaves(batch) if isinstance(x, jax.Array)]
    if any(not x.is_fully_addressable for x in leaves):
        raise ValueError(
            "shard(batch): the arrays are on several processes already. Pass the samples of this "
            "process, as NumPy arrays, or use the arrays as they are."
        )
    count = sample_count(batch)
    if count is None:
        raise ValueError("shard(batch): a batch without inputs has no samples to spread.")
    return batch, count


def _description(batch: Batch) -> str:
    """Return dtype and shape of a sample, leaf by leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    return ", ".join(
        f"{jax.tree_util.keystr(path)[1:]}: {x.dtype}{list(x.shape[1:])}"
        for path, x in leaves
        if eqx.is_array(x) or isinstance(x, np.ndarray)
    )


def _placed(
    batch: Batch, sharding: NamedSharding, counts: tuple[int, ...], share: int, mine: list[int]
) -> Batch:
    """Return a batch in shares of one length; this process has the samples of some of them."""
    total, starts = share * len(counts), np.cumsum([0, *(counts[k] for k in mine)])
    place = {share * k: (starts[number], counts[k]) for number, k in enumerate(mine)}

    def put(x):
        if not eqx.is_array(x) and not isinstance(x, np.ndarray):
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                put(jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        data = np.asarray(x)
        data = data.astype(jax.dtypes.canonicalize_dtype(data.dtype), copy=False)

        def of(index):
            start, count = place[index[0].start or 0]
            made = np.zeros((share, *data.shape[1:]), data.dtype)
            made[:count] = data[start : start + count]
            return made[(slice(None), *index[1:])]

        return jax.make_array_from_callback((total, *data.shape[1:]), sharding, of)

    inputs, targets = jax.tree.map(put, batch.inputs), jax.tree.map(put, batch.targets)
    even = all(count == share for count in counts)
    return Batch(inputs if even else Padded(inputs, counts), targets)
