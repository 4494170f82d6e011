"""A tenant's own jobs: one by its id, or page by page."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from api.services import services
from genmill.errors import JobNotFound
from genmill.jobs import JobRecord, JobState
from genmill.store import Standing, Stored, Waiting

MOST_SCANNED = 2_000
"""Jobs that one filtered list reads; past that it hands out a cursor to go on from."""

_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""RQ keeps other things under `rq:job:<id>:...`; no id reaches them."""


def own_job(job_id: str, tenant: str) -> JobRecord:
    """Raises JobNotFound, for another tenant's job just as for one that never was."""
    record = services().store.get(job_id) if _JOB_ID.fullmatch(job_id) else None
    if record is None or record.tenant != tenant:
        raise _not_found(job_id)
    return record


def own_standing(job_id: str, tenant: str) -> Standing:
    """The same, with what it waits for."""
    standing = services().store.standing(job_id) if _JOB_ID.fullmatch(job_id) else None
    if standing is None or standing.record.tenant != tenant:
        raise _not_found(job_id)
    return standing


def standing_of(stored: Stored) -> Standing:
    """Of a job that was just submitted. Raises JobNotFound for one that is no more."""
    if stored.standing is None:
        raise _not_found(stored.job_id)
    return stored.standing


def with_waiting(records: Sequence[JobRecord]) -> list[tuple[JobRecord, Waiting | None]]:
    """Each with what it waits for, where it is queued; in one round trip."""
    queued = [record.job_id for record in records if record.state is JobState.QUEUED]
    standings = dict(zip(queued, services().store.standings(queued), strict=True))
    found = [(record, standings.get(record.job_id)) for record in records]
    return [(record, standing and standing.waiting) for record, standing in found]


def page_of(
    tenant: str, limit: int, after: str | None, is_wanted: Callable[[JobRecord], bool] = lambda _: True
) -> tuple[list[JobRecord], str | None]:
    """Wanted jobs, newest first, and the cursor of the next page if there may be one."""
    store = services().store
    found: list[JobRecord] = []
    for _ in range(0, MOST_SCANNED, 100):
        ids = store.list_ids(tenant, after, 100)
        for job_id, record in zip(ids, store.get_many(ids), strict=True):
            if len(found) == limit:
                return found, after
            after = job_id
            if record is not None and record.tenant == tenant and is_wanted(record):
                found.append(record)
        if len(ids) < 100:
            return found, None
    return found, after


def _not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"There is no job {job_id[:64]!r}")
