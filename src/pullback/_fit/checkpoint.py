"""A run on disk: parameters, state, PRNG key, data position, history and versions in one file,
which is whole or not there.

A file is written beside its place, flushed to the disk, and renamed; so a process killed at any
moment leaves the last whole file. The arrays are stored bit by bit. Reading refuses what belongs to
another run and says what differs; a file that cannot be read (truncated by a disk, say) is passed
over for the one before, and said.
"""

import dataclasses
import difflib
import json
import os
import time
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .history import History

FORMAT = 1


class FitWarning(UserWarning):
    """Something about a run that its user should know; the run goes on."""


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where and how often to save.

    **Arguments:**

    - `folder`: made if it is not there.
    - `every_steps`: save after so many steps; only by time if left out.
    - `every_seconds`: save when so many seconds have passed since the last time; only by steps if
        `None`.
    - `keep`: how many files to keep, the newest ones.
    """

    folder: str | os.PathLike
    every_steps: int | None = None
    every_seconds: float | None = 60.0
    keep: int = 2

    def __post_init__(self):
        if self.keep < 1 or (self.every_steps is not None and self.every_steps < 1):
            raise ValueError(
                f"Checkpoints(every_steps={self.every_steps}, keep={self.keep}): both must be at least 1."
            )
        if self.every_seconds is not None and not self.every_seconds > 0:
            raise ValueError(
                f"Checkpoints(every_seconds={self.every_seconds}): must be positive, or None."
            )

    def due(self, step: int, saved_step: int, saved_time: float) -> bool:
        """Whether it is time to save.

        **Arguments:**

        - `step`: the number of steps made.
        - `saved_step`, `saved_time`: when it was last done.
        """
        by_steps = (
            self.every_steps is not None
            and step // self.every_steps > saved_step // self.every_steps
        )
        by_time = (
            self.every_seconds is not None and time.monotonic() - saved_time >= self.every_seconds
        )
        return step > saved_step and (by_steps or by_time)

    def files(self) -> list[Path]:
        """The files that are there, newest first."""
        return sorted(Path(self.folder).glob("step-*.npz"), reverse=True)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a run needs to go on: parameters, state, key, the number of steps made (which is also
    the data position), history.
    """

    params: Any
    state: Any
    key: Any
    step: int
    history: History


def save(checkpoints: Checkpoints, snapshot: Snapshot, description: str) -> None:
    """Write a snapshot, whole or not at all, and remove the files that are too many."""
    folder = Path(checkpoints.folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"leaf {i}": np.asarray(x) for i, x in enumerate(_leaves(snapshot))}
    arrays |= {f"history {name}": column for name, column in snapshot.history.columns.items()}
    manifest = _manifest(snapshot, description)
    arrays["manifest"] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    place = folder / f"step-{snapshot.step:09d}.npz"
    beside = folder / f".{place.name}.{os.getpid()}"
    try:
        with open(beside, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
    for old in checkpoints.files()[checkpoints.keep :]:
        old.unlink(missing_ok=True)


def load(checkpoints: Checkpoints, like: Snapshot, description: str) -> Snapshot | None:
    """The newest snapshot that can be read, or `None` if there is none."""
    for file in checkpoints.files():
        try:
            with open(file, "rb") as opened, np.load(opened) as stored:
                arrays = {name: stored[name] for name in stored.files}
            manifest = json.loads(arrays.pop("manifest").tobytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            warnings.warn(
                f"the checkpoint {file} cannot be read ({type(error).__name__}: {error}); the one before is used.",
                FitWarning,
                stacklevel=4,
            )
            continue
        _compare(file, manifest, _manifest(like, description))
        return _restore(arrays, manifest, like)
    return None


def _leaves(snapshot: Snapshot) -> list[Any]:
    key = jax.random.key_data(snapshot.key)
    return [x for x in jax.tree.leaves((snapshot.params, snapshot.state, key)) if eqx.is_array(x)]


def _manifest(snapshot: Snapshot, description: str) -> dict[str, Any]:
    shapes = {
        f"{name}{jax.tree_util.keystr(path)}": f"{leaf.dtype}{list(leaf.shape)}"
        for name, tree in (("params", snapshot.params), ("state", snapshot.state))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if eqx.is_array(leaf)
    }
    return {
        "format": FORMAT,
        "pullback": version("pullback"),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "key": str(jax.random.key_impl(snapshot.key)),
        "step": snapshot.step,
        "arrays": shapes,
        "optimiser": description.splitlines(),
    }


def _compare(file: Path, found: dict, wanted: dict) -> None:
    differences = [
        f"{name}: {found.get(name)} there, {wanted[name]} here"
        for name in ("format", "pullback", "key")
        if found.get(name) != wanted[name]
    ]
    there, here = found.get("arrays", {}), wanted["arrays"]
    differences += [
        f"{name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
        for name in dict.fromkeys([*there, *here])
        if there.get(name) != here.get(name)
    ]
    lines = difflib.unified_diff(found.get("optimiser", []), wanted["optimiser"], lineterm="", n=0)
    differences += [
        f"optimiser: {line}" for line in lines if not line.startswith(("---", "+++", "@@"))
    ]
    if differences:
        raise ValueError(
            f"the checkpoint {file} is of another run:\n  "
            + "\n  ".join(differences)
            + "\nGive another folder, checkpoint=..., or make the run the same again."
        )
    for name in ("jax", "numpy"):
        if found.get(name) != wanted[name]:
            warnings.warn(
                f"the checkpoint {file} was written with {name} {found.get(name)}, this is {wanted[name]}: the run goes on, but its last bits may differ.",
                FitWarning,
                stacklevel=5,
            )


def _restore(arrays: dict[str, np.ndarray], manifest: dict, like: Snapshot) -> Snapshot:
    tree = (like.params, like.state, jax.random.key_data(like.key))
    leaves, treedef = jax.tree.flatten(tree)
    stored = (jnp.asarray(arrays[f"leaf {i}"]) for i in range(len(arrays)))
    params, state, data = jax.tree.unflatten(
        treedef, [next(stored) if eqx.is_array(x) else x for x in leaves]
    )
    key = jax.random.wrap_key_data(data, impl=jax.random.key_impl(like.key))
    columns = {
        name.removeprefix("history "): column
        for name, column in arrays.items()
        if name.startswith("history ")
    }
    return Snapshot(params, state, key, manifest["step"], History(columns))
