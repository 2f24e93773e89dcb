"""The history on disk: a file to which each save appends the rows since the last one.

A checkpoint holds the length of the file and the SHA-256 of so much of it. A save therefore costs
the same after 10 steps and after 10 million, and a checkpoint stays valid while the file grows.
Bytes beyond the length are what a killed process appended without a checkpoint; the next save
overwrites them.

    segment = length of its header, 4 bytes | header, JSON | the columns of its rows, one by one

The header lists names and dtypes of the columns, unless they are those of the segment before.
"""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .folder import open_regular, read_whole
from .history import History
from .sealed import Damaged, as_bytes

LENGTH = 4


@dataclasses.dataclass(frozen=True)
class Extent:
    """How far a ledger reaches."""

    rows: int = 0
    length: int = 0
    step: int = 0
    """The step after the last row."""
    checksum: Any = dataclasses.field(default_factory=hashlib.sha256)
    columns: list[list[str]] | None = None


class Ledger:
    """The rows of a run in a file; `extent` covers what was appended so far.

    The extent is replaced by one assignment, so that Ctrl-C between two others harms nothing.
    """

    def __init__(self, path: Path, extent: Extent | None = None):
        """Begin an empty ledger, whose file is made with the first rows, or continue one."""
        self.path = path
        self.extent = Extent() if extent is None else extent

    def seal(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the file."""
        now = self.extent
        return {"rows": now.rows, "bytes": now.length, "sha256": now.checksum.hexdigest()}

    def intact(self) -> bool:
        """Whether the file is still at least as long as what was appended."""
        try:
            return os.lstat(self.path).st_size >= self.extent.length
        except FileNotFoundError:
            return self.extent.length == 0

    def append(self, history: History) -> None:
        """Append rows and bring them to the disk; after an `OSError` the file is as before."""
        if not len(history):
            return
        before = self.extent
        columns = [[name, x.dtype.name] for name, x in history.columns.items()]
        header: dict[str, Any] = {"rows": len(history)}
        if columns != before.columns:
            header["columns"] = columns
        text = json.dumps(header).encode()
        data = [bytes(as_bytes(x)) for x in history.columns.values()]
        segment = b"".join([len(text).to_bytes(LENGTH, "little"), text, *data])
        self._write(segment, before.length)
        checksum = before.checksum.copy()
        checksum.update(segment)
        self.extent = Extent(
            before.rows + len(history),
            before.length + len(segment),
            int(history["step"][-1]) + 1,
            checksum,
            columns,
        )

    def _write(self, segment: bytes, length: int) -> None:
        """Write a segment after so many bytes of the file."""
        try:
            descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT)
        except Damaged as damage:
            raise OSError(f"{self.path}: {damage}") from damage
        with open(descriptor, "r+b", buffering=0) as file:
            try:
                file.truncate(length)
                file.seek(length)
                written = 0
                while written < len(segment):
                    written += file.write(segment[written:]) or 0
                os.fsync(file.fileno())
            except OSError:
                file.truncate(length)
                if length == 0:
                    self.path.unlink(missing_ok=True)
                raise


def read_ledger(path: Path, sealed: Any) -> tuple[Ledger, History]:
    """Return the ledger that a checkpoint sealed, and its rows; raises `Damaged`."""
    try:
        rows, length = int(sealed["rows"]), int(sealed["bytes"])
        content = memoryview(read_whole(path) if length else b"")[:length]
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the checkpoint has no history ({error!r})") from error
    except OSError as failure:
        raise Damaged(f"it cannot be read ({failure})") from failure
    if len(content) < length:
        raise Damaged(f"it has {len(content)} bytes of {length}")
    checksum = hashlib.sha256(content)
    if checksum.hexdigest() != sealed.get("sha256"):
        raise Damaged("its checksum does not match: it was changed")
    parts = []
    place = 0
    columns = None
    try:
        while place < length:
            part, place, columns = _segment(content, place, columns)
            parts.append(part)
        history = History.join(parts)
        step = int(history["step"][-1]) + 1 if len(history) else 0
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"its segments are not those of a history ({error!r})") from error
    if len(history) != rows or place != length:
        raise Damaged(f"it has {len(history)} rows of {rows}")
    return Ledger(path, Extent(rows, length, step, checksum, columns)), history


def _segment(
    content: memoryview, place: int, columns: list[list[str]] | None
) -> tuple[History, int, list[list[str]]]:
    """Return the rows of a segment, where the next one begins, and the columns."""
    start = place + LENGTH
    end = start + int.from_bytes(content[place:start], "little")
    header = json.loads(bytes(content[start:end]))
    listed = header.get("columns", columns)
    if not isinstance(header["rows"], int) or header["rows"] < 1:
        raise ValueError(f"a segment of {header['rows']} rows")
    read: dict[str, np.ndarray] = {}
    for name, dtype in listed:
        size = np.dtype(dtype).itemsize * header["rows"]
        read[name] = np.frombuffer(content[end : end + size], np.uint8).view(dtype)
        end += size
    return History(read), end, listed
