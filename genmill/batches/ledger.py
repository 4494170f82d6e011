"""What Redis knows of batches: one method for each transition, each one script. See docs/batches.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from genmill import keys
from genmill.batches.parts import RESULTS_A_PART
from genmill.batches.records import BATCH_ID, PLAIN_FIELDS, BatchRecord, job_id_of, record_from_hash
from genmill.batches.states import BatchState
from genmill.errors import BatchNotFound, FieldFault, LimitReached, StorageUnavailable
from genmill.settings import Settings
from genmill.store import scripts


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What became of a batch that was handed in: it `is_new`; or `batch_id` has the same lines, and ended with
    some that did not succeed (`is_unfinished`), or is as good as this one."""

    batch_id: str
    is_new: bool
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Collected:
    """Lines whose results stand in the part `part`, and how they ended."""

    part: str
    lines: Sequence[int]
    succeeded: int
    failed: int
    canceled: int


class Ledger:
    """Safe to use from several processes and threads. Raises redis.exceptions.RedisError when the server is gone."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
        self._scripts = scripts.register(redis)
        self._settings = settings

    def now_ms(self) -> float:
        """The server's clock, by which all times of batches are."""
        seconds, microseconds = self._commands.time()
        return float(seconds) * 1000 + float(microseconds) / 1000

    def reserve(self, batch_id: str) -> None:
        """An intake has stored something and goes on: what it stored stays for INTAKE_TTL_S from now."""
        self._commands.zadd(keys.PREFIXES["shelf"], {batch_id: self.now_ms() + keys.INTAKE_TTL_S * 1000})

    def enroll(
        self, batch_id: str, tenant: str, body: str, fields: Mapping[str, Any], *, expires_in_s: int,
        resumes: str = "", is_rerun: bool = False,
    ) -> Enrolment:  # fmt: skip
        """Take a batch in. `fields`: total, kind, resume_of, skipped, and metadata and about as JSON. Safe to repeat.

        A batch with the same `body` that runs, or has succeeded in all lines, is returned instead, unless `is_rerun`;
        one that ended otherwise is `is_unfinished`, unless it is the one that this batch `resumes`. Raises
        LimitReached, StorageUnavailable.
        """
        ttl_s = expires_in_s + self._settings.batch_ttl_s + keys.BATCH_SLACK_S
        most = self._settings.batch_max_active
        head: list[Any] = [batch_id, tenant, body, most, ttl_s, expires_in_s, resumes, int(is_rerun)]
        flat: list[Any] = [part for pair in fields.items() for part in pair]
        kind, *rest = self._scripts["enroll"](args=[*head, *flat])
        if kind == b"full":
            raise _too_many(self._settings.batch_max_active, int(rest[0]))
        if kind == b"late":
            raise StorageUnavailable("the lines came too slowly, and those before them are gone; try again")
        return Enrolment(rest[0].decode(), kind == b"created", kind == b"unfinished")

    def read(self, batch_id: str) -> BatchRecord | None:
        return self._read_many([batch_id])[0] if BATCH_ID.fullmatch(batch_id) else None

    def own(self, batch_id: str, tenant: str) -> BatchRecord:
        """Raises BatchNotFound, for another tenant's batch just as for one that never was."""
        record = self.read(batch_id)
        if record is None or record.tenant != tenant:
            raise BatchNotFound(f"There is no batch {batch_id[:64]!r}")
        return record

    def page(self, tenant: str, after: str | None, limit: int) -> list[BatchRecord]:
        """Newest first; `after` is the last id of the page before."""
        index, start, found = keys.tenant_batches(tenant), 0, list[BatchRecord]()
        if after is not None:
            rank = self._commands.zrevrank(index, after)
            start = int(rank) + 1 if rank is not None else int(self._commands.zcard(index))
        while len(found) < limit:
            ids = [raw.decode() for raw in self._commands.zrevrange(index, start, start + limit - 1)]
            found += [record for record in self._read_many(ids) if record is not None]
            start += limit
            if len(ids) < limit:
                break
        return found[:limit]

    def active(self) -> list[BatchRecord]:
        """All batches that have not ended, oldest first, without `metadata` and `about`: this is read all the time."""
        ids = [raw.decode() for raw in self._commands.zrange(keys.PREFIXES["batches"], 0, -1)]
        with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in ids:
                pipe.hmget(keys.batch(batch_id), *PLAIN_FIELDS)
            found = [dict(zip(PLAIN_FIELDS, values, strict=True)) for values in pipe.execute()]
        records = [
            record_from_hash(one, {name.encode(): value for name, value in fields.items() if value is not None})
            for one, fields in zip(ids, found, strict=True)
        ]
        return [record for record in records if record is not None]

    def standing(self, batch_id: str) -> tuple[BatchState, int] | None:
        """(state, cursor) as they are now, None when it is gone."""
        state, fed = self._commands.hmget(keys.batch(batch_id), "state", "fed")
        return (BatchState(state.decode()), int(fed)) if state else None

    def open_count(self, batch_id: str) -> int:
        """Lines that have a job whose result is not collected."""
        return int(self._commands.scard(keys.batch_open(batch_id)))

    def open_lines(self, batch_id: str) -> list[int]:
        return sorted(int(line) for line in self._commands.smembers(keys.batch_open(batch_id)))

    def running_lines(self, batch_id: str) -> list[int]:
        """Of the open ones, those that a worker has on board now."""
        lines = self.open_lines(batch_id)
        if not lines:
            return []
        expiries = self._commands.zmscore(keys.run_scope("global"), [job_id_of(batch_id, line) for line in lines])
        return [line for line, expiry in zip(lines, expiries, strict=True) if expiry is not None]

    def ended_lines(self, batch_id: str) -> list[int]:
        """Of the open ones, those whose job has ended, or that never got one."""
        ended = self._commands.sinter(keys.batch_open(batch_id), keys.batch_ended(batch_id))
        return sorted(int(line) for line in ended)

    def note_ended(self, batch_id: str, lines: Sequence[int]) -> None:
        """Lines whose job is gone: nothing else will tell of their end."""
        with self._redis.pipeline() as pipe:
            pipe.sadd(keys.batch_ended(batch_id), *map(str, lines))
            pipe.expire(keys.batch_ended(batch_id), self._settings.batch_ttl_s)
            pipe.execute()

    def faults(self, batch_id: str, lines: Sequence[int]) -> dict[int, dict[str, str]]:
        """Why lines got no job, by line."""
        found = self._commands.hmget(keys.batch_faults(batch_id), [str(line) for line in lines]) if lines else []
        return {line: json.loads(fault) for line, fault in zip(lines, found, strict=True) if fault}

    def feed(self, batch_id: str, after: int, to: int, faults: Mapping[int, str]) -> bool:
        """The lines after `after` up to `to` have a job now, or a fault. False when another has fed
        others since, or it has ended."""
        flat: list[Any] = [part for pair in faults.items() for part in pair]
        return bool(self._scripts["feed"](args=[batch_id, after, to, *flat]))

    def collect(self, batch_id: str, done: int, collected: Collected) -> bool:
        """These lines' results count from now on. False when another has collected since `done`."""
        counts = [collected.succeeded, collected.failed, collected.canceled]
        head: list[Any] = [batch_id, done, RESULTS_A_PART, collected.part, keys.BATCH_JOB_TTL_S]
        return bool(self._scripts["collect"](args=[*head, *counts, *collected.lines]))

    def part_name(self, batch_id: str, part: int) -> str | None:
        """The name of a part of the results, None past the last."""
        name = self._commands.lindex(keys.batch_parts(batch_id), part)
        return name.decode() if name is not None else None

    def conclude(self, batch_id: str, believed: BatchState) -> BatchState | None:
        """Move a batch on to its end, where it has come to it, unless its state is another than `believed`; its state
        after that, None when it is gone."""
        state: bytes = self._scripts["conclude"](args=[batch_id, believed.value, self._settings.batch_ttl_s])
        return BatchState(state.decode()) if state else None

    def cancel(self, batch_id: str) -> str:
        """Returns 'cancelling', 'too_late' or 'unknown'."""
        verdict: bytes = self._scripts["call_off"](args=[batch_id])
        return verdict.decode()

    def outdated(self, most: int = 20) -> list[str]:
        """Batches whose storage nobody reads any more."""
        found = self._commands.zrangebyscore(keys.PREFIXES["shelf"], 0, self.now_ms(), start=0, num=most)
        return [raw.decode() for raw in found]

    def forget(self, batch_id: str) -> None:
        """Its storage is cleared away."""
        self._commands.zrem(keys.PREFIXES["shelf"], batch_id)

    def _read_many(self, ids: Sequence[str]) -> list[BatchRecord | None]:
        with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in ids:
                pipe.hgetall(keys.batch(batch_id))
            return [record_from_hash(one, fields) for one, fields in zip(ids, pipe.execute(), strict=True)]


def _too_many(most: int, active: int) -> LimitReached:
    detail = f"the tenant has {active} batches that have not ended, at most {most} are taken"
    return LimitReached(detail, faults=(FieldFault("/", detail, f"{most}", f"{active}"),), retry_after_s=30)
