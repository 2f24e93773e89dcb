"""Several processes that make one run: what each decides by itself must be decided once.

Every process calls `fit` with the same arguments and computes the same steps. How many of them are
made at a time depends on a clock, and whether a callback ends the run on the callback: there the
answer of process 0 counts. Process 0 alone writes and draws. An error on one process (in an
iterator, a callback, a file) is raised on all of them, so that nobody waits for what does not come.
A process that dies makes the next exchange fail on all others.
"""

import re
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._compat.processes import everywhere, from_first, processes_of, spans, texts, whole
from .checkpoint import Checkpoints, Snapshot, Store

T = TypeVar("T")
LOST = re.compile("gloo|nccl|collective|coordination|connection|peer|timed? ?out|deadline", re.I)
"""What the errors of JAX say when another process does not take part any more."""
PATIENCE = 5.0
"""For how many seconds a process waits until it sees the folder of process 0."""


class ProcessLost(RuntimeError):
    """Another process of the run has ended, or does not answer."""


class Reader(Store):
    """The folder of a run as a process sees it that does not write there."""

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def save(self, snapshot: Any, parts: Any) -> None:
        """Leave it to process 0."""

    def _compare(self, file: Path, found: dict[str, Any], like: Snapshot) -> bool:
        # Process 0 compares what determines the run; here it may hold samples of this process.
        return super()._compare(file, found | {"identity": self.identity}, like)


class Processes:
    """The processes of one run; of a run on the devices of one process, that one."""

    def __init__(self, meshes: Sequence[Any]):
        """Look whether a mesh has devices of several processes."""
        spread = [mesh for mesh in meshes if spans(mesh)]
        self.several = bool(spread)
        there = sorted(processes_of(spread[0])) if spread else []
        if spread and len(there) < jax.process_count():
            raise ValueError(
                f"fit: the mesh has devices of the processes {there}, but there are "
                f"{jax.process_count()}. A run is on the devices of one process, or of all: "
                'jax.make_mesh((jax.device_count(),), ("data",)).'
            )

    @property
    def first(self) -> bool:
        """Whether this process writes and draws."""
        return not self.several or jax.process_index() == 0

    def store(self, checkpoints: Checkpoints) -> Store:
        """Return the folder of the run."""
        return Store(checkpoints) if self.first else Reader(checkpoints)

    def only_first(self, kind: Callable[[Path], T], path: Any) -> T | None:
        """Return what writes to a file; `None` on the processes that do not write."""
        return kind(Path(path)) if self.first else None

    def agreed(self, value: int) -> int:
        """Return the number that process 0 has."""
        return int(self._exchange(lambda: from_first(value))) if self.several else value

    def agreed_floats(self, values: Sequence[float]) -> list[float]:
        """Return the numbers that process 0 has, bit by bit."""
        if not self.several or not values:
            return list(values)
        coded = np.asarray(values, np.float64).view(np.int32)
        return self._exchange(lambda: from_first(coded)).view(np.float64).tolist()

    def together(self, function: Callable[[], T], what: Callable[[T], str] | None = None) -> T:
        """Return what a function returns; raise on every process if it raises on one.

        `what` describes what was returned; a `ValueError` is raised on every process if one has
        something else.
        """
        if not self.several:
            return function()
        failure, made, said = None, None, ""
        try:
            made = function()
            said = "" if what is None else what(made)
        except Exception as error:
            failure = error
        code = zlib.crc32(said.encode()) & 0x7FFFFFFF
        failed, codes = self._exchange(lambda: everywhere([failure is not None, code])).T
        if failed.any():
            self._raise(failure, int(np.argmax(failed)))
        if len(set(codes)) > 1:
            each = self._exchange(lambda: texts(said))
            raise ValueError(
                "fit: the processes disagree. "
                + " ".join(f"Process {k} has {words}." for k, words in enumerate(each))
                + " Call fit with the same arguments and batches of the same shapes on every "
                "process."
            )
        return made  # pyright: ignore[reportReturnType]

    def _raise(self, failure: Exception | None, place: int) -> NoReturn:
        """Raise an error of this process, or that of another one."""
        words = "" if failure is None else f"{type(failure).__name__}: {failure}"
        told = self._exchange(lambda: texts(words))
        if failure is not None:
            raise failure
        kind = ValueError if told[place].startswith("ValueError") else RuntimeError
        raise kind(f"fit: process {place} raised {told[place]}")

    def _exchange(self, function: Callable[[], T]) -> T:
        """Return what processes have told each other; raise if one of them is gone."""
        try:
            return function()
        except jax.errors.JaxRuntimeError as error:
            raise lost(error) from error

    def see(self, store: Store | None) -> None:
        """Raise a `ValueError` on every process if one does not see the folder of process 0."""
        if not self.several or store is None:
            return
        there = self.agreed(_token(store))
        until = time.monotonic() + PATIENCE
        while _token(store) != there and time.monotonic() < until:
            time.sleep(0.1)
        blind = np.ravel(self._exchange(lambda: everywhere([_token(store) != there])))
        if blind.any():
            raise ValueError(
                f"fit(checkpoint={str(store.folder.path)!r}): the processes "
                f"{np.flatnonzero(blind).tolist()} do not see the folder in which process 0 saves. "
                "Name a folder on a file system that all processes share."
            )

    def partial(self, snapshot: Snapshot) -> bool:
        """Return whether no process has all of the arrays of a run."""
        if not self.several:
            return False
        leaves = jax.tree.leaves((snapshot.params, snapshot.state, snapshot.sampler))
        arrays = (x for x in leaves if isinstance(x, jax.Array))
        return any(not (x.is_fully_addressable or x.is_fully_replicated) for x in arrays)

    def whole(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with all of its arrays on this process."""
        names = ("params", "state", "sampler")
        made = self._exchange(lambda: {name: whole(getattr(snapshot, name)) for name in names})
        return replace(snapshot, **made)


def lost(error: Exception) -> Exception:
    """Return the error for a process that is gone, if an error of JAX is of that kind."""
    words = str(error).splitlines()[0]
    if not LOST.search(words):
        return error
    return ProcessLost(
        f"fit: another process of this run has ended or does not answer ({words[:200]}). Start all "
        "processes again with the same script; with fit(checkpoint=...) the run resumes."
    )


def _token(store: Store) -> int:
    """Return a number that tells the lock of this run from others; 0 if there is none."""
    try:
        return zlib.crc32(store.folder.lock.read_bytes()) & 0x7FFFFFFF
    except OSError:
        return 0


def digest(key: Any) -> int:
    """Return a number that tells keys apart."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    data = np.asarray(jax.random.key_data(key) if typed else key)
    return int(np.bitwise_xor.reduce(data.astype(np.uint32).ravel()) & np.uint32(2**31 - 1))
