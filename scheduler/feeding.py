"""Feeding batches: their next lines become jobs, as many as the window has room for."""

from __future__ import annotations

import json
from collections.abc import Callable

from genmill.batches import BatchRecord, BatchState, Ledger, LineParts
from genmill.batches.records import job_id_of
from genmill.errors import GenmillError, InvalidRequest, JobCanceled, StorageUnavailable
from genmill.jobs import JobRequest, error_json
from genmill.registry import Registry
from genmill.settings import Settings
from genmill.store import Store
from genmill.store.encoding import class_not_allowed, deadline_unmeetable
from genmill.store.messages import Submitted

QUOTA_REST_S = 1.0
"""How long a tenant's batches rest once it has met a quota."""
MOST = 500
"""Lines of one batch at a time, so that all batches get their turn."""


class Feeder:
    """First the jobs, then the cursor: whoever feeds after a kill stores the same job ids once more, which does
    nothing, and no line is counted as open before it has its job."""

    def __init__(
        self, store: Store, ledger: Ledger, lines: LineParts, registry: Registry, settings: Settings, *,
        leads: Callable[[], bool], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._store, self._ledger, self._lines, self._leads = store, ledger, lines, leads
        self._registry, self._window, self._clock = registry, settings.batch_window, clock
        self._full_until: dict[str, float] = {}

    def feed(self, batch: BatchRecord) -> int:
        """Returns by how many lines the cursor moved. Raises RedisError, StorageUnavailable."""
        if self._clock() < self._full_until.get(batch.tenant, 0.0):
            return 0
        room = min(MOST, batch.total - batch.fed, self._window - self._ledger.open_count(batch.batch_id))
        if room <= 0:
            return 0
        requests, faults = self._requests(batch, room)
        if not self._is_still_fed(batch):
            return 0
        answers = dict(zip(requests, self._store.submit_many(list(requests.values())), strict=True))
        if any(answer.refusal is not None for answer in answers.values()):
            self._full_until[batch.tenant] = self._clock() + QUOTA_REST_S
        to, refused = taken(batch.fed, requests, answers, faults)
        faults = {number: error for number, error in {**faults, **refused}.items() if number <= to}
        if to == batch.fed or not self._ledger.feed(batch.batch_id, batch.fed, to, faults):
            return 0
        return to - batch.fed

    def adopt(self, batch: BatchRecord) -> None:
        """Of a batch that is fed no more: note what somebody stored and died before noting, so that it is drained."""
        numbers = range(batch.fed + 1, min(batch.total, batch.fed + MOST) + 1)
        stored = self._store.which_exist([job_id_of(batch.batch_id, number) for number in numbers])
        known = {number for number in numbers if job_id_of(batch.batch_id, number) in stored}
        if known:
            last, canceled = max(known), error_json(JobCanceled())
            faults = {number: canceled for number in numbers if number < last and number not in known}
            self._ledger.feed(batch.batch_id, batch.fed, last, faults)

    def _is_still_fed(self, batch: BatchRecord) -> bool:
        """Asked right before jobs are stored: reading the lines may have taken long."""
        return self._leads() and self._ledger.standing(batch.batch_id) == (BatchState.IN_PROGRESS, batch.fed)

    def _requests(self, batch: BatchRecord, most: int) -> tuple[dict[int, JobRequest], dict[int, str]]:
        """Jobs by line, and the faults of lines that cannot be jobs (any more)."""
        requests, faults = dict[int, JobRequest](), dict[int, str]()
        lines = self._lines.read(batch.batch_id, batch.fed, most)
        if not lines:
            raise StorageUnavailable(f"the lines after {batch.fed} are not there")
        for number, line in enumerate(lines, start=batch.fed + 1):
            try:
                requests[number] = line.as_job(batch.batch_id, number, batch.tenant, self._registry)
            except InvalidRequest as err:
                faults[number] = fault_json(err)
        return requests, faults


def taken(
    fed: int, requests: dict[int, JobRequest], answers: dict[int, Submitted], faults: dict[int, str]
) -> tuple[int, dict[int, str]]:
    """(new cursor, faults of lines that came too late, or in a class that is barred by now). The cursor stops before
    the first line that met a quota: it is tried again, and those after it that were stored all the same are stored
    once."""
    refused = dict[int, str]()
    for number in sorted({*requests, *faults}):
        answer = answers.get(number)
        if answer is not None and answer.refusal is not None:
            break
        if answer is not None and answer.late is not None:
            refused[number] = fault_json(deadline_unmeetable(answer.late))
        if answer is not None and answer.barred is not None:
            refused[number] = fault_json(class_not_allowed(answer.barred))
        fed = number
    return fed, refused


def fault_json(error: GenmillError) -> str:
    return json.dumps({"code": error.code, "message": error.detail})
