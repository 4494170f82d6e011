"""Jobs whose outputs others use: what they will make, told without their results, and what they have made."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis import Redis

from genmill import keys
from genmill.jobs import record_from_hash

_FIELDS = (b"status", b"tenant", b"batch_key", b"rows", b"data", b"collected")


class Source(NamedTuple):
    """A job, whatever its state, as far as that tells what it makes."""

    job_id: str
    tenant: str
    batch_key: str
    rows: int
    request: Mapping[str, Any]


class Made(NamedTuple):
    """What a job has made; no result where it has not succeeded, or its result has expired."""

    tenant: str
    result: Any


class SourceBook:
    """Raises redis.exceptions.RedisError when the server is gone."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Redis = redis

    def sources(self, job_ids: Sequence[str]) -> dict[str, Source]:
        """By their ids, in one round trip; none of jobs that are not there. Results are not read: one may have
        megabytes."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(keys.job(job_id), _FIELDS)
            replies = pipe.execute()
        found = [_source(job_id, reply) for job_id, reply in zip(job_ids, replies, strict=True)]
        return {source.job_id: source for source in found if source is not None}

    def made(self, job_ids: Sequence[str]) -> dict[str, Made]:
        """Likewise, with their latest results. Takes milliseconds for each megabyte of those, in which other threads
        go on."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hmget(keys.job(job_id), ["status", "tenant", "collected"])
                pipe.xrevrange(keys.results(job_id), count=1)
            replies = pipe.execute()
        told = zip(job_ids, replies[::2], replies[1::2], strict=True)
        return {
            job_id: Made((tenant or b"default").decode("utf-8", "replace"), _result(entries, status))
            for job_id, (status, tenant, collected), entries in told
            if status is not None and collected is None
        }


def _source(job_id: str, reply: Sequence[bytes | None]) -> Source | None:
    fields = {name: value for name, value in zip(_FIELDS, reply, strict=True) if value is not None}
    if not fields or b"collected" in fields:
        return None
    record = record_from_hash(job_id, fields, None)
    return Source(job_id, record.tenant, record.batch_key, record.rows, record.request)


def _result(entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]], status: bytes) -> Any:
    raw = entries[0][1].get(b"return_value") if entries and status == b"finished" else None
    return json.loads(b64decode(raw), object_pairs_hook=_as_dict) if raw else None


def _as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What json does itself, but in Python: between two objects another thread gets its turn, so an engine's step does
    not wait until a long text with its probabilities is read."""
    return dict(pairs)
