"""`/v1/jobs/{id}/deliveries` and `/redeliver`, and the same of batches: what became of webhooks, one sent again."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.auth import authenticate
from api.lookup import own_job
from api.requests import has_body, idempotency_key, read_json
from api.services import services
from api.submission import body_hash
from genmill import keys
from genmill.errors import FieldFault, IdempotencyMismatch, InvalidRequest, NothingToDeliver
from genmill.registry import invalid_request
from genmill.store.callbacks import Delivery, Subject
from genmill.views import iso

blueprint = Blueprint("deliveries", __name__)


class RedeliverBody(BaseModel):
    """Body of the calls that send a webhook once more; it may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delivery_id: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_-]{1,200}$",
        description="Which delivery, by its id of the log; without it the latest one.",
    )  # fmt: skip


@blueprint.get("/v1/jobs/<job_id>/deliveries")
def read_job_deliveries(job_id: str) -> Response:
    record = own_job(job_id, authenticate())
    return _log(Subject(record.job_id, keys.job(record.job_id)))


@blueprint.post("/v1/jobs/<job_id>/redeliver")
def redeliver_job(job_id: str) -> Response:
    record = own_job(job_id, authenticate())
    return _redeliver(Subject(record.job_id, keys.job(record.job_id)), record.state.value)


@blueprint.get("/v1/batches/<batch_id>/deliveries")
def read_batch_deliveries(batch_id: str) -> Response:
    record = services().ledger.own(batch_id, authenticate())
    return _log(Subject(record.batch_id, keys.batch(record.batch_id)))


@blueprint.post("/v1/batches/<batch_id>/redeliver")
def redeliver_batch(batch_id: str) -> Response:
    record = services().ledger.own(batch_id, authenticate())
    return _redeliver(Subject(record.batch_id, keys.batch(record.batch_id)), record.state.value)


def _log(subject: Subject) -> Response:
    views = [_view(one) for one in services().store.callbacks.deliveries(subject)]
    return jsonify(object="list", data=views, results=views, has_more=False)


def _redeliver(subject: Subject, state: str) -> Response:
    """`state`: of the job or batch."""
    key, raw = idempotency_key(), read_json() if has_body() else {}
    found, book = services(), services().store.callbacks
    try:
        body = RedeliverBody.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    request_hash = body_hash({"redeliver": subject.id, **raw})
    done = book.redeliver(subject, body.delivery_id, key, request_hash, found.settings.idempotency_ttl_s)
    if done.verdict not in ("queued", "pending", "replayed"):
        raise _refusal(done.verdict, subject.id, state, body.delivery_id)
    response = jsonify({**_view(book.delivery(subject, done.delivery_id)), "redelivery": done.verdict})
    response.status_code = 202
    if done.verdict == "replayed":
        response.headers["Idempotency-Replayed"] = "true"
    return response


def _refusal(verdict: str, about: str, state: str, delivery_id: str | None) -> InvalidRequest:
    if verdict == "mismatch":
        return IdempotencyMismatch()
    if verdict == "none":
        detail = f"{about} was submitted without a webhook"
        return NothingToDeliver(detail, faults=(FieldFault("/webhook", detail, "a webhook", "none"),))
    if verdict == "early":
        detail = f"no webhook of {about} was due yet: it is {state}"
        return NothingToDeliver(detail, faults=(FieldFault("/state", detail, "after its webhook was due", state),))
    detail = f"{about} has no delivery of this id among its latest"
    return InvalidRequest(detail, faults=(FieldFault("/delivery_id", detail, "an id of its deliveries", delivery_id),))


def _view(delivery: Delivery) -> dict[str, Any]:
    attempts = [
        {"attempt": one.number, "status": one.status, "detail": one.detail, "at": iso(one.at * 1000)}
        for one in delivery.attempts
    ]
    return {
        "id": delivery.delivery_id,
        "object": "delivery",
        "event": delivery.event,
        "state": delivery.state.value,
        "attempts": attempts,
        "next_attempt_at": iso(delivery.next_at and delivery.next_at * 1000),
    }
