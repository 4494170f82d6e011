"""Webhook deliveries: many at once in threads, signed, retried on a schedule, logged for each job."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from standardwebhooks import Webhook

from genmill import keys, net
from genmill.errors import DeliveryFailed, GenmillError
from genmill.jobs import Claim
from genmill.links import Links
from genmill.settings import Settings
from genmill.store import Store
from genmill.views import job_view
from worker.engines.base import Failed, Postponed, Returned, StationEvent

log = logging.getLogger("genmill.worker")

MAX_BODY_BYTES = 20_000
GONE = 410


def next_delay_s(
    delays_s: Sequence[float], attempt: int, retry_after_s: float | None, jitter: Callable[[], float]
) -> float | None:
    """Seconds until attempt `attempt + 1` (attempts count from 1), or None when the schedule is used up.

    Up to 10 % jitter spreads the retries of many jobs; a receiver's Retry-After is honoured when it is longer.
    """
    if attempt >= len(delays_s):
        return None
    planned = delays_s[attempt] * (1 + 0.1 * jitter())
    return max(planned, retry_after_s or 0.0)


def signed_headers(message_id: str, body: bytes, secret: str, at: datetime) -> dict[str, str]:
    """Standard Webhooks headers; `at` must be UTC (the library overwrites the zone)."""
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, at, body.decode()),
    }


class DeliveryStation:
    """Deliveries in threads. The body is fixed at the first attempt, so that every attempt sends the same bytes."""

    batch_key = keys.CALLBACKS

    def __init__(self, store: Store, settings: Settings, links: Links) -> None:
        self._store, self._settings, self._links = store, settings, links
        self._pool = ThreadPoolExecutor(settings.callback_slots, thread_name_prefix="deliver")
        self._sending: dict[str, Future[StationEvent]] = {}

    def free_slots(self) -> int:
        return self._settings.callback_slots - len(self._sending)

    def admit(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._sending[claim.job_id] = self._pool.submit(self._deliver, claim)

    def step(self) -> list[StationEvent]:
        done = [job_id for job_id, future in self._sending.items() if future.done()]
        return [self._result(job_id, self._sending.pop(job_id)) for job_id in done]

    def evict(self, job_id: str) -> int | None:
        future = self._sending.pop(job_id, None)
        return None if future is None else 0

    def is_idle(self) -> bool:
        return not self._sending

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _result(self, job_id: str, future: Future[StationEvent]) -> StationEvent:
        error = future.exception()
        if error is None:
            return future.result()
        # Redis went away in the middle: nothing is known to be delivered, so the delivery is due again.
        return Postponed(job_id, 5.0, DeliveryFailed(f"{type(error).__name__}: {error}"))

    def _deliver(self, claim: Claim) -> StationEvent:
        redis: Any = self._store.redis
        attempt = int(redis.hincrby(keys.job(claim.job_id), "attempts", 1))
        url_raw, body = redis.hmget(keys.job(claim.job_id), "url", "body")
        url = (url_raw or b"").decode()
        if body is None:
            body = self._body(claim)
            redis.hset(keys.job(claim.job_id), "body", body)
        status, retry_after_s, detail = self._send(claim, url, body)
        self._log(redis, claim, attempt, status, detail)
        if 200 <= status < 300:
            return Returned(claim.job_id, {"status": status, "attempt": attempt})
        error = DeliveryFailed(f"{url.split('?')[0]}: {detail}")
        delay_s = None if status == GONE else self._next_delay(attempt, retry_after_s)
        if delay_s is None:
            return Failed(claim.job_id, error)
        return Postponed(claim.job_id, delay_s, error)

    def _next_delay(self, attempt: int, retry_after_s: float | None) -> float | None:
        return next_delay_s(self._settings.callback_delays_s, attempt, retry_after_s, random.random)

    def _body(self, claim: Claim) -> bytes:
        job_id, event = claim.call[1]
        record = self._store.get(job_id)
        view: dict[str, Any] = {"id": job_id} if record is None else job_view(record, self._links)
        message = {"type": f"job.{event}", "timestamp": datetime.now(UTC).isoformat(), "data": view}
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_BODY_BYTES:
            view.pop("input", None)
            view.pop("metadata", None)
            body = json.dumps(message, separators=(",", ":")).encode()
        return body

    def _send(self, claim: Claim, url: str, body: bytes) -> tuple[int, float | None, str]:
        """(HTTP status or 0, Retry-After, one line about it)."""
        secret = self._links.webhook_secret(self._tenant(claim))
        headers = signed_headers(claim.job_id, body, secret, datetime.now(UTC))
        try:
            reply = net.post(url, body, headers, self._settings)
        except GenmillError as err:
            return 0, None, err.detail
        return reply.status, reply.retry_after_s, f"answered {reply.status}"

    def _tenant(self, claim: Claim) -> str:
        redis: Any = self._store.redis
        owner = redis.hget(keys.job(claim.parent or ""), "tenant")
        return str(owner.decode()) if owner else "default"

    def _log(self, redis: Any, claim: Claim, attempt: int, status: int, detail: str) -> None:
        key = keys.deliveries(claim.parent or claim.job_id)
        entry = {
            "id": claim.job_id,
            "attempt": attempt,
            "status": status,
            "detail": detail,
            "at": time.time(),
        }
        with redis.pipeline(transaction=False) as pipe:
            pipe.rpush(key, json.dumps(entry))
            pipe.ltrim(key, -50, -1)
            pipe.expire(key, self._settings.result_ttl_s)
            pipe.execute()
