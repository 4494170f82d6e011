"""Results of a batch as far as they are collected, each line once, while it runs and after."""

from __future__ import annotations

import json
from collections.abc import Iterator

from genmill.batches.ledger import Ledger
from genmill.batches.parts import RESULTS_A_PART, ResultParts
from genmill.batches.records import BatchRecord, line_of
from genmill.errors import NotFound, StorageUnavailable
from genmill.jobs import JobState

TRIES = 3
"""A part that is replaced between the look at its name and the read is looked up again."""


def rows_after(batch: BatchRecord, after: int, ledger: Ledger, parts: ResultParts) -> Iterator[bytes]:
    """The results that `batch` had when it was read, but for the first `after`; one part is held at a time. Each is a
    JSON object with `seq`, its place counted from 1. Raises StorageUnavailable."""
    while after < batch.done:
        part, offset = divmod(after, RESULTS_A_PART)
        rows = _read_part(batch.batch_id, part, ledger, parts)[offset : batch.done - part * RESULTS_A_PART]
        if not rows:
            raise StorageUnavailable(f"results after {after} of {batch.batch_id} are not there; try again")
        yield from rows
        after += len(rows)


def succeeded_lines(batch: BatchRecord, ledger: Ledger, parts: ResultParts) -> bytearray:
    """A bit for each line by its number: 1.25 MB for ten million of them."""
    bits = bytearray((batch.total >> 3) + 1)
    for row in rows_after(batch, 0, ledger, parts):
        result = json.loads(row)
        place = line_of(result["job_id"])
        if place and result["state"] == JobState.SUCCEEDED:
            bits[place[1] >> 3] |= 1 << (place[1] & 7)
    return bits


def _read_part(batch_id: str, part: int, ledger: Ledger, parts: ResultParts) -> list[bytes]:
    for _ in range(TRIES):
        name = ledger.part_name(batch_id, part)
        if name is None:
            break
        try:
            return parts.read(batch_id, name)
        except NotFound:
            continue
    raise StorageUnavailable(f"part {part} of the results of {batch_id} cannot be read; try again")
