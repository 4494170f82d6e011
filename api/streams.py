"""Streams of server-sent events: how many there may be, and what happens to a job for one of them.

Each dialect writes the events in its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from flask import Response, request
from redis.exceptions import RedisError

from api import desk
from api.seats import Seats
from api.services import Services
from api.watching import Heard, Watch, hub_of
from genmill.errors import TooBusy, TooManyStreams
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
HELLO, STILL_HERE = ": genmill\n\n", ": still here\n\n"
"""Comments: the first sends the headers out before anything happens."""

_seats = Seats(MOST_STREAMS)


def stream_of(make: Callable[[], Generator[str]], tenant: str) -> Response:
    """The answer of these lines. Raises TooManyStreams before `make` is called, and what that raises."""
    match _seats.take(tenant):
        case "all":
            raise TooManyStreams(f"{_seats.most} event streams are open here; try again, or poll the job")
        case "tenant":
            most = _seats.most_of_tenant
            raise TooManyStreams(f"{most} event streams of this tenant are open here; try again, or poll the job")
    try:
        stream = _Stream(make(), tenant)
    except BaseException:
        _seats.give_back(tenant)
        raise
    _bound_sends()
    return Response(stream, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})


def followed(
    record: JobRecord, place: Place, found: Services, heartbeat_s: float | None = None
) -> Generator[JobEvent | None]:
    """What happens from `place` on, until the job has ended or is no more; None for each `heartbeat_s`
    (HEARTBEAT_S) without news."""
    narrator, is_ending = Narrator(place), False
    with hub_of(found.store).watching(Watch.of_events(record)) as watch:
        while True:
            heard = watch.take(RETRY_S if is_ending else heartbeat_s or HEARTBEAT_S)
            if heard is None and not is_ending:
                yield None
            elif heard is not None:
                is_ending = is_ending or heard.is_end
                yield from _news(heard, narrator)
            if is_ending:
                ending, is_ending = _ending(narrator, record.job_id, found)
                if ending is not None:
                    yield from ending
                    return


class _Stream:
    """The body of a stream. It keeps its seat until the server closes it, begun or not."""

    def __init__(self, lines: Generator[str], tenant: str) -> None:
        self._lines, self._tenant, self._is_closed = lines, tenant, False

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._lines.close()
            _seats.give_back(self._tenant)


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
    except (RedisError, TooBusy):
        return None, True
    if record is None:
        return [], False
    if not record.state.is_terminal:  # it was requeued
        return None, False
    return narrator.end(record.state, record.fence, job_view(record, found.links)), False


def _bound_sends() -> None:
    connection = request.environ.get("gunicorn.socket")
    if connection is not None:
        connection.settimeout(SEND_TIMEOUT_S)
