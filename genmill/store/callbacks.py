"""Webhooks of a job or a batch after they were due: their deliveries with all attempts, and sending one once more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from redis import Redis
from redis.commands.core import Script

from genmill import keys
from genmill.store import encoding


class DeliveryState(StrEnum):
    """`unknown`: it was so long ago that neither it nor its log is there any more."""

    WAITING = "waiting"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Subject(NamedTuple):
    """The job or batch that webhooks tell of, and the key of its hash."""

    id: str
    key: str


class LoggedAttempt(NamedTuple):
    """`status` is the HTTP status, 0 where there was no answer; `at` in Unix seconds."""

    number: int
    status: int
    detail: str
    at: float

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Delivery:
    """`delivery_id` is the `webhook-id` of all its attempts; `next_at` is when one that was put off is due, in Unix
    seconds."""

    delivery_id: str
    event: str
    state: DeliveryState
    attempts: tuple[LoggedAttempt, ...]
    next_at: float | None


class Redelivery(NamedTuple):
    """What redeliver.lua says: its verdict, and the delivery that is meant."""

    verdict: str
    delivery_id: str


class CallbackBook:
    """All methods raise redis.exceptions.RedisError when the server is gone."""

    def __init__(self, redis: Redis, redeliver: Script, static_limits: str) -> None:
        self._redis: Any = redis  # as in Store: ours are bytes
        self._redeliver, self._static_limits = redeliver, static_limits

    def deliveries(self, subject: Subject) -> list[Delivery]:
        """The latest first: those that it remembers, then those that only their log knows. None before the first is
        due."""
        told, log = self._redis.hget(subject.key, "told"), self._redis.lrange(keys.deliveries(subject.id), 0, -1)
        attempts: dict[str, list[LoggedAttempt]] = {}
        for raw in log:
            entry = json.loads(raw)
            one = LoggedAttempt(entry["attempt"], entry["status"], entry["detail"], entry["at"])
            attempts.setdefault(entry["id"], []).append(one)
        ids = told.decode().split() if told else []
        ids += [one for one in reversed(attempts) if one not in ids]
        return [
            _delivery(one, subject.id, attempts.get(one, ()), stored)
            for one, stored in zip(ids, self._stored(ids), strict=True)
        ]

    def delivery(self, subject: Subject, delivery_id: str) -> Delivery:
        """One of them; `unknown` where it is not, or no more, among them."""
        found = [one for one in self.deliveries(subject) if one.delivery_id == delivery_id]
        return found[0] if found else _delivery(delivery_id, subject.id, (), (None, None))

    def redeliver(
        self, subject: Subject, delivery_id: str | None, idempotency_key: str | None, body_hash: str, ttl_s: int
    ) -> Redelivery:
        """Send the delivery once more, or the latest one. Safe to repeat: one that waits or is sent is left as it is,
        also one that RQ canceled while it is sent, and a key that is known (for `ttl_s`) changes nothing. Verdicts:
        see redeliver.lua. Raises LimitReached: one that is sent counts in its tenant's rate, as a submission does."""
        args: list[Any] = [subject.key, subject.id, delivery_id or "", idempotency_key or "", body_hash, ttl_s]
        verdict, found, *refusal = self._redeliver(args=[*args, self._static_limits])
        if refusal:
            raise encoding.limit_reached(encoding.read_refusal(refusal))
        return Redelivery(verdict.decode(), found.decode())

    def _stored(self, ids: Sequence[str]) -> list[tuple[bytes | None, float | None]]:
        """(RQ's status, time of the next attempt) of each. One that RQ canceled or deleted while it is sent is still
        sent."""
        with self._redis.pipeline(transaction=False) as pipe:
            for one in ids:
                pipe.hget(keys.job(one), "status")
                pipe.hexists(keys.PREFIXES["leases"], one)
                pipe.zscore(keys.PREFIXES["scheduled"] + keys.CALLBACKS, one)
            replies = pipe.execute()
        return [
            (b"started" if is_held else status, next_at)
            for status, is_held, next_at in zip(replies[::3], replies[1::3], replies[2::3], strict=True)
        ]


_STATES = {
    b"queued": DeliveryState.WAITING,
    b"scheduled": DeliveryState.WAITING,
    b"started": DeliveryState.SENDING,
    b"finished": DeliveryState.DELIVERED,
}
"""By RQ's status; any other one is a delivery that was given up, or that an operator stopped."""


def _delivery(
    delivery_id: str, about: str, attempts: Sequence[LoggedAttempt], stored: tuple[bytes | None, float | None]
) -> Delivery:
    status, next_at = stored
    event = delivery_id.removeprefix(f"cb_{about}_").split("_")[1]
    state = _last_known(attempts) if status is None else _STATES.get(status, DeliveryState.FAILED)
    return Delivery(delivery_id, event, state, tuple(attempts), next_at)


def _last_known(attempts: Sequence[LoggedAttempt]) -> DeliveryState:
    if not attempts:
        return DeliveryState.UNKNOWN
    return DeliveryState.DELIVERED if attempts[-1].is_success else DeliveryState.FAILED
