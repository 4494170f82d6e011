"""`/v1/jobs/{id}/events` and `/preview`: what happens to a job while it runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from flask import Blueprint, Response, request

from api.auth import authenticate
from api.lookup import own_job
from api.services import Services, services
from api.streams import HELLO, STILL_HERE, followed, stream_of
from genmill.errors import PreviewNotFound
from genmill.events import Place
from genmill.jobs import JobRecord

blueprint = Blueprint("events", __name__)


@blueprint.get("/v1/jobs/<job_id>/events")
def follow_job(job_id: str) -> Response:
    record = own_job(job_id, authenticate())
    place = Place.read(request.headers.get("Last-Event-ID", ""))
    if place.is_end and record.state.is_terminal:
        return Response(status=204)  # which tells an EventSource not to come again
    found = services()
    return stream_of(lambda: _told(record, place, found), record.tenant)


@blueprint.get("/v1/jobs/<job_id>/preview")
def read_preview(job_id: str) -> Response:
    record = own_job(job_id, authenticate())
    preview = services().store.events.preview(record.job_id)
    if preview is None:
        why = "none yet, or no more" if record.has_preview else "it was submitted without preview: true"
        raise PreviewNotFound(f"job {record.job_id} has no preview: {why}")
    headers = {"X-Attempt": str(preview.attempt), "X-Step": str(preview.step)}
    return Response(preview.image, mimetype="image/webp", headers=headers)


def _told(record: JobRecord, place: Place, found: Services) -> Generator[str]:
    """Server-sent events from `place` on, until the job has ended."""
    yield HELLO
    with closing(followed(record, place, found)) as events:
        for event in events:
            yield STILL_HERE if event is None else event.encode()
