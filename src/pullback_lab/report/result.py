"""The result of one claim, and its file.

A finished claim is `<name>.json` beside `<name>.png` and `<name>.svg`. The pictures are written
first and the JSON last, each to a temporary file that is then renamed, so that a killed run leaves
either a whole result or none. The JSON contains checksums of itself and of the pictures, and a
stamp of what it was made with (see `stamp.py`). A result with another stamp is not used again.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..papers import KEYS, Role, Row, Verdict
from .files import remove, write_whole


class Damaged(Exception):
    """A result file does not contain what was written."""


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
    quotation: str = ""
    stands: bool | None = None
    remark: str = ""
    keys: int = KEYS
    """How many of the other random keys give the verdict on record, as the claim says."""
    derivation: str = ""
    """The docstring of its module, Markdown with formulas."""
    code: str = ""
    """The name of that module."""
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
        """The fields as JSON values, without the data."""
        names = [field.name for field in dataclasses.fields(self)]
        content = {name: getattr(self, name) for name in names if name not in ("data", "rows")}
        content["recorded"] = self.recorded.value
        content["verdict"] = self.verdict and self.verdict.value
        content["rows"] = [row._asdict() | {"role": row.role.value} for row in self.rows]
        return encode(content)


def encode(value: Any) -> Any:
    """A value for JSON: arrays become dictionaries, non-finite numbers become strings."""
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
        raise TypeError(
            "data of a claim must be numbers, strings and arrays of them, got "
            f"{type(value).__name__} ({array.dtype})."
        )
    return {"array": encode(array.tolist()), "dtype": str(array.dtype), "shape": list(array.shape)}


def decode(value: Any) -> Any:
    """The inverse of `encode`, except that non-finite numbers outside arrays stay strings."""
    if isinstance(value, dict):
        if set(value) == {"array", "dtype", "shape"}:
            return np.array(value["array"], value["dtype"]).reshape(value["shape"])
        return {key: decode(item) for key, item in value.items()}
    return [decode(item) for item in value] if isinstance(value, list) else value


def digest(content: bytes) -> str:
    """A checksum of 32 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:32]


def save(result: Result, folder: Path, pictures: Mapping[str, bytes] = {}) -> Result:
    """Write a result, pictures first; returns it with the checksums of the pictures."""
    for kind in ("png", "svg"):
        if kind in pictures:
            write_whole(folder / f"{result.name}.{kind}", pictures[kind])
        else:
            remove(folder / f"{result.name}.{kind}")
    checksums = {kind: digest(content) for kind, content in pictures.items()}
    result = dataclasses.replace(result, pictures=checksums)
    content = result.plain() | {"data": encode(result.data)}
    sealed = {"checksum": digest(_json(content)), "result": content}
    write_whole(folder / f"{result.name}.json", _json(sealed))
    return result


def _json(content: Any) -> bytes:
    """The bytes that are written and of which the checksum is taken."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1).encode()


def load(folder: Path, name: str) -> Result | None:
    """Read a result; `None` if there is none. Raises `Damaged` if the file was changed or cut."""
    path = folder / f"{name}.json"
    try:
        sealed = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else f"it cannot be read: {error.strerror}"
        raise Damaged(reason) from error
    except (ValueError, RecursionError) as error:
        raise Damaged("it is truncated or not JSON") from error
    try:
        content = sealed["result"]
        if sealed["checksum"] != digest(_json(content)):
            raise Damaged("its checksum does not match")
        for kind, checksum in content["pictures"].items():
            _check_picture(folder / f"{name}.{kind}", checksum)
        return _restored(content, name)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Damaged(f"its fields are not those of a result ({error!r})") from error
    except RecursionError as error:
        raise Damaged("its fields are nested too deeply") from error


def _check_picture(path: Path, checksum: str) -> None:
    """Raise `Damaged` unless a picture is the one that was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Damaged(f"its picture {path.name} is missing or cannot be read") from error
    if digest(content) != checksum:
        raise Damaged(f"its picture {path.name} is changed")


def _restored(content: dict[str, Any], name: str) -> Result:
    """The result whose fields were read."""
    if content["name"] != name:
        raise Damaged(f"it is the result of {content['name']!r}")
    rows = tuple(
        Row(
            label=row["label"],
            measured=float(row["measured"]),
            relation=row["relation"],
            bound=float(row["bound"]),
            holds=row["holds"],
            role=Role(row["role"]),
        )
        for row in content["rows"]
    )
    restored = {
        "rows": rows,
        "verdict": None if content["verdict"] is None else Verdict(content["verdict"]),
        "recorded": Verdict(content["recorded"]),
        "data": decode(content["data"]),
    }
    return Result(**(content | restored))
