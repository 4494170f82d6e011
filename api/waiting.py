"""Holding an answer until its job has ended."""

from __future__ import annotations

import time
from threading import BoundedSemaphore

from genmill.jobs import JobRecord
from genmill.store import Store

MOST_WAITERS = 24
"""Of the 32 threads that the Procfile gives gunicorn; whoever comes later is answered at once and polls."""

_SLICE_S = 0.9
"""One blocking read; shorter than the socket's timeout."""

_seats = BoundedSemaphore(MOST_WAITERS)


def wait_for_job(store: Store, record: JobRecord, timeout_s: float) -> JobRecord:
    """The record as it is at the job's end, or after `timeout_s`, or at once when too many wait already."""
    if timeout_s <= 0 or record.state.is_terminal or not _seats.acquire(blocking=False):
        return record
    try:
        return _wait(store, record, time.monotonic() + timeout_s)
    finally:
        _seats.release()


def _wait(store: Store, record: JobRecord, deadline: float) -> JobRecord:
    while not record.state.is_terminal and (left_s := deadline - time.monotonic()) > 0:
        store.wait_for_end(record.job_id, min(left_s, _SLICE_S))
        now = store.get(record.job_id)
        if now is None:
            return record
        record = now
    return record
