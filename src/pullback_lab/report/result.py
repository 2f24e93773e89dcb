"""What became of one claim, as a file.

A finished claim is `<name>.json` beside `<name>.png` and `<name>.svg`. The pictures are written
first and the JSON last, each to a temporary file that is then renamed: a run that is killed leaves
either a whole result or none. The JSON carries checksums of itself and of the pictures, and a stamp
of what it was made with: budget, seeds, versions, and the source of the claim and of the library. A
result with another stamp is not used again.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..papers import Row, Verdict
from ..papers._claim import Role


class Damaged(Exception):
    """A result file that is not what was written."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What one claim measured; `error` is the traceback if it raised."""

    name: str
    source: str
    place: str
    statement: str
    correction: str
    recorded: Verdict
    rows: tuple[Row, ...]
    verdict: Verdict | None
    seconds: float
    stamp: dict[str, Any]
    date: str
    key_number: str = ""
    error: str | None = None
    alt: str = ""
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pictures: dict[str, str] = dataclasses.field(default_factory=dict)
    """Format -> checksum; empty if there is no figure."""

    @property
    def agrees(self) -> bool:
        """Whether the verdict is the one on record."""
        return self.error is None and self.verdict is self.recorded

    @property
    def key_row(self) -> Row | None:
        """The row that stands for the claim in a summary."""
        named = [row for row in self.rows if row.label == self.key_number]
        return (named or list(self.rows) or [None])[0]

    def plain(self) -> dict[str, Any]:
        """As what JSON knows, without the data."""
        content = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("data", "rows")}
        content["recorded"], content["verdict"] = self.recorded.value, self.verdict and self.verdict.value
        content["rows"] = [row._asdict() | {"role": row.role.value} for row in self.rows]
        return encode(content)


def encode(value: Any) -> Any:
    """As what JSON knows: arrays as `{"array": ..., "dtype": ...}`, numbers that are not finite as
    strings.
    """
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, np.generic):
        return encode(value.item())
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biufU":
        raise TypeError(f"data of a claim must be numbers, strings and arrays of them, got {type(value).__name__} ({array.dtype}).")
    return {"array": encode(array.tolist()), "dtype": str(array.dtype), "shape": list(array.shape)}


def decode(value: Any) -> Any:
    """The way back; a number that is not finite stays a string outside arrays."""
    if isinstance(value, dict):
        if set(value) == {"array", "dtype", "shape"}:
            return np.array(value["array"], value["dtype"]).reshape(value["shape"])
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def digest(content: bytes) -> str:
    """A checksum."""
    return hashlib.sha256(content).hexdigest()[:32]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save(result: Result, folder: Path, pictures: Mapping[str, bytes] = {}) -> Result:
    """Write a result, pictures first."""
    for kind in ("png", "svg"):
        if kind in pictures:
            write_whole(folder / f"{result.name}.{kind}", pictures[kind])
        else:
            (folder / f"{result.name}.{kind}").unlink(missing_ok=True)
    result = dataclasses.replace(result, pictures={kind: digest(content) for kind, content in pictures.items()})
    content = result.plain() | {"data": encode(result.data)}
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
    sealed = json.dumps({"checksum": digest(text.encode()), "result": content}, ensure_ascii=False, allow_nan=False, indent=1)
    write_whole(folder / f"{result.name}.json", sealed.encode())
    return result


def load(folder: Path, name: str) -> Result | None:
    """Read a result; `None` if there is none, `Damaged` if it is not what was written."""
    try:
        sealed = json.loads((folder / f"{name}.json").read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Damaged("it is cut off or is no JSON") from error
    try:
        content = sealed["result"]
        if sealed["checksum"] != digest(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1).encode()):
            raise Damaged("its checksum does not fit")
        for kind, checksum in content["pictures"].items():
            path = folder / f"{name}.{kind}"
            if not path.exists() or digest(path.read_bytes()) != checksum:
                raise Damaged(f"its picture {path.name} is missing or changed")
        return _restored(content, name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"its fields are not those of a result ({error!r})") from error


def _restored(content: dict[str, Any], name: str) -> Result:
    if content["name"] != name:
        raise Damaged(f"it is the result of {content['name']!r}")
    rows = tuple(
        Row(r["label"], float(r["measured"]), r["relation"], float(r["bound"]), r["holds"], Role(r["role"]))
        for r in content["rows"]
    )
    verdict = None if content["verdict"] is None else Verdict(content["verdict"])
    rest = {"rows": rows, "verdict": verdict, "recorded": Verdict(content["recorded"]), "data": decode(content["data"])}
    return Result(**(content | rest))
