"""Several processes that share one mesh: what each of them has, made known to all.

Every process must call these functions, in the same order.
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh

LONGEST = 1000
"""The number of bytes of a text that is sent to all processes."""


def processes_of(mesh: Mesh | AbstractMesh) -> set[int]:
    """Return the numbers of the processes that have devices of a mesh; none inside of a `jit`."""
    if isinstance(mesh, AbstractMesh):
        return set()
    return {device.process_index for device in np.ravel(np.asarray(mesh.devices))}


def spans(mesh: Mesh | AbstractMesh) -> bool:
    """Return whether a mesh has devices of other processes than this one."""
    return not processes_of(mesh) <= {jax.process_index()}


def everywhere(numbers: Any) -> np.ndarray:
    """Return the 32-bit integers of each process, a row each."""
    mine = np.asarray(numbers, np.int32).reshape(-1)
    return np.reshape(multihost_utils.process_allgather(mine), (-1, mine.size))


def from_first(numbers: Any) -> np.ndarray:
    """Return the 32-bit integers that process 0 has."""
    mine = np.asarray(numbers, np.int32)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine))


def texts(text: str) -> list[str]:
    """Return the texts of all processes, their beginnings if they are long."""
    coded = text.encode()[:LONGEST].ljust(LONGEST, b"\0")
    rows = np.reshape(everywhere(np.frombuffer(coded, np.uint8)), (-1, LONGEST))
    return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="replace") for row in rows]


_alike: set[tuple[Any, str]] = set()


def check_alike(mesh: Mesh | AbstractMesh, words: str, common: Any = None) -> None:
    """Raise a `ValueError` on every process if one has other arrays, described in words.

    Arrays of one mesh have one shape. Programs for several shapes would wait for each other without
    end. With other numbers in what is `common`, each process would follow a gradient of its own.
    What was compared once is not compared again.
    """
    if (mesh, words) in _alike or len(processes_of(mesh)) < max(jax.process_count(), 2):
        return
    code = zlib.crc32(words.encode()) & 0x7FFFFFFF
    codes, sums = everywhere([code, checksum(common)]).T.tolist()
    if len(set(codes)) > 1:
        each = " ".join(f"Process {k} has {told}." for k, told in enumerate(texts(words)))
        raise ValueError(
            f"the processes have batches of different shapes. {each} Pass the samples of each "
            "process to pullback.shard((x, y), mesh), which pads them to one length."
        )
    if len(set(sums)) > 1:
        raise ValueError(
            "the processes have different parameters, or different numbers in the problem, the "
            f"inverse or the state (checksums {sums}). Make them from the same seed on every "
            "process; only batches differ."
        )
    _alike.add((mesh, words))


def checksum(tree: Any) -> int:
    """Return a number that tells apart the numbers of trees that each process has as a whole."""
    code = 0
    for x in jax.tree.leaves(tree):
        if isinstance(x, jax.Array) and not isinstance(x, Tracer):
            if not (x.is_fully_addressable or x.is_fully_replicated):
                continue
            x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            x = x if x.is_fully_addressable else x.addressable_data(0)
        elif not isinstance(x, np.ndarray | np.generic | int | float | complex):
            continue
        code = zlib.crc32(np.asarray(x).tobytes(), code)
    return code & 0x7FFFFFFF


def described(tree: Any) -> str:
    """Return dtypes and shapes of the arrays of a tree, in words."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = [(jax.tree_util.keystr(path), x) for path, x in leaves if hasattr(x, "dtype")]
    return ", ".join(f"{path} {x.dtype}{list(x.shape)}" for path, x in arrays) or "no array"


def whole(tree: Any) -> Any:
    """Return a tree with those arrays in NumPy of which this process has a part only."""

    def gather(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
            return x
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(gather, tree)
