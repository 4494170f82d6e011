"""Limits in force, their editing by operators, and what a waiting job waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis

from genmill import keys
from genmill.jobs import JobRecord
from genmill.store.messages import Limit, Waiting

UNCOUNTED = ("weight:", "reserve:", "queued:", "rate:", "budget:")
"""Scopes that bound something other than live leases."""


class LimitBook:
    """What the settings say and an operator has set; raises redis.exceptions.RedisError when the server is gone."""

    def __init__(self, redis: Redis, static: Mapping[str, float]) -> None:
        self._redis: Redis = redis
        self._commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes
        self._static = static

    def set(self, limits: Mapping[str, float]) -> None:
        """Set by an operator: they go before the settings, with the scheduler's next tick."""
        self._commands.hset(keys.PREFIXES["limset"], mapping=dict(limits))

    def unset(self, scopes: Sequence[str]) -> int:
        """Take back what an operator set; returns how many there were."""
        return int(self._commands.hdel(keys.PREFIXES["limset"], *scopes))

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
