"""What a batch keeps in the storage: its lines, and the results of those that have ended, in numbered parts."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any, TypeVar

from genmill.batches.lines import Line
from genmill.errors import NotFound
from genmill.storage import Storage

LINES_A_PART = 500
PART_BYTES = 2 << 20
"""A part of lines ends before it is larger, unless one line is; so does what is fed at once, which is of one part."""
RESULTS_A_PART = 1_000
"""A full part; the last one is written anew as it grows, so this bounds what a kill may write in vain."""
PARTS_HELD, STARTS_HELD = 16, 1_000
NDJSON = "application/x-ndjson"

Name = TypeVar("Name")
Value = TypeVar("Value")


def folder_of(batch_id: str) -> str:
    """Everything of a batch lies under it, and goes with it."""
    return f"batches/{batch_id}"


def input_key(batch_id: str, number: int, role: str) -> str:
    """Where a line's image of this role lies, see ImageInput.images."""
    return f"{folder_of(batch_id)}/inputs/{number}-{role}.png"


class LineParts:
    """Lines by their number, counted from 1. A part begins after every LINES_A_PART lines; where those take more than
    PART_BYTES, another begins in between. Each is named by the number of lines before it. Any thread may read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = Lock()  # of what is held; the storage is read without it
        self._held: OrderedDict[tuple[str, int], list[bytes]] = OrderedDict()
        self._last_starts: OrderedDict[str, int] = OrderedDict()

    def write(self, batch_id: str, start: int, lines: list[bytes]) -> None:
        """`start`: the number of lines before these."""
        self._storage.put(_line_key(batch_id, start), b"".join(lines), NDJSON)

    def read(self, batch_id: str, after: int, most: int) -> list[Line]:
        """Up to `most` of the lines after number `after`; fewer at the end of a part, none only past the last line.
        Raises StorageUnavailable."""
        start, lines = self._part_with(batch_id, after)
        return [Line.from_json(raw) for raw in lines[after - start :][:most]]

    def all(self, batch_id: str) -> Iterator[Line]:
        """From the first on; one part is held at a time."""
        start = 0
        while lines := self._part(batch_id, start):
            yield from map(Line.from_json, lines)
            start += len(lines)

    def _part_with(self, batch_id: str, after: int) -> tuple[int, list[bytes]]:
        """(number of lines before it, its lines) of the part that has the line after number `after`. From part to
        part, on from the last one that was found, so that a batch of large lines is not read over and over."""
        with self._lock:
            first, last = after - after % LINES_A_PART, self._last_starts.get(batch_id, 0)
        start = last if first <= last <= after else first
        while (lines := self._part(batch_id, start)) and start + len(lines) <= after:
            start += len(lines)
        with self._lock:
            _keep(self._last_starts, batch_id, start, STARTS_HELD)
        return start, lines

    def _part(self, batch_id: str, start: int) -> list[bytes]:
        place = (batch_id, start)
        with self._lock:
            lines = self._held.get(place)
        if lines is None:
            try:
                lines = self._storage.get(_line_key(batch_id, start)).body.splitlines()
            except NotFound:
                return []
        with self._lock:
            _keep(self._held, place, lines, PARTS_HELD)
        return lines


class ResultParts:
    """Results in the order in which they were collected. A part has a name of its own each time it is written: which
    one counts, the batch's ledger says, so that two writers cannot mix."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def write(self, batch_id: str, rows: list[bytes]) -> str:
        """Returns the part's name."""
        name = uuid.uuid4().hex[:16]
        self._storage.put(_result_key(batch_id, name), b"".join(row + b"\n" for row in rows), NDJSON)
        return name

    def read(self, batch_id: str, name: str) -> list[bytes]:
        """Raises NotFound for a part that a longer one has replaced."""
        return self._storage.get(_result_key(batch_id, name)).body.splitlines()

    def drop(self, batch_id: str, name: str) -> None:
        self._storage.delete_prefix(_result_key(batch_id, name))


def _keep(held: OrderedDict[Name, Value], name: Name, value: Value, most: int) -> None:
    """As the last that was used; the first goes where there are more than `most`."""
    held[name] = value
    held.move_to_end(name)
    if len(held) > most:
        held.popitem(last=False)


def as_row(result: dict[str, Any]) -> bytes:
    return json.dumps(result, separators=(",", ":")).encode()


def _line_key(batch_id: str, start: int) -> str:
    part, offset = divmod(start, LINES_A_PART)
    return f"{folder_of(batch_id)}/lines/{part:06d}{f'-{offset:03d}' if offset else ''}.jsonl"


def _result_key(batch_id: str, name: str) -> str:
    return f"{folder_of(batch_id)}/results/{name}.jsonl"
