"""Limits in force, their editing by operators, and what a waiting job waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis

from genmill import audit, keys
from genmill.audit import Actor
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
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.PREFIXES["limset"], (f"rate:{tenant}", "rate:*"))
            pipe.get(keys.rate(tenant))
            pipe.ttl(keys.rate(tenant))
            limits, count, ttl_s = pipe.execute()
        return self.read_rate(tenant, (*limits, count, ttl_s))

    def read_rate(self, tenant: str, told: Sequence[Any]) -> Rate | None:
        """The same of what standing.lua tells of submissions."""
        own, general, count, ttl_s = told
        most = self._limit_of(f"rate:{tenant}", own, "rate:*", general)
        if most is None:
            return None
        return Rate(int(most), max(0, int(most) - int(count or 0)), ttl_s if ttl_s > 0 else keys.RATE_WINDOW_S)

    def read_waiting(self, told: Sequence[Any]) -> Waiting:
        """Where a queued job stands and what it waits for, of what standing.lua tells."""
        jobs, rank, is_suspended, workers, *rows = told
        position = None if rank is None else int(rank)
        if jobs:
            return Waiting(position, "dependency", jobs=tuple(sorted(job_id.decode() for job_id in jobs)))
        if is_suspended:
            return Waiting(position, "suspended")
        if not workers:
            return Waiting(position, "no_worker")
        for scope, default, own, general, live in zip(*(rows[place::5] for place in range(5)), strict=True):
            limit = self._limit_of(scope.decode(), own, default.decode(), general)
            if limit is not None and live >= limit:
                return Waiting(position, "limit", scope.decode(), int(limit), int(live))
        return Waiting(position, "delay" if position is None else "turn")

    def _limit_of(self, scope: str, own: bytes | None, default: str, general: bytes | None) -> float | None:
        """Of a scope, else of that which stands for all of its kind; `own` and `general` are the operator's."""
        for name, by_operator in ((scope, own), (default, general)):
            value = float(by_operator) if by_operator else self._static.get(name)
            if value is not None:
                return value
        return None

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


def _numbers(limits: Mapping[bytes, bytes]) -> dict[str, float]:
    return {scope.decode(): float(value) for scope, value in limits.items()}
