"""Which requests keep the promise of an Idempotency-Key. Whoever sends one elsewhere is told, rather than let believe
that a second request does nothing."""

from __future__ import annotations

from flask import Flask, request

from api.requests import idempotency_key
from genmill.errors import FieldFault, InvalidRequest

HONOURED = frozenset({
    "jobs.submit_job", "deliveries.redeliver_job", "deliveries.redeliver_batch",
    "replicate_predictions.create_prediction",
    "replicate_predictions.create_prediction_of_model", "openai_images.generate_images", "openai_images.edit_image",
    "openai_texts.complete_chat", "openai_texts.complete_prompt",
})  # fmt: skip
"""Endpoints that make jobs, or send a webhook once more."""


def install(app: Flask) -> None:
    app.before_request(_check)


def _check() -> None:
    """Raises InvalidRequest. A cancellation is the same however often it is sent."""
    if request.method != "POST" or request.url_rule is None or request.endpoint in HONOURED:
        return
    if request.url_rule.rule.endswith("/cancel"):
        return
    key = idempotency_key()
    if key is not None:
        detail = f"Idempotency-Key is not kept by POST {request.url_rule.rule}: leave it out"
        raise InvalidRequest(detail, faults=(FieldFault("/Idempotency-Key", detail, "no key", key[:80]),))
