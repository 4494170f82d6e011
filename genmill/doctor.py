"""Looks in a live Redis for what should never be, and mends it: leaked slots, jobs in no place, unsafe settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import ResponseError

from genmill import keys
from genmill.registry import Registry
from genmill.store import Store

CHUNK = 500
SAFE = {"appendonly": "yes", "maxmemory-policy": "noeviction"}
WHY = {
    "appendonly": "a restart of Redis loses every job",
    "maxmemory-policy": "Redis may drop jobs when its memory is full",
}


class Finding(NamedTuple):
    """`what` is a job, a scope, a lane or a setting; `is_mended` tells whether it is in order again."""

    what: str
    fault: str
    is_mended: bool


def examine(store: Store, registry: Registry, *, mend: bool) -> Iterator[Finding]:
    """All findings, as they are found. Safe on a busy fleet: each job is looked at, and mended, in one step."""
    yield from _settings(store.redis, mend=mend)
    yield from _scheduler(store.redis)
    for names in _chunks(store.redis, keys.PREFIXES["job"]):
        ids = [name for name in names if ":" not in name]  # RQ keeps sets of dependents beside its jobs
        yield from _found(store.upkeep.examine(ids, mend=mend), mend=mend)
    leases = [job_id.decode() for job_id in _commands(store).hkeys(keys.PREFIXES["leases"])]
    orphans = [job_id for job_id in leases if not store.redis.exists(keys.job(job_id))]
    yield from _found(store.upkeep.examine(orphans, mend=mend), mend=mend)
    scopes = [scope for chunk in _chunks(store.redis, keys.PREFIXES["run"]) for scope in chunk]
    for lanes in _chunks(store.redis, keys.PREFIXES["lane"]):
        yield from _found(store.upkeep.tidy([], [_lane(name) for name in lanes], mend=mend), mend=mend)
        others = {_lane(name)[1] for name in lanes} - {keys.CALL_BATCH_KEY, keys.CALLBACKS}
        strays = [key for key in others if registry.by_batch_key(key) is None]
        yield from (
            Finding(key, "jobs wait for a model or an adapter that this fleet does not know", False)
            for key in sorted(strays)
        )
    yield from _found(store.upkeep.tidy(scopes, [], mend=mend), mend=mend)


def _settings(redis: Redis, *, mend: bool) -> Iterator[Finding]:
    commands: Any = redis
    for name, safe in SAFE.items():
        try:
            value = commands.config_get(name)[name]
            if value == safe:
                continue
            if mend:
                commands.config_set(name, safe)
            yield Finding(f"setting {name}", f"is {value}, should be {safe}: {WHY[name]}", mend)
        except (ResponseError, KeyError):  # hosted servers do not tell
            yield Finding(f"setting {name}", f"cannot be read; see that it is {safe}", False)


def _scheduler(redis: Redis) -> Iterator[Finding]:
    if not redis.exists(keys.PREFIXES["leader"]):
        fault = "none leads: leases of dead workers are not taken back, delayed jobs wait"
        yield Finding("scheduler", fault, False)


def _found(faults: list[tuple[str, str]], *, mend: bool) -> Iterator[Finding]:
    return (Finding(name, fault, mend) for name, fault in faults)


def _chunks(redis: Redis, prefix: str) -> Iterator[list[str]]:
    """Names of keys, without the prefix that they share."""
    chunk: list[str] = []
    for key in redis.scan_iter(prefix + "*", count=CHUNK):
        chunk.append(key.decode().removeprefix(prefix))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _lane(name: str) -> tuple[str, str, str]:
    """(class, batch key, tenant); the tenants of deliveries are hosts and have a colon of their own."""
    job_class, rest = name.split(":", 1)
    if job_class == keys.CALLBACKS:
        return job_class, keys.CALLBACKS, rest.removeprefix(f"{keys.CALLBACKS}:")
    batch_key, tenant = rest.rsplit(":", 1)
    return job_class, batch_key, tenant


def _commands(store: Store) -> Any:
    return store.redis
