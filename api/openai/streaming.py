"""Chunks of a text while it is written, for OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, assert_never

from flask import Response
from redis.exceptions import RedisError

from api import desk
from api.continuation import Continuation
from api.lookup import own_job
from api.openai.forms import Form, logprobs_of, usage_of
from api.openai.holding import job_of
from api.openai.retries import RENEW_S, Connection, HeldJobs
from api.problems import error_object
from api.services import Services, services
from api.streams import STILL_HERE, followed, stream_of
from api.submission import body_hash
from genmill.errors import GenmillError, JobDeleted, TextChanged, TooBusy
from genmill.events import EventKind, JobEvent, Place
from genmill.jobs import JobRecord, JobState, failure_of

DONE = "data: [DONE]\n\n"


def streamed_job(
    native: Mapping[str, Any], names: Mapping[str, str], tenant: str, form: Form, *, has_usage: bool
) -> Response:
    """The job of this body in chunks, to its end. `names` as for `renamed`, `has_usage` as for Chunks.

    Raises InvalidRequest, TooManyStreams (nothing is stored then). What fails later is told in the stream.
    """
    found = services()

    def begin() -> Generator[str]:
        held = HeldJobs(found.redis, tenant, body_hash(native))
        record = own_job(job_of(native, names, tenant, held), tenant)
        return _told(record, Chunks(record, form, has_usage=has_usage), held, Connection.of_request(), found)

    return stream_of(begin, tenant)


def _told(record: JobRecord, chunks: Chunks, held: HeldJobs, client: Connection, found: Services) -> Generator[str]:
    """A client that goes away leaves the job, which runs on, to its retry."""
    try:
        yield from chunks.begin()
        with closing(followed(record, Place(), found, RENEW_S)) as events:
            yield from _lines(_attended(events, record.job_id, held, client), chunks)
        with suppress(RedisError, TooBusy), desk.at_work():  # all is told; the list goes by itself
            held.remove(record.job_id)
    finally:
        with suppress(RedisError):
            held.leave(record.job_id)


def _attended(
    events: Iterator[JobEvent | None], job_id: str, held: HeldJobs, client: Connection
) -> Iterator[JobEvent | None]:
    """The same events; no retry gets the job while its client is seen to be there."""
    for event in events:
        with suppress(RedisError, TooBusy):
            if client.is_told and held.is_renewal_due():
                with desk.at_work():
                    held.renew(job_id)
        yield event


def _lines(events: Iterator[JobEvent | None], chunks: Chunks) -> Iterator[str]:
    for event in events:
        try:
            yield from [STILL_HERE] if event is None else chunks.tell(event)
        except TextChanged as err:
            yield from chunks.fail(err)
            return
        if event is not None and event.is_last:
            return
    yield from chunks.fail(JobDeleted())


class Chunks:
    """Writes a job's events. `has_usage`: a chunk with the usage and no choices comes last."""

    def __init__(self, record: JobRecord, form: Form, *, has_usage: bool) -> None:
        self._form, self._has_usage = form, has_usage
        self._text, self._result = Continuation(), dict[str, Any]()
        self._head = {
            "id": f"{form.prefix}-{record.job_id}",
            "object": form.chunk,
            "created": int(record.enqueued_ms / 1000),
            "model": record.model,
            "job_id": record.job_id,
            "seed": record.request["input"]["seed"],
        }

    def begin(self) -> Iterator[str]:
        yield self._choice(self._form.begin())

    def tell(self, event: JobEvent) -> Iterator[str]:
        """Raises TextChanged."""
        match event.kind:
            case EventKind.TOKEN:
                if more := self._text.read(event):
                    yield self._choice(self._form.more(more))
            case EventKind.OUTPUT:
                self._result = event.data["text"]
                self._text.check_whole(self._result["text"])
            case EventKind.STATE if event.is_last:
                yield from self._end(event)
            case EventKind.STATE | EventKind.PROGRESS | EventKind.PREVIEW:
                return
            case _:
                assert_never(event.kind)

    def fail(self, error: GenmillError) -> Iterator[str]:
        yield _line({"error": error_object(error.status, error.code, error.detail)})

    def _end(self, event: JobEvent) -> Iterator[str]:
        if event.data["state"] != JobState.SUCCEEDED:
            yield from self.fail(failure_of(event.data.get("error")))
            return
        result = self._result
        yield self._choice(self._form.more(""), result["finish_reason"], logprobs_of(result, self._form))
        if self._has_usage:
            yield _line({**self._head, "choices": [], "usage": usage_of(result)})
        yield DONE

    def _choice(
        self, said: dict[str, Any], finish_reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> str:
        choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": finish_reason}
        usage = {"usage": None} if self._has_usage else {}
        return _line({**self._head, "choices": [choice], **usage})


def _line(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
