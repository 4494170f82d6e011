"""The store: jobs, lanes, leases and registries in Redis."""

from __future__ import annotations

import json
import uuid
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError

from genmill import keys
from genmill.errors import (
    FieldFault,
    IdempotencyMismatch,
    JobCanceled,
    JobExpired,
    JobPoisoned,
    LimitReached,
    StoreUnavailable,
)
from genmill.jobs import (
    Claim,
    JobRecord,
    JobRequest,
    error_json,
    pack_generate,
    record_from_hash,
    unpack_call,
)
from genmill.settings import Durability, Settings
from genmill.store import scripts
from genmill.store.messages import Claimed, Limit, Reaped, Refusal, Renewal, Settlement, Submitted, Waiting, Want

AOF_WAIT_MS = 1000
"""How long a submit waits for the append-only file; shorter than the API waits for Redis, so that it hears of it."""
CHUNK = 200
"""Jobs in one run of a script: others wait meanwhile, some milliseconds."""


class Store:
    """All methods raise redis.exceptions.RedisError when the server is gone; the caller decides who waits."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self._commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
        self.settings = settings
        self._scripts = scripts.register(redis)
        self._static_limits = json.dumps(dict(settings.limits))
        self._class_delays = json.dumps(settings.class_delay_ms)

    def submit(self, request: JobRequest) -> tuple[str, bool]:
        """Store and queue. Returns (job id, whether an earlier request with this Idempotency-Key is replayed).

        Raises IdempotencyMismatch, LimitReached, StoreUnavailable. Safe to repeat: the same job id is stored once.
        With durability `always` it returns only when the append-only file holds the job.
        """
        (submitted,) = self.submit_many([request])
        if submitted.is_mismatch:
            raise IdempotencyMismatch
        if submitted.refusal is not None:
            raise limit_reached(submitted.refusal)
        return submitted.job_id, submitted.is_replay

    def submit_many(self, requests: Sequence[JobRequest]) -> list[Submitted]:
        """Store and queue many in one round trip, in their order; those of one model, class and tenant in one step.

        Raises StoreUnavailable. Safe to repeat as a whole: the same job ids are stored once.
        """
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(_shared_by(request), []).append(place)
        chunks = [places[i : i + CHUNK] for places in groups.values() for i in range(0, len(places), CHUNK)]
        calls = [self._submit_args([requests[place] for place in places]) for places in chunks]
        is_durable = self.settings.durability is Durability.ALWAYS
        replies = self._send("submit", calls, wait_aof=is_durable)
        if is_durable and replies.pop()[0] < 1:
            raise StoreUnavailable("the append-only file did not confirm the job in time; try again")
        submitted = [Submitted("")] * len(requests)
        for places, verdicts in zip(chunks, replies, strict=True):
            for place, verdict in zip(places, verdicts, strict=True):
                submitted[place] = _submitted(verdict)
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
        args: list[str | int] = [
                token or uuid.uuid4().hex, worker, json.dumps(list(classes)),
                json.dumps([[key, slots, int(resident), int(idle)] for key, slots, resident, idle in wants]),
                int(self.settings.lease_s * 1000), self._static_limits, self._class_delays, int(is_empty),
                self._suspect_crashes(),
            ]  # fmt: skip
        reply = self._scripts["claim"](args=args)
        return Claimed(tuple(_claim(row, self._suspect_crashes()) for row in reply[1:]), reply[0].decode())

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Commit ends of jobs in one round trip. False where the lease was lost: that commit is refused."""
        if not settlements:
            return []
        chunks = [settlements[start : start + CHUNK] for start in range(0, len(settlements), CHUNK)]
        replies = self._send("settle", [[part for one in chunk for part in _settle_args(one)] for chunk in chunks])
        return [verdict in (b"ok", b"again") for verdicts in replies for verdict in verdicts]

    def cancel(self, job_id: str) -> str:
        """Returns 'dequeued', 'interrupting', 'too_late' or 'unknown'."""
        verdict: bytes = self._scripts["cancel"](args=[job_id, error_json(JobCanceled())])
        return verdict.decode()

    def withdraw(self, job_id: str) -> bool:
        """Take a waiting job out of its lane; the caller (RQ's cancel or delete) writes its end."""
        return bool(self._scripts["withdraw"](args=[job_id]))

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
        """Requeue or fail what expired leases and times to live left behind."""
        errors = [error_json(error()) for error in (JobPoisoned, JobExpired, JobCanceled)]
        return Reaped(*self._scripts["reap"](args=[most, self.settings.max_crashes, *errors]))

    def refile(self, claim: Claim, request: JobRequest) -> bool:
        """Turn a plain RQ call of worker.tasks.generate into the job that it describes."""
        fields = self._shared_fields(request) | _own_fields(request) | {"origin": claim.origin}
        delay_ms = self.settings.class_delay_ms[request.job_class.value]
        return bool(self._scripts["refile"](args=[claim.job_id, claim.fence, delay_ms, *_flat(fields)]) == b"ok")

    def note_progress(self, steps: Iterable[tuple[str, int, int, int]]) -> int:
        """(job id, fence, step, steps) of running jobs; returns how many were still ours."""
        args: list[str | int] = []
        for job_id, fence, step, total in steps:
            args += [job_id, fence, json.dumps({"step": step, "steps": total})]
        return int(self._scripts["progress"](args=args)) if args else 0

    def lead(self, name: str, ttl_s: float) -> int | None:
        """Take or keep the scheduler's leadership. Returns the epoch, or None while another leads."""
        epoch = int(self._scripts["lead"](args=[name, int(ttl_s * 1000)]))
        return epoch or None

    def resign(self, name: str) -> None:
        """Give leadership up, if it is ours."""
        self._scripts["lead"](args=[name, 0])

    def publish_limits(self, epoch: int, limits: Mapping[str, float], ttl_s: float) -> bool:
        """Make limits known to all claims for `ttl_s`; False when a later epoch has published already."""
        return bool(self._scripts["publish"](args=[epoch, int(ttl_s * 1000), *_flat(dict(sorted(limits.items())))]))

    def examine(self, job_ids: Sequence[str], *, mend: bool) -> list[tuple[str, str]]:
        """(job id, fault) of jobs that are not where their status says; with `mend` they are put there."""
        faults = self._scripts["examine"](args=[int(mend), *job_ids])
        return _pairs(faults)

    def tidy(
        self, scopes: Sequence[str], lanes: Sequence[tuple[str, str, str]], *, mend: bool
    ) -> list[tuple[str, str]]:
        """(name, fault) of slots that no lease holds and of lanes (class, batch key, tenant) that no claim finds."""
        flat = [part for lane in lanes for part in lane]
        return _pairs(self._scripts["tidy"](args=[int(mend), len(scopes), *scopes, *flat]))

    def set_limits(self, limits: Mapping[str, float]) -> None:
        """Set by an operator: they go before the settings, with the scheduler's next tick."""
        self._commands.hset(keys.PREFIXES["limset"], mapping=dict(limits))

    def unset_limits(self, scopes: Sequence[str]) -> int:
        """Take back what an operator set; returns how many there were."""
        return int(self._commands.hdel(keys.PREFIXES["limset"], *scopes))

    def limits(self) -> list[Limit]:
        """All limits in force, by scope."""
        given = {scope: (value, "settings") for scope, value in self.settings.limits.items()}
        given |= {scope: (value, "operator") for scope, value in self.operator_limits().items()}
        counted = [scope for scope in given if "*" not in scope and not scope.startswith(("weight:", "reserve:"))]
        with self.redis.pipeline(transaction=False) as pipe:
            for scope in counted:
                pipe.scard(keys.run_scope(f"tenant:{scope}" if scope.startswith("host:") else scope))
            live = dict(zip(counted, pipe.execute(), strict=True))
        return [Limit(scope, value, source, live.get(scope)) for scope, (value, source) in sorted(given.items())]

    def operator_limits(self) -> dict[str, float]:
        """What an operator has set, by scope."""
        found = self._commands.hgetall(keys.PREFIXES["limset"])
        return {scope.decode(): float(value) for scope, value in found.items()}

    def get(self, job_id: str) -> JobRecord | None:
        return self.get_many([job_id])[0]

    def get_many(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """Records in the order of the ids, None where there is no such job."""
        with self.redis.pipeline(transaction=False) as pipe:
            for job_id in job_ids:
                pipe.hgetall(keys.job(job_id))
                pipe.xrevrange(keys.results(job_id), count=1)
            replies = pipe.execute()
        return [
            _record(job_id, fields, entries) if fields else None
            for job_id, fields, entries in zip(job_ids, replies[::2], replies[1::2], strict=True)
        ]

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

    def waiting(self, record: JobRecord) -> Waiting:
        """Where a queued job stands and what it waits for, in one round trip."""
        scopes = [(f"class:{record.job_class}",), (f"tenant:{record.tenant}", "tenant:*")]
        scopes += [(f"tc:{record.tenant}:{record.job_class}", f"tc:*:{record.job_class}")]
        scopes += [(f"model:{record.model}", "model:*"), ("all",)]
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.zrank(keys.ready(record.job_class, record.batch_key), record.job_id)
            pipe.exists(keys.PREFIXES["suspended"])
            pipe.scard(f"{keys.PREFIXES['workers']}:{record.job_class}")
            pipe.hgetall(keys.PREFIXES["limset"])
            for scope, *_ in scopes:
                pipe.scard(keys.run_scope(scope))
            rank, is_suspended, workers, set_limits, *running = pipe.execute()
        known = dict(self.settings.limits) | {name.decode(): float(value) for name, value in set_limits.items()}
        position = None if rank is None else int(rank)
        if is_suspended:
            return Waiting(position, "suspended")
        if not workers:
            return Waiting(position, "no_worker")
        for (scope, *default), live in zip(scopes, running, strict=True):
            limit = known.get(scope, known.get(default[0]) if default else None)
            if limit is not None and live >= limit:
                return Waiting(position, "limit", scope, int(limit), int(live))
        return Waiting(position, "turn" if position is not None else "delay")

    def wait_for_end(self, job_id: str, timeout_s: float) -> None:
        """Return at the job's next end or after `timeout_s`; the result stream is RQ's, so nothing is missed."""
        key = keys.results(job_id)
        last = self._commands.xrevrange(key, count=1)
        record = self.get(job_id)  # read after the mark: an end before it would never be seen as a new one
        if record is None or record.state.is_terminal:
            return
        self._commands.xread({key: last[0][0] if last else b"0-0"}, block=max(1, int(timeout_s * 1000)), count=1)

    def queue_depths(self) -> dict[str, int]:
        """Ready jobs of each queue."""
        depths = {}
        for name in keys.QUEUES:
            batch_keys = self._commands.zrange(keys.batch_key_heads(name), 0, -1)
            depths[name] = sum(self._commands.zcard(keys.ready(name, key.decode())) for key in batch_keys)
        return depths

    def _send(self, name: str, calls: Sequence[Sequence[Any]], *, wait_aof: bool = False) -> list[Any]:
        """Many calls of one script in one round trip. A server that does not know the script yet gets it and all
        calls again: every script bears repetition. redis-py's own pipelining of scripts asks first, in a trip of its
        own.
        """
        script = self._scripts[name]
        for _ in range(2):
            with self.redis.pipeline(transaction=False) as pipe:
                for args in calls:
                    pipe.evalsha(script.sha, 0, *args)
                if wait_aof:
                    pipe.execute_command("WAITAOF", 1, 0, AOF_WAIT_MS)  # type: ignore[no-untyped-call]
                replies = pipe.execute(raise_on_error=False)
            if not any(isinstance(reply, NoScriptError) for reply in replies):
                break
            self.redis.script_load(script.script)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _suspect_crashes(self) -> int:
        return max(1, self.settings.max_crashes - 1)

    def _submit_args(self, requests: Sequence[JobRequest]) -> list[Any]:
        """Of jobs that share their model, class and tenant."""
        first = requests[0]
        shared = _flat(self._shared_fields(first))
        lifetime = max(self.settings.result_ttl_s, self.settings.failure_ttl_s)
        delay_ms = self.settings.class_delay_ms[first.job_class.value]
        args = [self._static_limits, self.settings.idempotency_ttl_s, lifetime, delay_ms, len(shared), *shared]
        for request in requests:
            own = _flat(_own_fields(request))
            args += [request.job_id, request.idempotency_key or "", request.body_hash, request.ttl_s or 0]
            args += [len(own), *own]
        return args

    def _shared_fields(self, request: JobRequest) -> dict[str, Any]:
        """Fields that all jobs of a model, class, tenant, cost and number of rows have in common."""
        spec = request.model
        return {
            "description": f"{spec.name} {spec.kind}", "origin": request.job_class.value, "timeout": 3600,
            "result_ttl": self.settings.result_ttl_s, "failure_ttl": self.settings.failure_ttl_s,
            "tenant": request.tenant, "model": spec.name, "batch_key": spec.batch_key,
            "cost": round(spec.cost_ms(request.input), 3), "rows": request.input.rows,
        }  # fmt: skip


def _chunks(places: Sequence[int]) -> list[Sequence[int]]:
    return [places[start : start + CHUNK] for start in range(0, len(places), CHUNK)]


def _submitted(verdict: Sequence[Any]) -> Submitted:
    kind, *rest = verdict
    if kind == b"limited":
        scope, limit, value, retry_after_s = rest
        return Submitted("", refusal=Refusal(scope.decode(), float(limit), float(value), int(retry_after_s)))
    return Submitted(rest[0].decode(), is_replay=kind == b"replayed", is_mismatch=kind == b"mismatch")


def limit_reached(refusal: Refusal) -> LimitReached:
    """The error of a refusal."""
    detail = f"the limit {refusal.scope} is {refusal.limit:g}, it stands at {refusal.value:g}"
    fault = FieldFault("/", detail, f"{refusal.limit:g}", f"{refusal.value:g}")
    return LimitReached(detail, faults=(fault,), retry_after_s=refusal.retry_after_s)


def _shared_by(request: JobRequest) -> tuple[Any, ...]:
    cost_ms = request.model.cost_ms(request.input)
    return (
        request.model.name,
        request.model.batch_key,
        request.job_class,
        request.tenant,
        cost_ms,
        request.input.rows,
    )


def _own_fields(request: JobRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {"data": pack_generate(request.model.name, request.input)}
    if request.webhook:
        fields["hook"] = request.webhook
    if request.metadata:
        fields["metadata"] = json.dumps(dict(request.metadata))
    return fields


def _pairs(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    return [(name.decode(), fault.decode()) for name, fault in zip(flat[::2], flat[1::2], strict=True)]


def _flat(fields: Mapping[str, Any]) -> list[Any]:
    return [part for pair in fields.items() for part in pair]


def _settle_args(settlement: Settlement) -> list[Any]:
    payload = b64encode(json.dumps(settlement.result).encode()) if settlement.result is not None else ""
    # A traceback holds whatever a job's input held, lone surrogates too.
    exc = b64encode(zlib.compress(settlement.exc.encode("utf-8", "replace"))) if settlement.exc else ""
    error = error_json(settlement.error) if settlement.error else ""
    head = [settlement.job_id, settlement.fence, settlement.outcome.value]
    return [*head, payload, error, exc, round(settlement.gpu_ms, 3), settlement.delay_ms]


def _claim(row: Sequence[bytes | None], suspect_crashes: int) -> Claim:
    job_id, fence, data, origin, tenant, batch_key, vd, postponed, rows, cost, parent, crashes, timeout = (
        b"" if part is None else part for part in row
    )
    try:
        call = unpack_call(data)
    except (ValueError, TypeError, RecursionError):
        call = ("", [], {})  # pickled or broken: the call station refuses it by name, and never unpickles
    return Claim(
        job_id.decode(), int(fence), origin.decode(), tenant.decode(), batch_key.decode(), float(vd),
        int(postponed or 0), int(float(rows or 1)), float(cost or 1), parent.decode() or None,
        int(crashes or 0) >= suspect_crashes, float(timeout) if timeout and float(timeout) > 0 else None, call,
    )  # fmt: skip


def _record(
    job_id: str, fields: Mapping[bytes, bytes], entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]
) -> JobRecord:
    result = entries[0][1].get(b"return_value") if entries and fields.get(b"status") == b"finished" else None
    return record_from_hash(job_id, fields, result)
