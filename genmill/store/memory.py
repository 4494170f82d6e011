"""What models take of devices' memory, as workers have measured it, and how often they made room for each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis import Redis

from genmill import keys


class MemoryBook:
    """Kept for workers to come: they start with what others know. Raises redis.exceptions.RedisError when the server
    is gone."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes

    def note(self, device: str, memories: Mapping[str, str]) -> None:
        """By batch key, in the worker's own words; the last that was measured on such a device holds."""
        with self._redis.pipeline() as pipe:
            pipe.hset(keys.PREFIXES["memory"], mapping={f"{key} {device}": one for key, one in memories.items()})
            pipe.expire(keys.PREFIXES["memory"], keys.MEMORY_TTL_S)
            pipe.execute()

    def on(self, device: str) -> dict[str, bytes]:
        """What is known of such a device, by batch key; whoever reads it should doubt it."""
        fields = {
            name.decode("utf-8", "replace").partition(" "): one
            for name, one in self._commands.hgetall(keys.PREFIXES["memory"]).items()
        }
        return {key: one for (key, _, where), one in fields.items() if where == device}

    def count_switches(self, made: Mapping[str, tuple[int, float]]) -> None:
        """Add to the fleet's: by cause how many, and the seconds that they took."""
        with self._redis.pipeline() as pipe:
            for cause, (count, took_s) in made.items():
                pipe.hincrby(keys.PREFIXES["switches"], f"{cause} count", count)
                pipe.hincrbyfloat(keys.PREFIXES["switches"], f"{cause} seconds", took_s)
            pipe.expire(keys.PREFIXES["switches"], keys.MEMORY_TTL_S)
            pipe.execute()

    def switches(self) -> dict[str, float]:
        """The fleet's, by cause and "count" or "seconds", joined by a blank."""
        return {name.decode(): float(one) for name, one in self._commands.hgetall(keys.PREFIXES["switches"]).items()}
