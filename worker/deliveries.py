"""Webhook deliveries: many at once in threads, signed, retried on a schedule, logged for each job and batch."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import RedisError
from standardwebhooks import Webhook

from genmill import keys, net
from genmill.batches import Ledger
from genmill.batches.records import BATCH_ID
from genmill.batches.views import batch_view
from genmill.errors import DeliveryFailed, GenmillError
from genmill.jobs import Claim, Dialect
from genmill.links import Links
from genmill.predictions import prediction_view
from genmill.settings import Settings
from genmill.store import Store
from genmill.store.messages import Attempt
from genmill.views import job_view
from worker.engines.base import Failed, Left, Postponed, Returned, StationEvent

log = logging.getLogger("genmill.worker")

MAX_BODY_BYTES = 20_000
GONE = 410
OUR_FAULT = "something went wrong on our side; it is logged under the delivery's id"
"""What a tenant's log says of it: the cause may name hosts and files that are not theirs to know."""


def next_delay_s(
    delays_s: Sequence[float], attempt: int, retry_after_s: float | None, jitter: Callable[[], float]
) -> float | None:
    """Seconds until attempt `attempt + 1` (attempts count from 1), or None when the schedule is used up.

    Up to 10 % jitter spreads the retries of many jobs; a receiver's Retry-After is honoured when it is longer, up to
    the schedule's longest delay: a receiver cannot park a delivery for ever.
    """
    if attempt >= len(delays_s):
        return None
    planned = delays_s[attempt] * (1 + 0.1 * jitter())
    return max(planned, min(retry_after_s or 0.0, max(delays_s)))


def signed_headers(message_id: str, body: bytes, secret: str, at: datetime) -> dict[str, str]:
    """Standard Webhooks headers; `at` must be UTC (the library overwrites the zone)."""
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, at, body.decode()),
    }


def message_body(event: str, view: dict[str, Any], at: datetime) -> bytes:
    """`{type, timestamp, data}` of at most 20 kB: what a receiver can fetch by the id goes first when it is more.
    `event` is such as job.succeeded."""
    data = dict(view)
    message = {"type": event, "timestamp": at.isoformat(), "data": data}
    return _fitted(message, data, ("input", "metadata", "text", "outputs"))


def prediction_body(view: dict[str, Any]) -> bytes:
    """The whole prediction, as replicate sends it, of at most 20 kB in the same way."""
    data = dict(view)
    return _fitted(data, data, ("input", "output"))


def _fitted(message: dict[str, Any], data: dict[str, Any], spare: Sequence[str]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    for name in spare:
        if len(body) <= MAX_BODY_BYTES:
            break
        data.pop(name, None)
        body = json.dumps(message, separators=(",", ":")).encode()
    return body


class DeliveryStation:
    """Deliveries in threads, as many at once as there are slots."""

    batch_key = keys.CALLBACKS

    def __init__(self, store: Store, settings: Settings, links: Links) -> None:
        self._store, self._settings, self._links = store, settings, links
        self._ledger = Ledger(store.redis, settings)
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

    def evict(self, job_id: str) -> Left | None:
        future = self._sending.pop(job_id, None)
        return None if future is None else Left(0)

    def is_idle(self) -> bool:
        return not self._sending

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _result(self, job_id: str, future: Future[StationEvent]) -> StationEvent:
        error = future.exception()
        if error is None:
            return future.result()
        # Redis went away in the middle: nothing is known to be delivered, so the delivery is due again.
        log.warning("delivery %s was cut short: %s", job_id, error)
        return Postponed(job_id, 5.0, DeliveryFailed("Redis went away in the middle of the delivery"))

    def _deliver(self, claim: Claim) -> StationEvent:
        """One attempt. Raises RedisError; whatever else goes wrong is an attempt that failed."""
        attempt = self._store.attempt(claim, self._body(claim))
        if attempt is None:
            return Failed(claim.job_id, DeliveryFailed("the delivery was deleted, or its lease lost"))
        try:
            status, retry_after_s, detail = self._send(claim, attempt)
        except Exception:  # the edge of a delivery's thread: a fault of ours must not skip the schedule
            log.exception("delivery %s", claim.job_id)
            status, retry_after_s, detail = 0, None, OUR_FAULT
        self._log(claim, attempt.number, status, detail)
        if 200 <= status < 300:
            return Returned(claim.job_id, {"status": status, "attempt": attempt.number})
        error = DeliveryFailed(f"{attempt.url.split('?')[0]}: {detail}")
        delay_s = None if status == GONE else self._next_delay(attempt.number - attempt.before, retry_after_s)
        if delay_s is None:
            return Failed(claim.job_id, error)
        return Postponed(claim.job_id, delay_s, error)

    def _next_delay(self, attempt: int, retry_after_s: float | None) -> float | None:
        return next_delay_s(self._settings.callback_delays_s, attempt, retry_after_s, random.random)

    def _body(self, claim: Claim) -> bytes:
        """What a first attempt sends. Raises RedisError; empty after a fault of ours, for the attempt to tell of."""
        try:
            about, event = claim.call[1]
            return self._batch_body(about, event) if BATCH_ID.fullmatch(about) else self._job_body(about, event)
        except RedisError:
            raise
        except Exception:  # the edge of a delivery's thread: a fault of ours must not skip the schedule
            log.exception("message of delivery %s", claim.job_id)
            return b""

    def _job_body(self, job_id: str, event: str) -> bytes:
        record = self._store.get(job_id)
        if record is not None and record.dialect is Dialect.REPLICATE:
            return prediction_body(prediction_view(record, self._links))
        view: dict[str, Any] = {"id": job_id} if record is None else job_view(record, self._links)
        return message_body(f"job.{event}", view, datetime.now(UTC))

    def _batch_body(self, batch_id: str, event: str) -> bytes:
        """Nothing of an ended batch runs any more."""
        record, now_ms = self._ledger.read(batch_id), self._ledger.now_ms()
        view: dict[str, Any] = {"id": batch_id} if record is None else batch_view(record, 0, now_ms, self._links)
        return message_body(f"batch.{event}", view, datetime.now(UTC))

    def _send(self, claim: Claim, attempt: Attempt) -> tuple[int, float | None, str]:
        """(HTTP status or 0, Retry-After, one line about it)."""
        if not attempt.body:
            return 0, None, "the message could not be written"
        secret = self._links.webhook_secret(attempt.tenant)
        headers = signed_headers(claim.job_id, attempt.body, secret, datetime.now(UTC))
        try:
            reply = net.post(attempt.url, attempt.body, headers, self._settings)
        except GenmillError as err:
            return 0, None, err.detail
        return reply.status, reply.retry_after_s, f"answered {reply.status}"

    def _log(self, claim: Claim, attempt: int, status: int, detail: str) -> None:
        key = keys.deliveries(claim.parent or claim.job_id)
        entry = {
            "id": claim.job_id,
            "attempt": attempt,
            "status": status,
            "detail": detail,
            "at": time.time(),
        }
        with self._store.redis.pipeline(transaction=False) as pipe:
            pipe.rpush(key, json.dumps(entry))
            pipe.ltrim(key, -50, -1)
            pipe.expire(key, self._settings.result_ttl_s)
            pipe.execute()
