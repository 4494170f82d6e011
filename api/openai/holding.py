"""Holding an answer until its job is done: OpenAI's client knows no other way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flask import request

from api.lookup import own_job
from api.openai.retries import HeldJobs, client_is_gone, is_retry
from api.renaming import renamed
from api.requests import idempotency_key
from api.services import services
from api.submission import Manner, body_hash, submit
from api.waiting import seat, wait_seated
from genmill.errors import StillRunning, failure_of
from genmill.jobs import Dialect, JobRecord, JobState

MOST_HELD_S = 600.0
"""The client's own default; also what a client gets that does not say how long it reads."""

MANNER = Manner(Dialect.OPENAI)


def finished_job(native: Mapping[str, Any], names: Mapping[str, str], tenant: str) -> JobRecord:
    """The job of this body once it has succeeded; `names` as for `renamed`.

    Raises InvalidRequest, TooManyWaiting (nothing is stored then), StillRunning, and the JobFailure of the job.
    """
    held = HeldJobs(services().redis, tenant, body_hash(native))
    with seat():
        job_id = job_of(native, names, tenant, held)
        record = wait_seated(services().store, own_job(job_id, tenant), _hold_s(), client_is_gone)
    if not record.state.is_terminal:
        raise StillRunning(f"job {job_id} is still {record.state.value}; the same request again waits for it")
    if not client_is_gone():
        held.remove(job_id)
    if record.state is not JobState.SUCCEEDED:
        raise failure_of(record.error)
    return record


def job_of(native: Mapping[str, Any], names: Mapping[str, str], tenant: str, held: HeldJobs) -> str:
    """The id of the job of this body: by its Idempotency-Key, or that of an earlier try, or a new one. Raises
    InvalidRequest."""
    key = idempotency_key()
    if key is None and is_retry():
        known = held.take(services().store)
        if known is not None:
            return known
    with renamed(names):
        job_id, _ = submit(native, tenant, key, services(), MANNER)
    if key is None:
        held.add(job_id)
    return job_id


def _hold_s() -> float:
    """A second less than the client reads for, so that it hears of its job rather than of nothing."""
    try:
        reads_s = float(request.headers.get("x-stainless-read-timeout", MOST_HELD_S))
    except ValueError:
        reads_s = MOST_HELD_S
    if not math.isfinite(reads_s) or reads_s <= 0:
        reads_s = MOST_HELD_S
    return min(MOST_HELD_S, max(reads_s - 1, reads_s / 2))
