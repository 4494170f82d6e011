"""`/v1/predictions/{id}/stream`: output, logs and the end of a prediction as server-sent events."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, assert_never

from flask import Blueprint, Response

from api.auth import authenticate
from api.continuation import Continuation
from api.lookup import own_job
from api.services import Services, services
from api.streams import HELLO, STILL_HERE, followed, stream_of
from genmill.errors import GenmillError, JobDeleted, TextChanged
from genmill.events import EventKind, JobEvent, Place
from genmill.jobs import JobRecord, JobState, failure_of
from genmill.predictions import progress_line

LINE_ENDS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Where the client splits lines; a text that has any of them comes with line feeds."""

blueprint = Blueprint("replicate_streams", __name__)


@blueprint.get("/v1/predictions/<prediction_id>/stream")
def stream_prediction(prediction_id: str) -> Response:
    record, found = own_job(prediction_id, authenticate()), services()
    return stream_of(lambda: _told(record, found), record.tenant)


def _told(record: JobRecord, found: Services) -> Generator[str]:
    """From the beginning, whenever somebody comes, to an event `done`."""
    teller = _Teller()
    yield HELLO
    with closing(followed(record, Place(), found)) as events:
        for event in events:
            try:
                yield from [STILL_HERE] if event is None else teller.tell(event)
            except TextChanged as err:
                yield from teller.fail(err)
                return
            if event is not None and event.is_last:
                return
    yield from teller.fail(JobDeleted())


class _Teller:
    """Writes each event by the names that the client knows; any other name would end its stream."""

    def __init__(self) -> None:
        self._text, self._last_id = Continuation(), str(Place())

    def tell(self, event: JobEvent) -> Iterator[str]:
        self._last_id = event.id
        match event.kind:
            case EventKind.PROGRESS:
                yield self._event("logs", progress_line(event.data["step"], event.data["steps"]))
            case EventKind.TOKEN:
                if more := self._text.read(event):
                    yield self._event("output", more)
            case EventKind.OUTPUT if "url" in event.data:
                yield self._event("output", event.data["url"])
            case EventKind.OUTPUT:
                self._text.check_whole(event.data["text"]["text"])
            case EventKind.STATE if event.is_last:
                yield from self._end(JobState(event.data["state"]), event.data.get("error"))
            case EventKind.STATE | EventKind.PREVIEW:
                return
            case _:
                assert_never(event.kind)

    def fail(self, error: GenmillError) -> Iterator[str]:
        yield self._event("error", json.dumps({"detail": error.detail}))
        yield self._event("done", json.dumps({"reason": "error"}))

    def _end(self, state: JobState, error: dict[str, Any] | None) -> Iterator[str]:
        if state is JobState.SUCCEEDED:
            yield self._event("done", "{}")
        elif state is JobState.CANCELED:
            yield self._event("done", json.dumps({"reason": "canceled"}))
        else:
            yield from self.fail(failure_of(error))

    def _event(self, name: str, data: str) -> str:
        lines = "".join(f"data: {line}\n" for line in LINE_ENDS.split(data))
        return f"id: {self._last_id}\nevent: {name}\n{lines}\n"
