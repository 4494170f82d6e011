"""Holding an answer until its job is done: OpenAI's client knows no other way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from flask import request
from redis.exceptions import RedisError

from api import desk
from api.lookup import own_job
from api.openai.retries import Connection, HeldJobs, is_retry
from api.renaming import renamed
from api.requests import idempotency_key
from api.services import services
from api.submission import Manner, body_hash, submit
from api.waiting import seat, wait_seated
from genmill.errors import StillRunning, TooBusy
from genmill.jobs import Dialect, JobRecord, JobState, failure_of

MOST_HELD_S = 600.0
"""The client's own default; also what a client gets that does not say how long it reads."""

MANNER = Manner(Dialect.OPENAI)


def finished_job(native: Mapping[str, Any], names: Mapping[str, str], tenant: str) -> JobRecord:
    """The job of this body once it has succeeded; `names` as for `renamed`.

    Raises InvalidRequest, TooManyWaiting (nothing is stored then), StillRunning, and the JobFailure of the job.
    """
    held = HeldJobs(services().redis, tenant, body_hash(native))
    client = Connection.of_request()
    with seat(tenant):
        job_id = job_of(native, names, tenant, held)
        try:
            left = partial(_has_left, client, held, job_id)
            record = wait_seated(services().store, own_job(job_id, tenant), _hold_s(), left)
            if record.state.is_terminal and not client.is_gone():
                held.remove(job_id)
        finally:
            held.leave(job_id)
    if not record.state.is_terminal:
        raise StillRunning(f"job {job_id} is still {record.state.value}; the same request again waits for it")
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
        job_id = submit(native, tenant, key, services(), MANNER).job_id
    if key is None:
        held.add(job_id)
    return job_id


def _has_left(client: Connection, held: HeldJobs, job_id: str) -> bool:
    """Whether the client has gone; while it is seen to be there, no retry gets its job."""
    if client.is_gone():
        return True
    if client.is_told and held.is_renewal_due():
        with suppress(RedisError, TooBusy), desk.at_work():  # the next look says it again
            held.renew(job_id)
    return False


def _hold_s() -> float:
    """A second less than the client reads for, so that it hears of its job rather than of nothing."""
    try:
        reads_s = float(request.headers.get("x-stainless-read-timeout", MOST_HELD_S))
    except ValueError:
        reads_s = MOST_HELD_S
    if not math.isfinite(reads_s) or reads_s <= 0:
        reads_s = MOST_HELD_S
    return min(MOST_HELD_S, max(reads_s - 1, reads_s / 2))
