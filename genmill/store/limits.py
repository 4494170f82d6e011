"""Limits in force, their editing by operators, and what a waiting job waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis

from genmill import audit, keys
from genmill.audit import Actor
from genmill.jobs import JobRecord
from genmill.store.messages import Limit, Rate, Waiting

UNCOUNTED = ("weight:", "reserve:", "queued:", "rate:", "budget:")
"""Scopes that bound something other than live leases."""


class LimitBook:
    """What the settings say and an operator has set; raises redis.exceptions.RedisError when the server is gone."""

    def __init__(self, redis: Redis, static: Mapping[str, float]) -> None:
        self._redis: Redis = redis
        self._commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
        self._static = static

    def set(self, limits: Mapping[str, float], *, by: Actor | None = None) -> None:
        """Set by an operator: they go before the settings, with the scheduler's next tick."""
        self._change(limits, by)

    def unset(self, scopes: Sequence[str], *, by: Actor | None = None) -> int:
        """Take back what an operator set; returns how many there were."""
        return self._change(dict.fromkeys(scopes), by)

    def by_operator(self) -> dict[str, float]:
        """What an operator has set, by scope."""
        return _numbers(self._commands.hgetall(keys.PREFIXES["limset"]))

    def in_force(self) -> dict[str, float]:
        """All limits, by scope."""
        return {**self._static, **self.by_operator()}

    def counted(self) -> list[Limit]:
        """All limits with who gave them and what counts against them now, by scope."""
        given = {scope: (value, "settings") for scope, value in self._static.items()}
        given |= {scope: (value, "operator") for scope, value in self.by_operator().items()}
        scopes = [scope for scope in given if "*" not in scope and not scope.startswith(UNCOUNTED)]
        with self._redis.pipeline(transaction=False) as pipe:
            for scope in scopes:
                pipe.scard(keys.run_scope(f"tenant:{scope}" if scope.startswith("host:") else scope))
            live = dict(zip(scopes, pipe.execute(), strict=True))
        return [Limit(scope, value, source, live.get(scope)) for scope, (value, source) in sorted(given.items())]

    def rate(self, tenant: str) -> Rate | None:
        """Where a tenant stands with its submissions of this minute; None without a limit on them."""
        scopes = (f"rate:{tenant}", "rate:*")
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.PREFIXES["limset"], scopes)
            pipe.get(keys.rate(tenant))
            pipe.ttl(keys.rate(tenant))
            by_operator, count, ttl_s = pipe.execute()
        known = dict(self._static) | {scope: float(raw) for scope, raw in zip(scopes, by_operator, strict=True) if raw}
        most = known.get(scopes[0], known.get(scopes[1]))
        if most is None:
            return None
        return Rate(int(most), max(0, int(most) - int(count or 0)), ttl_s if ttl_s > 0 else keys.RATE_WINDOW_S)

    def _change(self, limits: Mapping[str, float | None], by: Actor | None) -> int:
        """Of a scope that becomes None the limit goes. Returns how many scopes had one."""
        key, had = keys.PREFIXES["limset"], [0]

        def apply(pipe: Any) -> None:
            old = dict(zip(limits, pipe.hmget(key, list(limits)), strict=True))
            before = {scope: None if raw is None else float(raw) for scope, raw in old.items()}
            had[0] = sum(value is not None for value in before.values())
            pipe.multi()
            given = {scope: value for scope, value in limits.items() if value is not None}
            if given:
                pipe.hset(key, mapping=given)
            if gone := [scope for scope in limits if scope not in given]:
                pipe.hdel(key, *gone)
            audit.note(pipe, by, "limits.change", " ".join(limits)[:200], before, dict(limits))

        self._redis.transaction(apply, key)
        return had[0]

    def waiting(self, record: JobRecord) -> Waiting:
        """Where a queued job stands and what it waits for, in one round trip."""
        scopes = _scopes_of(record)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrank(keys.ready(record.job_class, record.batch_key), record.job_id)
            pipe.exists(keys.PREFIXES["suspended"])
            pipe.scard(f"{keys.PREFIXES['workers']}:{record.job_class}")
            pipe.hgetall(keys.PREFIXES["limset"])
            for scope in scopes:
                pipe.scard(keys.run_scope(scope))
            rank, is_suspended, workers, by_operator, *running = pipe.execute()
        position = None if rank is None else int(rank)
        if is_suspended:
            return Waiting(position, "suspended")
        if not workers:
            return Waiting(position, "no_worker")
        limits = {**self._static, **_numbers(by_operator)}
        for (scope, default), live in zip(scopes.items(), running, strict=True):
            limit = limits.get(scope, limits.get(default))
            if limit is not None and live >= limit:
                return Waiting(position, "limit", scope, int(limit), int(live))
        return Waiting(position, "delay" if position is None else "turn")


def _scopes_of(record: JobRecord) -> dict[str, str]:
    """The scopes that count the job, each with the scope that stands for all of its kind."""
    return {
        f"class:{record.job_class}": "",
        f"tenant:{record.tenant}": "tenant:*",
        f"tc:{record.tenant}:{record.job_class}": f"tc:*:{record.job_class}",
        f"model:{record.model}": "model:*",
        "all": "",
    }


def _numbers(limits: Mapping[bytes, bytes]) -> dict[str, float]:
    return {scope.decode(): float(value) for scope, value in limits.items()}
