"""`/v1/predictions`: create, hold, read, list, cancel."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api import rate_limits
from api.auth import authenticate
from api.lookup import own_job, own_standing, page_of, standing_of, with_waiting
from api.renaming import renamed
from api.replicate.bodies import PredictionBody, manner_of, names_of, native_body, read_body
from api.replicate.names import check_version, model_of, model_of_version
from api.requests import idempotency_key, read_json, wait_s
from api.services import services
from api.submission import submit
from api.waiting import wait_for_job
from genmill.predictions import prediction_view
from genmill.registry import ModelSpec, invalid_request
from genmill.store import Standing

MARGIN_S = 0.25
"""An answer held for N seconds leaves that much earlier: the client reads for N + 0.5 s, and then gives up."""

PAGE = 100

blueprint = Blueprint("replicate_predictions", __name__)


class CursorQuery(BaseModel):
    """Query of `GET /v1/predictions`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cursor: Annotated[str, Field(min_length=1, max_length=64)] | None = None


@blueprint.post("/v1/predictions")
def create_prediction() -> Response:
    tenant = authenticate()
    body = read_body(read_json())
    with renamed({"/model": "/version"}):
        spec = model_of_version(body.version, services().registry)
    return _create(body, spec, tenant)


@blueprint.post("/v1/models/<owner>/<name>/predictions")
def create_prediction_of_model(owner: str, name: str) -> Response:  # noqa: ARG001 - any owner will do
    tenant = authenticate()
    spec = model_of(name, services().registry)
    body = read_body(read_json())
    if body.version is not None:
        check_version(body.version, spec)
    return _create(body, spec, tenant)


@blueprint.get("/v1/predictions/<prediction_id>")
def read_prediction(prediction_id: str) -> Response:
    return jsonify(_view(own_standing(prediction_id, authenticate())))


@blueprint.get("/v1/predictions")
def list_predictions() -> Response:
    tenant = authenticate()
    try:
        query = CursorQuery.model_validate(request.args.to_dict())
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    found, cursor = page_of(tenant, PAGE, query.cursor)
    following = f"{services().links.base_url}/v1/predictions?{urlencode({'cursor': cursor})}" if cursor else None
    views = [prediction_view(record, services().links, waiting=waiting) for record, waiting in with_waiting(found)]
    return jsonify(previous=None, next=following, results=views)


@blueprint.post("/v1/predictions/<prediction_id>/cancel")
def cancel_prediction(prediction_id: str) -> Response:
    tenant = authenticate()
    own_job(prediction_id, tenant)
    services().store.cancel(prediction_id)
    return jsonify(_view(own_standing(prediction_id, tenant)))


def _create(body: PredictionBody, spec: ModelSpec, tenant: str) -> Response:
    """201 with the prediction, at its end or after the seconds of `Prefer: wait`."""
    hold_s, key = wait_s(), idempotency_key()
    with renamed(names_of(body, spec)):
        stored = submit(native_body(body, spec), tenant, key, services(), manner_of(body))
    standing = wait_for_job(services().store, standing_of(stored), max(0.0, hold_s - MARGIN_S))
    rate_limits.note(standing.rate)
    response = jsonify(_view(standing, is_starting=True))
    response.status_code = 201
    response.headers["Location"] = services().links.prediction_url(stored.job_id)
    if hold_s:
        response.headers["Preference-Applied"] = f"wait={hold_s:g}"
    if stored.is_replay:
        response.headers["Idempotency-Replayed"] = "true"
    return response


def _view(standing: Standing, *, is_starting: bool = False) -> dict[str, Any]:
    return prediction_view(standing.record, services().links, waiting=standing.waiting, is_starting=is_starting)
