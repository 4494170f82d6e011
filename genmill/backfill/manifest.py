"""What a backfill has done, line by line, in a file that only grows: `manifest.jsonl` in the output folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from genmill.durable_files import clear_unfinished
from genmill.errors import GenmillError
from genmill.jobs import JobState

NAME = "manifest.jsonl"
EDGE_BYTES = 1 << 20


class FolderTaken(GenmillError):
    """The output folder belongs to another backfill."""

    code, status = "folder_taken", 409


class Manifest:
    """The first record names the run's source; each later one a batch that was taken up, or one line's end with its
    files. Read as a stream, so that ten million lines need no memory. A record counts once it is whole; what a kill
    left of one is cut off. Raises FolderTaken while another process has it, or where it is of another source."""

    def __init__(self, folder: Path, source: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self.batch_id: str | None = None
        self.ends: Counter[str] = Counter()
        self._seen: dict[str, int] = {}
        self._file = self.path.open("a+b")
        try:
            self._lock()
            self._read(source)
            clear_unfinished(folder)
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
        self.batch_id = batch_id  # before it is written: who is interrupted there gets the same batch next time
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

    def _read(self, source: Path) -> None:
        self._file.seek(0)
        whole = 0
        for row in self._file:
            if not row.endswith(b"\n"):
                break
            record = json.loads(row)
            if whole == 0:
                self._check_source(record, source)
            else:
                self._note(record)
            whole += len(row)
        self._file.truncate(whole)
        if whole == 0:
            self._file.write(_as_row({"source": fingerprint(source)}))

    def _check_source(self, record: dict[str, Any], source: Path) -> None:
        if record.get("source") != fingerprint(source):
            raise FolderTaken(
                f"{self.path} is of another file, or {source} has changed since; choose another output folder"
            )

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
    """Of a file's length and its ends: read at once, however long it is."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(EDGE_BYTES))
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))
    return digest.hexdigest()


def _as_row(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
