"""The store: jobs, lanes, leases and registries in Redis."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import NoScriptError

from genmill import keys
from genmill.errors import JobCanceled, JobExpired, JobPoisoned, StoreUnavailable
from genmill.jobs import Claim, JobRecord, JobRequest, error_json
from genmill.settings import Durability, Settings
from genmill.store import encoding, scripts
from genmill.store.callbacks import CallbackBook
from genmill.store.events import EventLog
from genmill.store.forwards import ForwardsBook
from genmill.store.limits import LimitBook
from genmill.store.memory import MemoryBook
from genmill.store.messages import (
    Attempt,
    Claimed,
    KeyGuard,
    Reaped,
    Renewal,
    Settlement,
    Standing,
    Stored,
    Submitted,
    Want,
)
from genmill.store.sources import SourceBook
from genmill.store.upkeep import Upkeep
from genmill.store.usage import UsageBook

AOF_WAIT_MS = 1000
"""How long a submit waits for the append-only file; shorter than the API waits for Redis, so that it hears of it."""


class Store:
    """All methods raise redis.exceptions.RedisError when the server is gone; the caller decides who waits."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self._commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
        self.settings = settings
        self._scripts = scripts.register(redis)
        self.limits = LimitBook(redis, settings.limits)
        self.usage = UsageBook(redis)
        self.events = EventLog(redis, self._scripts["progress"])
        self.memory = MemoryBook(redis)
        self.forwards = ForwardsBook(redis)
        self.sources = SourceBook(redis)
        self.upkeep = Upkeep(self._scripts)
        self._static_limits = json.dumps(dict(settings.limits))
        self.callbacks = CallbackBook(redis, self._scripts["redeliver"], self._static_limits)
        self._class_delays = json.dumps(settings.class_delay_ms)

    def submit(self, request: JobRequest) -> tuple[str, bool]:
        """Store and queue. Returns (job id, whether an earlier request with this Idempotency-Key is replayed).

        Raises IdempotencyMismatch, LimitReached, DeadlineUnmeetable, ClassNotAllowed, DependencyUnusable,
        StoreUnavailable. Safe to repeat: the same job id is stored once.
        With durability `always` it returns only when the append-only file holds the job.
        """
        (submitted,) = self.submit_many([request])
        return encoding.accepted(submitted, request)

    def submit_told(self, request: JobRequest, guard: KeyGuard | None = None) -> Stored:
        """`submit`, and how the job stands then, in one round trip; in two where an earlier request is replayed.

        Raises KeyChanged besides, and stores nothing, when the API key is not any more as `guard` says.
        """
        calls = [("submit", self._submit_args([request], guard)), ("standing", [request.job_id])]
        (verdict,), told = self._send_submits(calls)
        job_id, is_replay = encoding.accepted(encoding.read_submitted(verdict), request)
        if job_id != request.job_id:
            return Stored(job_id, is_replay, self.standing(job_id))
        return Stored(job_id, is_replay, encoding.read_standing(job_id, told, self.limits))

    def submit_many(self, requests: Sequence[JobRequest]) -> list[Submitted]:
        """Store and queue many in one round trip, in their order; those of one model, class and tenant in one step.

        Raises StoreUnavailable. Safe to repeat as a whole: the same job ids are stored once.
        """
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(encoding.shared_by(request), []).append(place)
        chunks = [part for places in groups.values() for part in encoding.chunks(places)]
        calls = [("submit", self._submit_args([requests[place] for place in places])) for places in chunks]
        submitted = [Submitted("")] * len(requests)
        for places, verdicts in zip(chunks, self._send_submits(calls), strict=True):
            for place, verdict in zip(places, verdicts, strict=True):
                submitted[place] = encoding.read_submitted(verdict)
        return submitted

    def claim(
        self,
        worker: str,
        classes: Sequence[str],
        wants: Sequence[Want],
        *,
        token: str | None = None,
        is_empty: bool = True,
    ) -> Claimed:
        """Lease one compatible batch in one round trip. `is_empty`: the worker has nothing on board.

        Ask again with the same `token` when no answer came: the claim may have been made.
        """
        return self.turn_over((), worker, classes, wants, token=token, is_empty=is_empty)[1]

    def turn_over(
        self,
        settlements: Sequence[Settlement],
        worker: str,
        classes: Sequence[str],
        wants: Sequence[Want],
        *,
        token: str | None = None,
        is_empty: bool = True,
    ) -> tuple[list[bool], Claimed]:
        """`settle`, then `claim`, in one round trip. `is_empty`: nothing is on board once these have left."""
        *before, last = [*encoding.chunks(settlements)] or [()]
        ends = [part for one in last for part in encoding.settle_args(one)]
        args: list[Any] = [
                len(ends), *ends, token or uuid.uuid4().hex, worker, json.dumps(list(classes)),
                json.dumps([[w.batch_key, w.slots, *map(int, w[2:6]), w.but] for w in wants]),
                int(self.settings.lease_s * 1000), self._static_limits, self._class_delays, int(is_empty),
                self._suspect_crashes(),
            ]  # fmt: skip
        *verdicts, (last_verdicts, batch) = self._send([*_settle_calls(before), ("turn", args)])
        claims = tuple(encoding.read_claim(row, self._suspect_crashes()) for row in batch[1:])
        return _are_ours([*verdicts, last_verdicts]), Claimed(claims, batch[0].decode())

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Commit ends of runs in one round trip. False where the lease was lost: that commit is refused."""
        if not settlements:
            return []
        return _are_ours(self._send(_settle_calls([*encoding.chunks(settlements)])))

    def cancel(self, job_id: str) -> str:
        """Returns 'dequeued', 'interrupting', 'too_late' or 'unknown'."""
        verdict: bytes = self._scripts["cancel"](args=[job_id, error_json(JobCanceled())])
        return verdict.decode()

    def withdraw(self, job_id: str, transaction: Pipeline | None = None) -> None:
        """Take a waiting job out of its lane; the caller (RQ's cancel or delete) writes its end, in `transaction`."""
        self._scripts["withdraw"](args=[job_id], client=transaction)

    def renew(self, leases: Iterable[tuple[str, int]]) -> Renewal:
        """Extend leases; tells which are lost and which a client wants stopped."""
        pairs: list[str | int] = [part for lease in leases for part in lease]
        lost, canceled = self._scripts["renew"](args=[int(self.settings.lease_s * 1000), *pairs])
        pairs_lost = zip(lost[::2], lost[1::2], strict=True)
        return Renewal(
            frozenset((job_id.decode(), int(fence)) for job_id, fence in pairs_lost),
            frozenset(job_id.decode() for job_id in canceled),
        )

    def reap(self, most: int = 200) -> Reaped:
        """Requeue or fail what expired leases and times to live left behind; end what RQ's own cancel left waiting."""
        errors = [error_json(error()) for error in (JobPoisoned, JobExpired, JobCanceled)]
        return Reaped(*self._scripts["reap"](args=[most, self.settings.max_crashes, *errors]))

    def revisit(self, most: int = 200) -> int:
        """Look at so many of the jobs that wait for others and are due for it; returns how many there were."""
        return int(self._scripts["revisit"](args=[most]))

    def refile(self, claim: Claim, request: JobRequest) -> bool:
        """Turn a plain RQ call of worker.tasks.generate into the job that it describes."""
        fields = (
            encoding.shared_fields(request, self.settings) | encoding.own_fields(request) | {"origin": claim.origin}
        )
        delay_ms = self.settings.class_delay_ms[request.job_class.value]
        args = [claim.job_id, claim.fence, delay_ms, encoding.lifetime_s(self.settings), *encoding.flat(fields)]
        return bool(self._scripts["refile"](args=args) == b"ok")

    def attempt(self, delivery: Claim, body: bytes) -> Attempt | None:
        """Count an attempt; `body` is kept if it is the first one. None when the lease was lost: send nothing.

        An empty `body` is not kept: the attempt then has that of an earlier one, or none.
        """
        reply = self._scripts["attempt"](args=[delivery.job_id, delivery.fence, body])
        if not reply:
            return None
        number, url, tenant, kept, before = reply
        return Attempt(int(number), url.decode(), tenant.decode(), kept, int(before))

    def lead(self, name: str, ttl_s: float) -> int | None:
        """Take or keep the scheduler's leadership. Returns the epoch, or None while another leads."""
        return int(self._scripts["lead"](args=[name, int(ttl_s * 1000)])) or None

    def resign(self, name: str) -> None:
        """Give leadership up, if it is ours."""
        self._scripts["lead"](args=[name, 0])

    def publish_limits(self, epoch: int, limits: Mapping[str, float], ttl_s: float) -> bool:
        """Make limits known to all claims for `ttl_s`; False when a later epoch leads or has published already."""
        pairs = encoding.flat(dict(sorted(limits.items())))
        return bool(self._scripts["publish"](args=[epoch, int(ttl_s * 1000), *pairs]))

    def get(self, job_id: str) -> JobRecord | None:
        return self.get_many([job_id])[0]

    def get_many(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """Records in the order of the ids, None where there is no such job, or only the trace of a collected line."""
        with self.redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(keys.job(job_id))
                pipe.xrevrange(keys.results(job_id), count=1)
            replies = pipe.execute()
        return [
            encoding.read_record(job_id, fields, entries) if fields and b"collected" not in fields else None
            for job_id, fields, entries in zip(job_ids, replies[::2], replies[1::2], strict=True)
        ]

    def standing(self, job_id: str) -> Standing | None:
        """How a job stands, in one round trip; None where there is no such job."""
        return self.standings([job_id])[0]

    def standings(self, job_ids: Sequence[str]) -> list[Standing | None]:
        """The same of many, in their order."""
        told = self._send([("standing", [job_id]) for job_id in job_ids])
        return [encoding.read_standing(*one, self.limits) for one in zip(job_ids, told, strict=True)]

    def which_exist(self, job_ids: Sequence[str]) -> set[str]:
        """Those that are stored, whatever their state."""
        with self.redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.exists(keys.job(job_id))
            return {job_id for job_id, exists in zip(job_ids, pipe.execute(), strict=True) if exists}

    def list_ids(self, tenant: str, after: str | None, limit: int) -> list[str]:
        """Newest first; `after` is the last id of the page before."""
        index = keys.tenant_jobs(tenant)
        start = 0
        if after is not None:
            rank = self._commands.zrevrank(index, after)
            if rank is None:
                return []
            start = int(rank) + 1
        return [raw.decode() for raw in self._commands.zrevrange(index, start, start + limit - 1)]

    def queue_depths(self) -> dict[str, int]:
        """Ready jobs of each queue."""
        depths = {}
        for name in keys.QUEUES:
            batch_keys = self._commands.zrange(keys.batch_key_heads(name), 0, -1)
            depths[name] = sum(self._commands.zcard(keys.ready(name, key.decode())) for key in batch_keys)
        return depths

    def _send(self, calls: Sequence[tuple[str, Sequence[Any]]], *, wait_aof: bool = False) -> list[Any]:
        """Calls of scripts in one round trip. A server that does not know one yet gets it and all calls again: every
        script bears repetition. redis-py's own pipelining of scripts asks first, in a trip of its own.
        """
        for _ in range(2):
            with self.redis.pipeline(transaction=False) as pipe:
                for name, args in calls:
                    pipe.evalsha(self._scripts[name].sha, 0, *args)
                if wait_aof:
                    pipe.execute_command("WAITAOF", 1, 0, AOF_WAIT_MS)  # type: ignore[no-untyped-call]  # of redis-py
                replies = pipe.execute(raise_on_error=False)
            if not any(isinstance(reply, NoScriptError) for reply in replies):
                break
            for name in {name for name, _ in calls}:
                self.redis.script_load(self._scripts[name].script)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _submit_args(self, requests: Sequence[JobRequest], guard: KeyGuard | None = None) -> list[Any]:
        return encoding.submit_args(requests, self.settings, self._static_limits, guard)

    def _send_submits(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """With durability `always` answered only when the append-only file holds what they stored."""
        is_durable = self.settings.durability is Durability.ALWAYS
        replies = self._send(calls, wait_aof=is_durable)
        if is_durable and replies.pop()[0] < 1:
            raise StoreUnavailable("the append-only file did not confirm the job in time; try again")
        return replies

    def _suspect_crashes(self) -> int:
        return max(1, self.settings.max_crashes - 1)


def _settle_calls(chunks: Sequence[Sequence[Settlement]]) -> list[tuple[str, list[Any]]]:
    return [("settle", [part for one in chunk for part in encoding.settle_args(one)]) for chunk in chunks]


def _are_ours(replies: Sequence[Sequence[bytes]]) -> list[bool]:
    return [verdict in (b"ok", b"again") for verdicts in replies for verdict in verdicts]
