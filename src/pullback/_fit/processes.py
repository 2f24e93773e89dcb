"""Several processes that make one run: what each decides by itself must be decided once.

Every process calls `fit` with the same arguments and computes the same steps. How many of them are
made at a time depends on a clock, and whether a callback ends the run on the callback: there the
answer of process 0 counts. Process 0 alone writes and draws. An error on one process before the
first step is raised on all of them, so that nobody waits for what does not come.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from .._compat.devices import Layout
from .checkpoint import Checkpoints, Store

T = TypeVar("T")


class Reader(Store):
    """The folder of a run as a process sees it that does not write there."""

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def save(self, snapshot: Any, parts: Any) -> None:
        """Leave it to process 0."""


class Processes:
    """The processes of one run; of a run on the devices of one process, that one."""

    def __init__(self, layout: Layout | None):
        """Look whether the samples are on devices of several processes."""
        mine = jax.process_index()
        self.several = layout is not None and any(
            device.process_index != mine for device in np.ravel(np.asarray(layout.mesh.devices))
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
        if not self.several:
            return value
        return int(multihost_utils.broadcast_one_to_all(np.asarray(value, np.int32)))

    def together(self, function: Callable[[], T]) -> T:
        """Return what a function returns; raise on every process if it raises on one."""
        if not self.several:
            return function()
        failure, made = None, None
        try:
            made = function()
        except Exception as error:
            failure = error
        failed = np.ravel(self._everywhere([failure is not None]))
        if failure is not None:
            raise failure
        if failed.any():
            raise ValueError(
                f"fit: process {int(np.argmax(failed))} could not begin; see its message."
            )
        return made  # pyright: ignore[reportReturnType]

    def check(self, **numbers: int) -> None:
        """Raise a `ValueError` on every process if a number is not the same on all."""
        if not self.several:
            return
        found = self._everywhere(list(numbers.values()))
        for name, column in zip(numbers, found.T, strict=True):
            if np.any(column != column[0]):
                raise ValueError(
                    f"fit: the processes disagree on {name}: {column.tolist()}. Call fit with the "
                    "same arguments on every process, and a checkpoint folder that all of them see."
                )

    def _everywhere(self, numbers: list[Any]) -> np.ndarray:
        """Return the numbers of each process, a row each."""
        mine = np.asarray(numbers, np.int32)
        return np.reshape(multihost_utils.process_allgather(mine), (-1, mine.size))


def digest(key: Any) -> int:
    """Return a number that tells keys apart."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    data = np.asarray(jax.random.key_data(key) if typed else key)
    return int(np.bitwise_xor.reduce(data.astype(np.uint32).ravel()) & np.uint32(2**31 - 1))
