"""How models share forwards and how long those take, as the workers that have loaded them tell the fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from redis import Redis

from genmill import keys


class ForwardsBook:
    """Each entry is the last that a worker told; all go when none tells any more. Raises redis.exceptions.RedisError
    when the server is gone."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._commands: Any = redis  # redis-py types each reply for every decode option at once; ours are bytes

    def publish_curves(self, curves: Mapping[str, Mapping[str, Any]]) -> None:
        """Service curves by batch key, device and shape, joined by blanks."""
        self._publish("curves", {name: json.dumps(dict(one)) for name, one in curves.items()})

    def curves(self) -> dict[str, Any]:
        return {name: json.loads(one) for name, one in self._published("curves").items()}

    def publish_batching(self, modes: Mapping[str, str]) -> None:
        """How loaded models share forwards (`Batching`), by batch key; only what has loaded a model can tell."""
        self._publish("batching", {key: str(mode) for key, mode in modes.items()})

    def batching(self) -> dict[str, str]:
        return self._published("batching")

    def _publish(self, what: str, told: dict[str, str]) -> None:
        with self._redis.pipeline() as pipe:
            pipe.hset(keys.PREFIXES[what], mapping=told)  # type: ignore[arg-type]  # redis-py wants a wider type of keys
            pipe.expire(keys.PREFIXES[what], keys.CURVES_TTL_S)
            pipe.execute()

    def _published(self, what: str) -> dict[str, str]:
        return {name.decode(): one.decode() for name, one in self._commands.hgetall(keys.PREFIXES[what]).items()}
