"""A run on disk: parameters, state, PRNG key, history and versions in one file.

A file is written under another name, flushed to the disk and renamed, so a process killed at any
moment leaves the last complete file. The arrays are stored bit by bit. The checkpoint of another
run raises an error that lists the differences. An unreadable file (truncated by a full disk, say)
is skipped with a warning and the previous one is used.
"""

import dataclasses
import difflib
import json
import os
import time
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.checks import error, integer, positive
from .._base.types import Params
from .history import History
from .warn import warn

FORMAT = 1
COLUMN = "history "
"""What the names of stored columns begin with."""


@dataclasses.dataclass(frozen=True, repr=False)
class Checkpoints:
    """Where and how often `fit` saves a run.

    ```python
    saving = pb.Checkpoints("run/", every_steps=100)
    fit = pb.fit(opt, params, (x, y), steps=1000, checkpoint=saving)
    ```

    **Arguments:**

    - `folder`: where the files are; made if there is none.
    - `every_steps`: save after so many steps; defaults to saving by time only.
    - `every_seconds`: save when so many seconds have passed since the last time; `None` saves by
        steps only.
    - `keep`: how many files to keep, the newest ones.
    """

    folder: str | os.PathLike[str]
    every_steps: int | None = None
    every_seconds: float | None = 60.0
    keep: int = 2

    def __post_init__(self):
        if not isinstance(self.folder, str | os.PathLike):
            raise error("Checkpoints", "folder", self.folder, "a path", 'Checkpoints("run/")')
        if self.every_steps is not None:
            integer("Checkpoints", "every_steps", self.every_steps, least=1)
        if self.every_seconds is not None:
            positive("Checkpoints", "every_seconds", self.every_seconds)
        integer("Checkpoints", "keep", self.keep, least=1)

    def __repr__(self) -> str:
        every = [
            f"{name}={value}"
            for name, value in (
                ("every_steps", self.every_steps),
                ("every_seconds", self.every_seconds),
            )
            if value is not None
        ]
        return f"Checkpoints({', '.join([repr(os.fspath(self.folder)), *every])})"

    def due(self, step: int, saved_step: int, saved_time: float) -> bool:
        """Return whether it is time to save.

        **Arguments:**

        - `step`: the number of steps made.
        - `saved_step`, `saved_time`: when it was last done.
        """
        if step <= saved_step:
            return False
        every, seconds = self.every_steps, self.every_seconds
        by_steps = every is not None and step // every > saved_step // every
        by_time = seconds is not None and time.monotonic() - saved_time >= seconds
        return by_steps or by_time

    def files(self) -> list[Path]:
        """Return the files that there are, newest first."""
        return sorted(Path(self.folder).glob("step-*.npz"), reverse=True)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a run needs to resume."""

    params: Params
    state: Any
    key: Array
    step: int
    """The number of steps made, which is also the position in the data."""
    history: History


def save(checkpoints: Checkpoints, snapshot: Snapshot, description: str) -> None:
    """Write a snapshot, whole or not at all, and remove the files that are too many."""
    folder = Path(checkpoints.folder)
    folder.mkdir(parents=True, exist_ok=True)
    leaves = [x for x in jax.tree.leaves(_tree(snapshot)) if eqx.is_array(x)]
    arrays = {f"leaf {i}": np.asarray(_raw(x)) for i, x in enumerate(leaves)}
    arrays |= {COLUMN + name: column for name, column in snapshot.history.columns.items()}
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
    """Return the newest snapshot that can be read, `None` if there is none."""
    for file in checkpoints.files():
        try:
            with open(file, "rb") as opened, np.load(opened) as stored:
                arrays = {name: stored[name] for name in stored.files}
            manifest = json.loads(arrays.pop("manifest").tobytes())
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as failure:
            warn(
                f"the checkpoint {file} cannot be read ({type(failure).__name__}: {failure}); the "
                "one before is used."
            )
            continue
        _compare(file, manifest, _manifest(like, description))
        return _restore(arrays, manifest["step"], like)
    return None


def _tree(snapshot: Snapshot) -> tuple[Params, Any, Array]:
    """Return what is stored leaf by leaf."""
    return snapshot.params, snapshot.state, snapshot.key


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _raw(x: Array) -> Array:
    """Return an array as NumPy can hold it."""
    return jax.random.key_data(x) if _is_key(x) else x


def _from_raw(stored: np.ndarray, like: Array) -> Array:
    """Return a stored array with the dtype that it had."""
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(stored), impl=jax.random.key_impl(like))
    # Short floats are stored as bytes, since they are no NumPy dtypes.
    return jnp.asarray(stored.view(like.dtype) if stored.dtype.kind == "V" else stored)


def _manifest(snapshot: Snapshot, description: str) -> dict[str, Any]:
    """Return what a checkpoint says about its run."""
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


def _compare(file: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise a `ValueError` for a checkpoint of another run, warn of other versions."""
    there = {name: found.get(name, "nothing") for name in ("format", "pullback", "key")}
    there |= found.get("arrays", {})
    here = {name: wanted[name] for name in ("format", "pullback", "key")}
    here |= wanted["arrays"]
    differences = [
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
            + "\nName another folder, fit(..., checkpoint=...), or make the run the same again."
        )
    for name in ("jax", "numpy"):
        if found.get(name) != wanted[name]:
            warn(
                f"the checkpoint {file} was written with {name} {found.get(name)}, this is "
                f"{wanted[name]}: the run resumes, but its last bits may differ."
            )


def _restore(arrays: dict[str, np.ndarray], step: int, like: Snapshot) -> Snapshot:
    """Return the snapshot whose arrays were stored, with the structure of another."""
    leaves, treedef = jax.tree.flatten(_tree(like))
    places = [i for i, x in enumerate(leaves) if eqx.is_array(x)]
    for number, place in enumerate(places):
        leaves[place] = _from_raw(arrays[f"leaf {number}"], leaves[place])
    params, state, key = jax.tree.unflatten(treedef, leaves)
    columns = {
        name.removeprefix(COLUMN): column
        for name, column in arrays.items()
        if name.startswith(COLUMN)
    }
    return Snapshot(params, state, key, step, History(columns))
