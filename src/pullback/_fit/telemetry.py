"""Telemetry: the records of a run as a file of JSON lines, one line per step.

A line that this run does not write again is never removed. A fresh run therefore raises if the file
has any content. One that was killed before its first checkpoint and begins again sets the file
aside. A resumed run continues its own file: the lines of the steps before the checkpoint must agree
with the checkpoint's history, and those that are missing are written again from there.
The lines of the steps that the run repeats are dropped, and so is an incomplete last line, which is
what a killed process leaves behind.

Rows that cannot be written (a full disk, a folder that is gone) wait until they can be.
"""

import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .history import History, rows_since
from .warn import warn

SOONEST, LATEST = 1.0, 60.0
"""How many seconds to wait before another attempt: doubled with each, within these bounds."""


class Telemetry:
    """A file of JSON lines to which a run appends."""

    def __init__(self, path: Path):
        """Name a file; nothing is written yet."""
        self.path = path
        self.step = 0
        """The step of the next line."""
        self.torn: int | None = None
        """The size to which the file must be cut before the next lines."""
        self.pause = 0.0
        self.failed = 0.0

    def __repr__(self) -> str:
        count = len(self.path.read_bytes().splitlines()) if self.path.is_file() else 0
        return f"Telemetry({str(self.path)!r}, {count} lines)"

    @property
    def shown(self) -> str:
        """The path as any terminal can print it."""
        return str(self.path).encode("utf-8", "backslashreplace").decode()

    def prepare(self, history: History, start: int, begun: bool) -> None:
        """Make the file ready for the rows from step `start` on.

        `begun` tells that this run has begun before, and was killed before it saved.
        """
        if os.path.isdir(self.path):
            raise ValueError(
                f"fit(telemetry={str(self.path)!r}) is a folder; name a file in the folder, "
                f"fit(telemetry={str(self.path / 'run.jsonl')!r})."
            )
        self.step = start
        # `os.path` returns False for what cannot be found; the first attempt to write says why.
        if not os.path.isfile(self.path):
            return
        try:
            content = self.path.read_bytes()
        except OSError as failure:
            raise ValueError(
                f'fit(telemetry="{self.shown}"): the file cannot be read ({failure}). Name another '
                "file."
            ) from failure
        if content and start == 0:
            if not begun:
                raise ValueError(self._occupied(content))
            self._set_aside()
        if start:
            self._continue(content, history, start)

    def write(self, parts: Sequence[History], last: bool = False) -> Exception | None:
        """Write the rows that are not in the file; return why it failed if it did.

        After a failure the next attempt is made some seconds later, and at the end of the run.
        """
        if not last and time.monotonic() - self.failed < self.pause:
            return None
        rows = rows_since(parts, self.step)
        if not len(rows) and self.torn is None:
            return None
        try:
            self.append(rows)
        # A path that cannot be encoded is a ValueError, a record that JSON has no word for a
        # TypeError: neither is worth the end of a run.
        except (OSError, ValueError, TypeError) as failure:
            self.failed = time.monotonic()
            self.pause = min(max(2 * self.pause, SOONEST), LATEST)
            return failure
        # Until here the lines would be cut off and written again: Ctrl-C does not double them.
        self.torn = None
        self.step = int(rows["step"][-1]) + 1 if len(rows) else self.step
        self.pause = 0.0
        return None

    def append(self, rows: History) -> None:
        """Append one line per row, from `torn` on if there is more than that."""
        lines = "".join(json.dumps(row) + "\n" for row in rows.rows()).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            if file.seekable():  # a pipe is not
                size = file.seek(0, os.SEEK_END)
                if self.torn is not None and size > self.torn:
                    size = file.truncate(self.torn)
                self.torn = size
            written = 0
            while written < len(lines):
                written += file.write(lines[written:]) or 0

    def _set_aside(self) -> None:
        """Rename the file, and warn."""
        numbered = (self.path.with_name(f"{self.path.name}.before-{k}") for k in itertools.count(1))
        aside = next(path for path in numbered if not os.path.lexists(path))
        try:
            os.rename(self.path, aside)
        except OSError as failure:
            raise ValueError(
                f'fit(telemetry="{self.shown}"): the run begins again, and the file of its first '
                f"attempt cannot be set aside ({failure}). Name another file."
            ) from failure
        warn(
            f"{self.shown} is of this run, which ended before its first checkpoint and begins "
            f"again; it was set aside as {aside.name}."
        )

    def _occupied(self, content: bytes) -> str:
        """The message for a fresh run on a file with content."""
        count = len(content.splitlines())
        other = self.path.with_name(f"{self.path.stem}-2{self.path.suffix}")
        return (
            f'fit(telemetry="{self.path}"): the file exists and has {count} lines, which a fresh '
            f'run would overwrite. Name another file, fit(..., telemetry="{other}"); or delete '
            "this one; or resume the run that wrote it, fit(..., checkpoint=<its folder>)."
        )

    def _continue(self, content: bytes, history: History, start: int) -> None:
        """Cut the file where it departs from the run, after checking that it is of this run."""
        known = {row["step"]: row for row in history.rows()}
        lines = content.splitlines(keepends=True)
        kept = 0
        due: int | None = None
        whole = True
        for number, line in enumerate(lines, 1):
            row = _parse(line)
            if row is None:
                # Only the last line can be incomplete: lines are written one after the other.
                if number == len(lines) and not line.endswith(b"\n"):
                    break
                raise ValueError(self._foreign(f"line {number} is no record of a step"))
            step = row["step"]
            if step in known and step < start and row["loss"] != known[step]["loss"]:
                loss = known[step]["loss"]
                difference = f"step {step} has the loss {row['loss']} there, {loss} here"
                raise ValueError(self._foreign(difference))
            due = step if due is None else due
            # What follows a gap or a change is written again, and so are repeated steps.
            same = row == known.get(step, row) and line.endswith(b"\n")
            whole = whole and same and step == due and step < start
            if whole:
                kept += len(line)
                due = step + 1
        if kept < len(content):
            self.torn = kept
        self.step = 0 if due is None else min(due, start)

    def _foreign(self, difference: str) -> str:
        """The message for a resumed run on the file of something else."""
        other = self.path.with_name(f"{self.path.stem}-2{self.path.suffix}")
        return (
            f'fit(telemetry="{self.path}"): the file was not written by the run that is resumed '
            f'({difference}). Name another file, fit(..., telemetry="{other}").'
        )


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line, or `None` if the line is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fine = isinstance(row, dict) and isinstance(row.get("step"), int) and "loss" in row
    return row if fine else None
