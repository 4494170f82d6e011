"""Collecting batches: results of lines that have ended go into the batch's results, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from genmill.batches import BatchRecord, Ledger, LineParts, ResultParts
from genmill.batches.ledger import Collected
from genmill.batches.parts import RESULTS_A_PART, as_row
from genmill.batches.records import job_id_of
from genmill.errors import JobDeleted, StorageUnavailable
from genmill.jobs import JobRecord, JobState
from genmill.store import Store

MANY, EVERY_S = 200, 1.0
"""So many results are collected at once, fewer of them once in so many seconds: each time a part is written anew."""
COUNTED = {JobState.SUCCEEDED: "succeeded", JobState.CANCELED: "canceled"}
"""What else ends counts as failed."""


class Collector:
    """Reads jobs, writes a part under a new name, then commits it by name: until then nobody reads it, and a commit
    that another was before is refused. So a result stands in the results once, whoever dies when."""

    def __init__(
        self, store: Store, ledger: Ledger, lines: LineParts, results: ResultParts, *, clock: Callable[[], float],
        every_s: float = EVERY_S,
    ) -> None:  # fmt: skip
        self._store, self._ledger, self._lines, self._results = store, ledger, lines, results
        self._clock, self._every_s = clock, every_s
        self._many = min(MANY, max(1, store.settings.batch_window // 2))  # or a small window would run dry meanwhile
        self._next_at: dict[str, float] = {}

    def collect(self, batch: BatchRecord) -> int:
        """Returns how many results were added: none while they are few and the last ones just came. Raises RedisError,
        StorageUnavailable."""
        waiting = self._ledger.ended_lines(batch.batch_id)
        is_early = len(waiting) < self._many and self._clock() < self._next_at.get(batch.batch_id, 0.0)
        if not waiting or is_early:
            return 0
        self._next_at[batch.batch_id] = self._clock() + self._every_s
        numbers = waiting[: RESULTS_A_PART - batch.done % RESULTS_A_PART]
        ended = self._results_of(batch, numbers)
        return self._commit(batch, ended) if ended else 0

    def forget_others(self, batch_ids: Collection[str]) -> None:
        """Batches that are not among these have ended."""
        self._next_at = {one: at for one, at in self._next_at.items() if one in batch_ids}

    def note_vanished(self, batch: BatchRecord) -> None:
        """Open lines whose job was deleted: nothing else tells of their end."""
        numbers = self._ledger.open_lines(batch.batch_id)
        there = self._store.which_exist([job_id_of(batch.batch_id, number) for number in numbers])
        gone = [number for number in numbers if job_id_of(batch.batch_id, number) not in there]
        if gone:
            self._ledger.note_ended(batch.batch_id, gone)

    def _results_of(self, batch: BatchRecord, numbers: list[int]) -> dict[int, dict[str, Any]]:
        """By line. A job that an operator has queued again is left out: it ends once more."""
        faults = self._ledger.faults(batch.batch_id, numbers)
        records = self._store.get_many([job_id_of(batch.batch_id, number) for number in numbers])
        found = dict[int, dict[str, Any]]()
        for number, record in zip(numbers, records, strict=True):
            if record is not None and record.state.is_terminal:
                found[number] = result_of(record)
            elif record is None:
                error = faults.get(number) or {"code": JobDeleted.code, "message": JobDeleted().detail}
                found[number] = failure_of(self._custom_id(batch, number), job_id_of(batch.batch_id, number), error)
        return found

    def _custom_id(self, batch: BatchRecord, number: int) -> str:
        return self._lines.read(batch.batch_id, number - 1, 1)[0].custom_id

    def _commit(self, batch: BatchRecord, ended: Mapping[int, dict[str, Any]]) -> int:
        part, old_rows = batch.done // RESULTS_A_PART, list[bytes]()
        old_name = self._ledger.part_name(batch.batch_id, part)
        if old_name is not None:
            old_rows = self._results.read(batch.batch_id, old_name)[: batch.done % RESULTS_A_PART]
        new_rows = [as_row({"seq": seq, **result}) for seq, result in enumerate(ended.values(), start=batch.done + 1)]
        name = self._results.write(batch.batch_id, old_rows + new_rows)
        is_ours = self._ledger.collect(batch.batch_id, batch.done, _collected(name, ended))
        if (left := old_name if is_ours else name) is not None:
            with suppress(StorageUnavailable):  # it goes with the batch
                self._results.drop(batch.batch_id, left)
        return len(ended) if is_ours else 0


def result_of(record: JobRecord) -> dict[str, Any]:
    """A line's result as it is kept: outputs by storage key, so that whoever reads it signs fresh links."""
    result = record.result or {}
    row: dict[str, Any] = {
        "custom_id": str(record.metadata.get("custom_id", "")), "job_id": record.job_id, "state": record.state.value,
        "model": record.model, "outputs": list(result.get("outputs", ())), "error": record.error,
    }  # fmt: skip
    return row | {name: result[name] for name in ("text", "receipt") if result.get(name) is not None}


def failure_of(custom_id: str, job_id: str, error: Mapping[str, str]) -> dict[str, Any]:
    """The result of a line without a job."""
    state = JobState.CANCELED if error["code"] == "canceled" else JobState.FAILED
    return {"custom_id": custom_id, "job_id": job_id, "state": state.value, "outputs": [], "error": dict(error)}


def _collected(part: str, ended: Mapping[int, dict[str, Any]]) -> Collected:
    counts = Counter(COUNTED.get(JobState(result["state"]), "failed") for result in ended.values())
    return Collected(part, list(ended), counts["succeeded"], counts["failed"], counts["canceled"])
