"""Following a job by its events, over as many connections as that takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Protocol

import httpx

from genmill.answers import pause_or_raise
from genmill.events import JobEvent, read_events


class EventSource(Protocol):
    """What is used of a client."""

    def open_events(self, job_id: str, last_id: str) -> AbstractContextManager[httpx.Response]: ...


def follow(client: EventSource, job_id: str) -> Iterator[JobEvent]:
    """Events to the job's end, each once. A connection that is lost is opened again behind the last event; what stays
    lost raises what the client's calls raise. The tries count anew with each event that comes."""
    last_id, failures = "", 0
    while True:
        trouble: httpx.Response | httpx.TransportError
        try:
            with client.open_events(job_id, last_id) as trouble:
                for event in _events_of(trouble):
                    last_id, failures = event.id, 0
                    yield event
                    if event.is_last:
                        return
                if trouble.status_code == HTTPStatus.NO_CONTENT:
                    return
        except httpx.TransportError as err:
            trouble = err
        failures += 1
        pause_or_raise(trouble, failures)


def _events_of(response: httpx.Response) -> Iterator[JobEvent]:
    """None of an answer that is no stream; its body is read then."""
    if response.status_code == HTTPStatus.OK:
        yield from read_events(response.iter_lines())
    else:
        response.read()
