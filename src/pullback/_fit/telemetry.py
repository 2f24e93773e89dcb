"""Telemetry: the records of a run as a file of JSON lines, one line per step.

A line that this run does not write again is never removed. A fresh run therefore raises if the file
has any content. A resumed run continues its own file: it keeps the lines of the steps before the
checkpoint, which must agree with the checkpoint's history, and drops only the lines of the steps
that it repeats and an incomplete last line, which is what a killed process leaves behind.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from .history import History


@dataclasses.dataclass(frozen=True, repr=False)
class Telemetry:
    """A file of JSON lines to which a run appends."""

    path: Path

    def __repr__(self) -> str:
        count = len(self.path.read_bytes().splitlines()) if self.path.is_file() else 0
        return f"Telemetry({str(self.path)!r}, {count} lines)"

    def prepare(self, history: History, start: int) -> None:
        """Make the file ready for the rows from step `start` on."""
        if self.path.is_dir():
            raise ValueError(
                f"fit(telemetry={str(self.path)!r}) is a folder; name a file in the folder, "
                f"fit(telemetry={str(self.path / 'run.jsonl')!r})."
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() or not self.path.stat().st_size:
            return
        if start == 0:
            raise ValueError(self._occupied())
        self._truncate(history, start)

    def append(self, rows: History) -> None:
        """Append one line per row."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows.rows())

    def _occupied(self) -> str:
        """The message for a fresh run on a file with content."""
        count = len(self.path.read_bytes().splitlines())
        other = self.path.with_name(f"{self.path.stem}-2{self.path.suffix}")
        return (
            f'fit(telemetry="{self.path}"): the file exists and has {count} lines, which a fresh '
            f'run would overwrite. Name another file, fit(..., telemetry="{other}"); or delete '
            "this one; or resume the run that wrote it, fit(..., checkpoint=<its folder>)."
        )

    def _truncate(self, history: History, start: int) -> None:
        """Keep the lines before step `start`, after checking that they are of this run."""
        losses = {row["step"]: row["loss"] for row in history.rows()}
        kept: list[str] = []
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            row = _parse(line)
            if row is None:
                # Only the last line can be incomplete: lines are written one after the other.
                if number == len(lines) and not line.endswith("\n"):
                    break
                raise ValueError(self._foreign(f"line {number} is no record of a step"))
            step = row["step"]
            if step >= start:
                continue
            if step in losses and row["loss"] != losses[step]:
                difference = f"step {step} has the loss {row['loss']} there, {losses[step]} here"
                raise ValueError(self._foreign(difference))
            kept.append(line if line.endswith("\n") else line + "\n")
        if len(kept) < len(lines):
            beside = self.path.with_name(f".{self.path.name}.part")
            beside.write_text("".join(kept), encoding="utf-8")
            beside.replace(self.path)

    def _foreign(self, difference: str) -> str:
        """The message for a resumed run on the file of something else."""
        other = self.path.with_name(f"{self.path.stem}-2{self.path.suffix}")
        return (
            f'fit(telemetry="{self.path}"): the file was not written by the run that is resumed '
            f'({difference}). Name another file, fit(..., telemetry="{other}").'
        )


def _parse(line: str) -> dict[str, Any] | None:
    """Return the record of a line, or `None` if the line is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    fine = isinstance(row, dict) and isinstance(row.get("step"), int) and "loss" in row
    return row if fine else None
