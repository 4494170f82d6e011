"""Streams of predictions: texts of many lines, and jobs that are begun again or are no more."""

from __future__ import annotations

import pytest
from redis import Redis
from replicate.stream import EventSource

from genmill import keys
from genmill.events import Delta
from genmill.registry import load_registry
from genmill.store import Outcome, Settlement, Store, Want
from tests.api.conftest import TEXT_JOB, Caller
from tests.api.streamed import Streamed

CAPTIONS = load_registry().get("captions").batch_key


def claimed(caller: Caller, store: Store) -> tuple[str, int]:
    job_id = caller("POST", "/v1/jobs", json={**TEXT_JOB, "stream": True}).json["id"]
    (taken,) = store.claim("w1", ["p1"], [Want(CAPTIONS, 1)]).claims
    return job_id, taken.fence


def finish(store: Store, job_id: str, fence: int, text: str) -> None:
    result = {"text": {"text": text, "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 3}}
    assert store.settle([Settlement(job_id, fence, Outcome.FINISHED, {**result, "outputs": []})]) == [True]


def stream(caller: Caller, job_id: str) -> Streamed:
    return Streamed(caller("GET", f"/v1/predictions/{job_id}/stream"))


def heard(told: str) -> list[tuple[str, str]]:
    """As the client's own decoder reads it, which splits lines as str.splitlines does."""
    decoder = EventSource.Decoder()
    events = [event for line in told.splitlines() if (event := decoder.decode(line)) is not None]
    return [(event.event.value, event.data) for event in events]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a\nred\n\n circle\n", "a\nred\n\n circle\n"),
        ("\r\n data: x\revent: done", "\n data: x\nevent: done"),
        ("a\u2028b\x85c\x0bd\x1ce", "a\nb\nc\nd\ne"),
    ],
    ids=["lines", "fields", "other line ends"],
)
def test_a_text_of_many_lines_stays_whole(text: str, read: str, alice: Caller, store: Store) -> None:
    job_id, fence = claimed(alice, store)
    finish(store, job_id, fence, text)
    assert heard(stream(alice, job_id).ended()) == [("output", read), ("done", "{}")]


def test_another_text_than_was_told_is_an_error(alice: Caller, store: Store) -> None:
    job_id, fence = claimed(alice, store)
    store.events.write([(job_id, Delta(fence, 0, "a blue"))], [])
    follower = stream(alice, job_id)
    follower.until("a blue")
    finish(store, job_id, fence, "a red circle")
    (_, (name, detail), done) = heard(follower.ended())
    assert (name, done) == ("error", ("done", '{"reason": "error"}'))
    assert "begun anew" in detail


def test_a_deleted_job_ends_its_stream(alice: Caller, store: Store, redis: Redis) -> None:
    job_id, _ = claimed(alice, store)
    follower = stream(alice, job_id)
    follower.until(": genmill")
    redis.delete(keys.job(job_id))
    assert [name for name, _ in heard(follower.ended())] == ["error", "done"]
