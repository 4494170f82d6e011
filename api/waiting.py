"""Holding an answer until its job has ended."""

from __future__ import annotations

import time
from threading import BoundedSemaphore

from api import desk
from api.watching import Watch, hub_of
from genmill.jobs import JobRecord
from genmill.store import Store

MOST_WAITERS = 512
"""Each holds a thread, which is all that it costs; whoever comes later is answered at once and polls."""

_seats = BoundedSemaphore(MOST_WAITERS)


def wait_for_job(store: Store, record: JobRecord, timeout_s: float) -> JobRecord:
    """The record as it is at the job's end, or after `timeout_s`, or at once when too many wait already.

    Raises RedisError when Redis goes away meanwhile."""
    if timeout_s <= 0 or record.state.is_terminal or not _seats.acquire(blocking=False):
        return record
    try:
        with desk.away():
            _wait(store, record.job_id, time.monotonic() + timeout_s)
    finally:
        _seats.release()
    return store.get(record.job_id) or record


def _wait(store: Store, job_id: str, deadline: float) -> None:
    with hub_of(store).watching(Watch(job_id)) as watch:
        while (left_s := deadline - time.monotonic()) > 0:
            heard = watch.take(left_s)
            if heard is not None and heard.error is not None:
                raise heard.error
            if heard is not None and heard.is_end:
                return
