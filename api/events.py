"""`/v1/jobs/{id}/events` and `/preview`: what happens to a job while it runs."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from threading import BoundedSemaphore

from flask import Blueprint, Response, request
from redis.exceptions import RedisError

from api import desk
from api.auth import authenticate
from api.lookup import own_job
from api.services import Services, services
from api.watching import Heard, Watch, hub_of
from genmill.errors import PreviewNotFound, TooManyStreams
from genmill.events import JobEvent, Narrator, Place
from genmill.jobs import JobRecord
from genmill.views import job_view

MOST_STREAMS = 512
"""Each holds a thread, which is all that it costs; whoever comes later gets 503 with Retry-After."""
HEARTBEAT_S = 15.0
"""A comment that often while nothing happens: proxies keep the connection, and a client that has gone is noticed."""
RETRY_S = 1.0
SEND_TIMEOUT_S = 60.0
"""A client that reads nothing for so long is let go."""

_seats = BoundedSemaphore(MOST_STREAMS)

blueprint = Blueprint("events", __name__)


@blueprint.get("/v1/jobs/<job_id>/events")
def follow_job(job_id: str) -> Response:
    record = own_job(job_id, authenticate())
    place = Place.read(request.headers.get("Last-Event-ID", ""))
    if place.is_end and record.state.is_terminal:
        return Response(status=204)  # which tells an EventSource not to come again
    _bound_sends()
    if not _seats.acquire(blocking=False):
        raise TooManyStreams(f"{MOST_STREAMS} event streams are open here; try again, or poll the job")
    stream = _Stream(_told(record, place, services()))
    return Response(stream, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})


@blueprint.get("/v1/jobs/<job_id>/preview")
def read_preview(job_id: str) -> Response:
    record = own_job(job_id, authenticate())
    preview = services().store.events.preview(record.job_id)
    if preview is None:
        why = "none yet, or no more" if record.has_preview else "it was submitted without preview: true"
        raise PreviewNotFound(f"job {record.job_id} has no preview: {why}")
    headers = {"X-Attempt": str(preview.attempt), "X-Step": str(preview.step)}
    return Response(preview.image, mimetype="image/webp", headers=headers)


class _Stream:
    """The body of a stream. It keeps its seat until the server closes it, begun or not."""

    def __init__(self, lines: Generator[str]) -> None:
        self._lines, self._is_closed = lines, False

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._lines.close()
            _seats.release()


def _told(record: JobRecord, place: Place, found: Services) -> Generator[str]:
    """Server-sent events from `place` on, until the job has ended."""
    narrator, is_ending = Narrator(place), False
    yield ": genmill\n\n"  # the headers go out before anything happens
    with hub_of(found.store).watching(Watch.of_events(record)) as watch:
        while True:
            heard = watch.take(RETRY_S if is_ending else HEARTBEAT_S)
            if heard is None and not is_ending:
                yield ": still here\n\n"
            elif heard is not None:
                is_ending = is_ending or heard.is_end
                yield from _encoded(_news(heard, narrator))
            if is_ending:
                ending, is_ending = _ending(narrator, record.job_id, found)
                if ending is not None:
                    yield from _encoded(ending)
                    return


def _news(heard: Heard, narrator: Narrator) -> Iterator[JobEvent]:
    """An attempt's state goes before its text."""
    if heard.snapshot is not None:
        yield from narrator.hear(heard.snapshot)
    for delta in heard.deltas:
        yield from narrator.read(delta)


def _ending(narrator: Narrator, job_id: str, found: Services) -> tuple[list[JobEvent] | None, bool]:
    """The last events; None where there are none to tell yet, and whether to ask again."""
    try:
        with desk.at_work():
            record = found.store.get(job_id)
    except RedisError:
        return None, True
    if record is None:
        return [], False
    if not record.state.is_terminal:  # it was requeued
        return None, False
    return narrator.end(record.state, record.fence, job_view(record, found.links)), False


def _encoded(events: Iterable[JobEvent]) -> Iterator[str]:
    return (event.encode() for event in events)


def _bound_sends() -> None:
    connection = request.environ.get("gunicorn.socket")
    if connection is not None:
        connection.settimeout(SEND_TIMEOUT_S)
