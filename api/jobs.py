"""`/v1/jobs`: submit, read, list, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from werkzeug.exceptions import HTTPException

from api import rate_limits
from api.auth import Submitter, authenticate, note_submitter, recall_submitter
from api.lookup import own_job, own_standing, page_of, standing_of, with_waiting
from api.requests import idempotency_key, read_json, wait_s
from api.services import services
from api.submission import reads_nothing, submit
from api.waiting import wait_for_job
from genmill.errors import GenmillError, KeyChanged
from genmill.jobs import JobRecord, JobState
from genmill.registry import invalid_request
from genmill.store import Standing
from genmill.views import job_view

POLL_AFTER_S = 1

blueprint = Blueprint("jobs", __name__)


class ListQuery(BaseModel):
    """Query of `GET /v1/jobs`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: JobState | None = None
    model: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    after: str | None = None


@blueprint.post("/v1/jobs")
def submit_job() -> Response:
    """The tenant of a key that is known from before is believed until the store has held it against what stands there;
    what it would be refused says nothing to one whose key is no more."""
    submitter = recall_submitter()
    try:
        return _submitted(submitter)
    except (GenmillError, HTTPException) as err:
        if submitter.guard is None:
            raise
        tenant = authenticate()
        if not isinstance(err, KeyChanged):
            raise
    return _submitted(Submitter(tenant, None))


def _submitted(submitter: Submitter) -> Response:
    hold_s, key, raw = wait_s(), idempotency_key(), read_json()
    tenant, guard = submitter
    if guard is not None and not reads_nothing(raw):
        tenant, guard = authenticate(), None
    stored = submit(raw, tenant, key, services(), guard=guard)
    note_submitter(tenant)
    standing = wait_for_job(services().store, standing_of(stored), hold_s)
    rate_limits.note(standing.rate)
    response = _answer(standing, hold_s)
    response.headers["Location"] = services().links.job_url(stored.job_id)
    if stored.is_replay:
        response.headers["Idempotency-Replayed"] = "true"
    return response


@blueprint.get("/v1/jobs/<job_id>")
def read_job(job_id: str) -> Response:
    hold_s = wait_s()
    standing = wait_for_job(services().store, own_standing(job_id, authenticate()), hold_s)
    response = _answer(standing, hold_s)
    response.status_code = 200
    return response


@blueprint.get("/v1/jobs")
def list_jobs() -> Response:
    tenant = authenticate()
    try:
        query = ListQuery.model_validate(request.args.to_dict())
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    found, cursor = page_of(tenant, query.limit, query.after, lambda record: _matches(record, query))
    views = [job_view(record, services().links, waiting=waiting) for record, waiting in with_waiting(found)]
    after = {"after": cursor} if cursor else {}
    return jsonify(object="list", data=views, results=views, has_more=cursor is not None, **after)


@blueprint.post("/v1/jobs/<job_id>/cancel")
def cancel_job(job_id: str) -> Response:
    tenant = authenticate()
    own_job(job_id, tenant)
    done = services().store.cancel(job_id)
    return jsonify({**_view(own_standing(job_id, tenant)), "cancel": done})


def _view(standing: Standing) -> dict[str, Any]:
    return job_view(standing.record, services().links, waiting=standing.waiting)


def _answer(standing: Standing, hold_s: float) -> Response:
    """200 when the job has ended, else 202 with the time to ask again."""
    response = jsonify(_view(standing))
    if hold_s:
        response.headers["Preference-Applied"] = f"wait={hold_s:g}"
    if not standing.record.state.is_terminal:
        response.status_code = 202
        response.headers["Retry-After"] = str(POLL_AFTER_S)
    return response


def _matches(record: JobRecord, query: ListQuery) -> bool:
    return query.state in (None, record.state) and query.model in (None, record.model)
