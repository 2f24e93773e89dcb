"""A run on disk: parameters, state, key, history, versions, and what determines the run.

`step-<number>.ckpt` is a sealed file (`sealed.py`), written under another name, flushed to the disk
and renamed, so a process killed at any moment leaves the last complete file. The arrays are stored
bit by bit. The records are in `history.rows`, to which each save appends (`ledger.py`). One run at
a time holds the folder (`folder.py`).

A file that is not what was written is set aside with a warning, and the one before is used. The
checkpoint of another run raises an error that lists the differences (`identity.py`).
"""

import dataclasses
import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.checks import error, integer, positive
from .._base.types import Params
from .folder import Folder, read_whole, remove, write_whole
from .history import History, rows_since
from .identity import Identity, differences
from .ledger import Ledger, read_ledger
from .sealed import Damaged, seal, unseal
from .warn import warn

NAME = "step-{:09d}.ckpt"
PATTERN = "step-*.ckpt"
OLD_PATTERN = "step-*.npz"
"""The files of the first format, which have no checksum."""
ASIDE = ".damaged"


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
    - `compare`: whether a run whose optimiser, model, batches or key have changed raises an error
        when it is resumed. With `False` it warns and resumes.
    """

    folder: str | os.PathLike[str]
    every_steps: int | None = None
    every_seconds: float | None = 60.0
    keep: int = 2
    compare: bool = True

    def __post_init__(self):
        if not isinstance(self.folder, str | os.PathLike):
            raise error("Checkpoints", "folder", self.folder, "a path", 'Checkpoints("run/")')
        if self.every_steps is not None:
            integer("Checkpoints", "every_steps", self.every_steps, least=1)
        if self.every_seconds is not None:
            positive("Checkpoints", "every_seconds", self.every_seconds)
        integer("Checkpoints", "keep", self.keep, least=1)
        if not isinstance(self.compare, bool):
            example = 'Checkpoints("run/", compare=False)'
            raise error("Checkpoints", "compare", self.compare, "True or False", example)

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
        numbered = [(_number(path), path) for path in Path(self.folder).glob(PATTERN)]
        return [path for number, path in sorted(numbered, reverse=True) if number >= 0]


def _number(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint; -1 for another name."""
    digits = path.name.removeprefix("step-").removesuffix(".ckpt")
    return int(digits) if digits.isdecimal() and path.name == NAME.format(int(digits)) else -1


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a run needs to resume."""

    params: Params
    state: Any
    key: Array
    step: int
    """The number of steps made, which is also the position in the data."""
    history: History
    sampler: Any = None
    """The state of the sampler, `None` without one."""


class Store:
    """The folder of a run while `fit` is at work; a context that holds the lock."""

    def __init__(self, checkpoints: Checkpoints):
        """Name a folder; nothing is read or written yet."""
        self.checkpoints = checkpoints
        self.folder = Folder(Path(checkpoints.folder))
        self.ledger = Ledger(self.folder.path / "history.rows")
        self.note = self.folder.path / "begun.json"
        """What run has begun, until its first save."""
        self.identity: Identity = {}

    def __enter__(self) -> "Store":
        self.folder.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.release()

    def save(self, snapshot: Snapshot, parts: Sequence[History]) -> None:
        """Write a snapshot, whole or not at all, and remove the files that are too many.

        `parts` is the history since the start, of which the new parts are appended.
        """
        self.folder.renew()
        if not self.ledger.intact():
            self.ledger = Ledger(self.ledger.path)
        self.ledger.append(rows_since(parts, self.ledger.extent.step))
        manifest = _manifest(snapshot) | {
            "history": self.ledger.seal(),
            "identity": self.identity,
        }
        arrays = {name: np.asarray(_raw(x)) for name, x in _named(snapshot).items()}
        write_whole(self.folder.path / NAME.format(snapshot.step), seal(manifest, arrays))
        remove(self.note)
        for old in self.checkpoints.files()[self.checkpoints.keep :]:
            remove(old)

    def begin(self, telemetry: Path) -> None:
        """Note, until the first save, that this run writes lines to a file."""
        write_whole(self.note, [self._begun(telemetry)])

    def began(self, telemetry: Path) -> bool:
        """Return whether this run has begun to write to a file, and was killed before it saved."""
        try:
            return read_whole(self.note) == self._begun(telemetry)
        except (OSError, Damaged):
            return False

    def _begun(self, telemetry: Path) -> bytes:
        begun = {"telemetry": os.path.abspath(telemetry), "identity": self.identity}
        return json.dumps(begun, sort_keys=True).encode()

    def load(self, like: Snapshot, identity: Identity) -> Snapshot | None:
        """Return the newest snapshot that is whole, `None` in an empty folder.

        `like` has the structure of the run and `identity` what determines it; a file that differs
        raises a `ValueError`, and so does a folder in which no file is whole.
        """
        self.identity = identity
        damages: dict[Path, str] = {}
        for file in self.checkpoints.files():
            try:
                manifest, arrays = read(file)
                changed = self._compare(file, manifest, like)
                restored = _restore(manifest, arrays, like)
                self.ledger, history = self._history(manifest)
            except Damaged as damage:
                damages[file] = str(damage)
                continue
            # A run that was changed on purpose is another one from here on.
            self.identity = identity if changed else manifest["identity"]
            _set_aside(damages)
            return dataclasses.replace(restored, history=history)
        if damages:
            raise ValueError(self._nothing_whole(damages))
        if any(self.folder.path.glob(OLD_PATTERN)):
            raise ValueError(
                f"the checkpoints in {self.folder.path} are of an earlier format (pullback 0.1), "
                "which this version does not read. Resume with that version, or name another "
                "folder, fit(..., checkpoint=...)."
            )
        return None

    def _history(self, manifest: dict[str, Any]) -> tuple[Ledger, History]:
        """Return the history of a checkpoint; raises `Damaged`."""
        path = self.ledger.path
        if not os.path.lexists(path) and manifest["history"]["bytes"]:
            warn(
                f"{path} is gone: the run resumes, but the records of its first "
                f"{manifest['step']} steps are lost."
            )
            return Ledger(path), History({})
        try:
            return read_ledger(path, manifest["history"])
        except Damaged as damage:
            raise Damaged(
                f"its history {path} is damaged: {damage}; delete {path.name} to resume without "
                f"the records of the first {manifest['step']} steps"
            ) from damage

    def _compare(self, file: Path, found: dict[str, Any], like: Snapshot) -> bool:
        """Return whether the run was changed; raises a `ValueError` unless it may be."""
        wanted = _manifest(like)
        there = {"pullback": found["pullback"], **found["arrays"]}
        here = {"pullback": wanted["pullback"], **wanted["arrays"]}
        structure = [
            f"{name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
            for name in dict.fromkeys([*there, *here])
            if there.get(name) != here.get(name)
        ]
        same_python = found["python"] == wanted["python"]
        changed, noted = differences(found["identity"], self.identity, same_python)
        if structure or (changed and self.checkpoints.compare):
            raise ValueError(
                f"the checkpoint {file} is of another run:\n  "
                + "\n  ".join([*structure, *changed])
                + "\nName another folder, fit(..., checkpoint=...), or make the run the same again"
                + (
                    "."
                    if structure
                    else '; Checkpoints("run/", compare=False) resumes with a warning.'
                )
            )
        for difference in [*changed, *noted]:
            warn(f"the checkpoint {file}: {difference}; the run resumes.")
        for name in ("python", "jax", "numpy", "backend"):
            if found[name] != wanted[name]:
                warn(
                    f"the checkpoint {file} was written with {name} {found[name]}, this is "
                    f"{wanted[name]}: the run resumes, but its last bits may differ."
                )
        return bool(changed)

    def _nothing_whole(self, damages: dict[Path, str]) -> str:
        """The message for a folder of damaged files."""
        return (
            f"no checkpoint in {self.folder.path} can be read:\n  "
            + "\n  ".join(f"{file.name}: {why}" for file, why in damages.items())
            + "\nRestore a file, or name another folder to start again, fit(..., checkpoint=...)."
        )


FIELDS: dict[str, type] = {
    "pullback": str,
    "python": str,
    "jax": str,
    "numpy": str,
    "backend": str,
    "step": int,
    "arrays": dict,
    "history": dict,
    "identity": dict,
}
"""The fields of a manifest."""


def read(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return manifest and arrays of a checkpoint; raises `Damaged`."""
    try:
        content = read_whole(file)
    except (OSError, MemoryError) as failure:
        raise Damaged(f"{type(failure).__name__}: {failure}") from failure
    manifest, arrays = parse(content)
    if manifest["step"] != _number(file):
        raise Damaged(f"it is the checkpoint of step {manifest['step']}")
    return manifest, arrays


