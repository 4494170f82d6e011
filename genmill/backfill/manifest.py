"""What a backfill has done, line by line, in a file that only grows: `manifest.jsonl` in the output folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from genmill import strict_json
from genmill.durable_files import UNFINISHED, clear_unfinished
from genmill.errors import GenmillError
from genmill.jobs import JobState

NAME = "manifest.jsonl"
KEPT = "input.jsonl"
"""Lines that came as a stream, so that a later run can read them again."""


class FolderTaken(GenmillError):
    """The output folder belongs to another backfill."""

    code, status = "folder_taken", 409


class ManifestDamaged(GenmillError):
    """What stands in the output folder's manifest is no record of a backfill."""

    code, status = "manifest_damaged", 409


class Manifest:
    """The first record names the run's source; each later one a batch that was taken up, or one line's end with its
    files. Read as a stream, so that ten million lines need no memory. A record counts once it is whole; what a kill
    left of one is cut off. `source`: the file of the lines; of those that come as a stream, where they are kept.

    Raises FolderTaken while another process has it, or where a batch was made of another source: until there is one,
    another source may take the place of one that was refused. Raises ManifestDamaged.
    """

    def __init__(self, folder: Path, source: Path | BinaryIO) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self.batch_id: str | None = None
        self.ends: Counter[str] = Counter()
        self._seen: dict[str, int] = {}
        self._file = self.path.open("a+b")
        try:
            self._lock()
            clear_unfinished(folder)
            known = self._read()
            self.source = source if isinstance(source, Path) else self._keep(source, known)
            self._take_up(known)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def failed(self) -> int:
        """Lines that ended otherwise than well, and were not run again since."""
        return sum(self.ends.values()) - self.ends[JobState.SUCCEEDED]

    def seen(self, batch_id: str) -> int:
        """`seq` of the batch's last result that is entered."""
        return self._seen.get(batch_id, 0)

    def begin(self, batch_id: str) -> None:
        """From now on the run is this batch; what failed before it is run again."""
        self.batch_id = batch_id  # before it is written: who is interrupted there hears of it
        self._append([{"batch": batch_id}])

    def enter(self, batch_id: str, lines: Sequence[dict[str, Any]]) -> None:
        """Ends of lines, each with `seq`, `custom_id`, `state`, `files` and `error`; durable once this returns."""
        self._append([{"batch": batch_id, **line} for line in lines])

    def _append(self, records: Sequence[dict[str, Any]]) -> None:
        self._file.write(b"".join(_as_row(record) for record in records))
        self._file.flush()
        os.fsync(self._file.fileno())
        for record in records:
            self._note(record)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderTaken(f"another genmill backfill writes to {self.path.parent}") from None

    def _read(self) -> str | None:
        """The fingerprint of the source that the records are of; None where there are none yet."""
        self._file.seek(0)
        whole, known = 0, None
        for number, row in enumerate(self._file, start=1):
            if not row.endswith(b"\n"):
                break
            record = self._record(row, number)
            if number == 1:
                known = record["source"]
            else:
                self._note(record)
            whole += len(row)
        self._file.truncate(whole)
        return known

    def _record(self, row: bytes, number: int) -> dict[str, Any]:
        try:
            record = strict_json.loads(row)
        except ValueError:
            record = None
        kinds = {"source": str} if number == 1 else {"batch": str, "seq": int | None, "state": str | None}
        if not isinstance(record, dict) or not all(isinstance(record.get(name), kinds[name]) for name in kinds):
            raise ManifestDamaged(f"line {number} of {self.path} is damaged; choose another output folder")
        return record

    def _keep(self, stream: BinaryIO, known: str | None) -> Path:
        """The lines in a file of the folder. An empty stream stands for those that are kept there."""
        kept, half = self.path.parent / KEPT, self.path.parent / f"{UNFINISHED}{KEPT}"
        with half.open("wb") as file:
            shutil.copyfileobj(stream, file)
        if half.stat().st_size == 0 and kept.exists():
            half.unlink()
        elif self.batch_id is not None and fingerprint(half) != known:
            half.unlink()
            raise self._taken("stdin")
        else:
            half.replace(kept)
        return kept

    def _take_up(self, known: str | None) -> None:
        found = fingerprint(self.source)
        if found == known:
            return
        if self.batch_id is not None:
            raise self._taken(str(self.source))
        self._file.truncate(0)
        self._file.write(_as_row({"source": found}))

    def _taken(self, source: str) -> FolderTaken:
        return FolderTaken(f"{self.path} is of other lines than {source} has now; choose another output folder")

    def _note(self, record: dict[str, Any]) -> None:
        batch_id = record["batch"]
        if "seq" not in record:
            self.batch_id = batch_id
            self.ends = Counter({JobState.SUCCEEDED: self.ends[JobState.SUCCEEDED]})
        else:
            self._seen[batch_id] = record["seq"]
            if "state" in record:
                self.ends[record["state"]] += 1


def fingerprint(path: Path) -> str:
    """Of all that a file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_row(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