def parse(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return manifest and arrays of the content of a checkpoint; raises `Damaged`."""
    manifest, arrays = unseal(content)
    for name, kind in FIELDS.items():
        if not isinstance(manifest.get(name), kind):
            raise Damaged(f"its manifest has no {name!r}, or not of the type {kind.__name__}")
    if manifest["step"] < 0 or not isinstance(manifest["history"].get("bytes"), int):
        raise Damaged("its manifest counts what cannot be counted")
    return manifest, arrays


def _set_aside(damages: dict[Path, str]) -> None:
    """Rename damaged files, so that they are not tried and not counted again, and warn."""
    for file, why in damages.items():
        aside = file.with_name(file.name + ASIDE)
        try:
            os.replace(file, aside)
        except OSError:
            aside = file
        warn(
            f"the checkpoint {file} cannot be read ({why}); it was set aside as {aside.name}, and "
            "the one before is used."
        )


def _trees(snapshot: Snapshot) -> tuple[Any, ...]:
    """Return what of a snapshot holds arrays."""
    return snapshot.params, snapshot.state, snapshot.key, snapshot.sampler


def _named(snapshot: Snapshot) -> dict[str, Array]:
    """Return the arrays of a snapshot by name."""
    trees = dict(zip(("params", "state", "key", "sampler"), _trees(snapshot), strict=True))
    return {
        f"{name}{jax.tree_util.keystr(path)}": leaf
        for name, tree in trees.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if eqx.is_array(leaf)
    }


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _raw(x: Array) -> Array:
    """Return an array as NumPy can hold it."""
    return jax.random.key_data(x) if _is_key(x) else x


def _from_raw(stored: np.ndarray, like: Array) -> Array:
    """Return a stored array with the dtype that it had."""
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(stored), impl=jax.random.key_impl(like))
    return jnp.asarray(stored)


def _own_version() -> str:
    """Return the version of this library, which may be imported from its sources."""
    try:
        return version("pullback")
    except PackageNotFoundError:
        return "not installed"


def _manifest(snapshot: Snapshot) -> dict[str, Any]:
    """Return what a checkpoint holds about its run, apart from its history and identity."""
    return {
        "pullback": _own_version(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "backend": jax.default_backend(),
        "step": snapshot.step,
        "arrays": {name: f"{x.dtype}{list(x.shape)}" for name, x in _named(snapshot).items()},
    }


def _restore(manifest: dict[str, Any], arrays: dict[str, np.ndarray], like: Snapshot) -> Snapshot:
    """Return the snapshot whose arrays were stored, with the structure of another."""
    wanted = _named(like)
    if list(arrays) != list(wanted):
        missing = sorted(set(wanted) ^ set(arrays)) or ["their order"]
        raise Damaged(f"its arrays are not those of its manifest ({', '.join(missing)})")
    restored = []
    for name, x in wanted.items():
        stored, raw = arrays[name], _raw(x)
        if (stored.dtype, stored.shape) != (raw.dtype, raw.shape):
            raise Damaged(
                f"{name} is stored as {stored.dtype}{list(stored.shape)}, its manifest lists "
                f"{manifest['arrays'][name]}"
            )
        restored.append(_from_raw(stored, x))
    leaves, treedef = jax.tree.flatten(_trees(like))
    remaining = iter(restored)
    leaves = [next(remaining) if eqx.is_array(x) else x for x in leaves]
    params, state, key, sampler = jax.tree.unflatten(treedef, leaves)
    return Snapshot(params, state, key, manifest["step"], History({}), sampler)
