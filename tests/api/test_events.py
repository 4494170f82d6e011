"""The stream of a job's events, its preview, and how many may watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from api import desk, streams
from api.seats import Seats
from genmill import keys
from genmill.events import Delta, EventKind, JobEvent, Preview, read_events
from genmill.registry import load_registry
from genmill.store import Outcome, Settlement, Store, Want
from tests.api.conftest import IMAGE_JOB, TEXT_JOB, Caller, finish_one
from tests.fleet import eventually

CAPTIONS = load_registry().get("captions").batch_key
SHAPES = load_registry().get("shapes").batch_key
STREAMED = {**TEXT_JOB, "stream": True}
TEXT = {"text": "a red circle", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 1}


class Follower:
    """Reads a job's events in a thread, as they come."""

    def __init__(self, caller: Caller, job_id: str, last_id: str = "") -> None:
        self.events: list[JobEvent] = []
        self.comments = 0
        self._answer = caller("GET", f"/v1/jobs/{job_id}/events", {"last-event-id": last_id} if last_id else {})
        self.status = self._answer.status_code
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]

    def until(self, kind: EventKind, count: int = 1) -> None:
        eventually(lambda: self.kinds().count(kind) >= count, every_s=0.005)

    def ended(self) -> list[JobEvent]:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.events

    def _read(self) -> None:
        for event in read_events(self._lines()):
            self.events.append(event)
        self._answer.close()

    def _lines(self) -> Iterator[str]:
        for chunk in self._answer.iter_encoded():
            for line in chunk.decode().splitlines():
                self.comments += line.startswith(": still")
                yield line


Follow = Callable[..., Follower]


@pytest.fixture
def follow(alice: Caller) -> Follow:
    return lambda job_id, last_id="": Follower(alice, job_id, last_id)


def submit(caller: Caller, job: dict[str, Any]) -> str:
    return str(caller("POST", "/v1/jobs", json=job).json["id"])


def claim(store: Store, batch_key: str) -> int:
    (taken,) = store.claim("w1", ["p1"], [Want(batch_key, 1)]).claims
    return taken.fence


def states(heard: list[JobEvent]) -> list[tuple[str, int]]:
    return [(event.data["state"], event.data["attempt"]) for event in heard if event.kind is EventKind.STATE]


def text(heard: list[JobEvent]) -> str:
    return "".join(event.data["text"] for event in heard if event.kind is EventKind.TOKEN)


def test_a_queued_job_is_followed_to_its_end(alice: Caller, store: Store, follow: Follow) -> None:
    job_id = submit(alice, STREAMED)
    follower = follow(job_id)
    follower.until(EventKind.STATE)
    fence = claim(store, CAPTIONS)
    store.events.write([(job_id, Delta(fence, 0, "a red"))], [])
    follower.until(EventKind.TOKEN)
    store.events.note_progress([(job_id, fence, 2, 16)])
    follower.until(EventKind.PROGRESS)
    store.events.write([(job_id, Delta(fence, 5, " circ"))], [])
    store.settle([Settlement(job_id, fence, Outcome.FINISHED, {"text": TEXT, "outputs": []})])
    heard = follower.ended()
    assert states(heard) == [("queued", 0), ("running", 1), ("succeeded", 1)]
    assert text(heard) == "a red circle"
    output = next(event for event in heard if event.kind is EventKind.OUTPUT)
    assert output.data["text"]["text"] == "a red circle"
    assert heard[-1].is_last


def test_a_lost_connection_goes_on_behind_the_last_event(alice: Caller, store: Store, follow: Follow) -> None:
    job_id = submit(alice, STREAMED)
    fence = claim(store, CAPTIONS)
    store.events.write([(job_id, Delta(fence, 0, "a ")), (job_id, Delta(fence, 2, "red"))], [])
    first = follow(job_id)
    first.until(EventKind.TOKEN, 2)
    for number, event in enumerate(first.events[:3]):
        again = follow(job_id, event.id)
        again.until(EventKind.TOKEN, 0 if number == 2 else 2 - number)
        assert again.events[: 2 - number] == first.events[number + 1 : 3]
    store.events.write([(job_id, Delta(fence, 5, " circle"))], [])
    finish = [Settlement(job_id, fence, Outcome.FINISHED, {"text": TEXT, "outputs": []})]
    assert store.settle(finish) == [True]
    assert text(first.ended()) == "a red circle"
    assert follow(job_id, first.events[2].id).ended() != []
    assert follow(job_id, first.events[-1].id).status == 204


def test_a_job_that_has_ended_tells_its_text_outputs_and_end(alice: Caller, store: Store, follow: Follow) -> None:
    job_id = submit(alice, TEXT_JOB)
    finish_one(store, CAPTIONS, {"text": TEXT, "outputs": []})
    heard = follow(job_id).ended()
    assert [event.kind.value for event in heard] == ["token", "output", "state"]
    picture = submit(alice, IMAGE_JOB)
    finish_one(store, SHAPES, {"outputs": [{"key": f"{picture}/1/0.png", "content_type": "image/png"}]})
    output, end = follow(picture).ended()
    assert output.data["url"].split("?")[0].endswith(f"/v1/outputs/{picture}/1/0.png")
    assert (end.data["state"], end.data["error"]) == ("succeeded", None)


def test_another_attempt_is_told(alice: Caller, store: Store, follow: Follow, redis: Redis) -> None:
    job_id = submit(alice, STREAMED)
    first = claim(store, CAPTIONS)
    store.events.write([(job_id, Delta(first, 0, "a blue"))], [])
    follower = follow(job_id)
    follower.until(EventKind.TOKEN)
    redis.zadd(keys.run_scope("global"), {job_id: 1})  # its worker is dead
    store.reap()
    follower.until(EventKind.STATE, 2)
    second = claim(store, CAPTIONS)
    store.events.write([(job_id, Delta(first, 6, " late")), (job_id, Delta(second, 0, "a red"))], [])
    follower.until(EventKind.TOKEN, 2)
    store.settle([Settlement(job_id, second, Outcome.FINISHED, {"text": TEXT, "outputs": []})])
    heard = follower.ended()
    assert states(heard) == [("running", 1), ("queued", 1), ("running", 2), ("succeeded", 2)]
    assert text([event for event in heard if event.data["attempt"] == 2]) == "a red circle"
    assert "late" not in text(heard)


def test_a_canceled_job_ends_its_stream(alice: Caller, follow: Follow) -> None:
    job_id = submit(alice, IMAGE_JOB)
    follower = follow(job_id)
    follower.until(EventKind.STATE)
    alice("POST", f"/v1/jobs/{job_id}/cancel")
    assert states(follower.ended())[-1] == ("canceled", 0)


def test_a_deleted_job_ends_its_stream(alice: Caller, follow: Follow, redis: Redis) -> None:
    job_id = submit(alice, IMAGE_JOB)
    follower = follow(job_id)
    follower.until(EventKind.STATE)
    redis.delete(keys.job(job_id))
    assert [event.data["state"] for event in follower.ended()] == ["queued"]


def test_previews_are_told_and_served(alice: Caller, bob: Caller, store: Store, follow: Follow) -> None:
    job_id = submit(alice, {**IMAGE_JOB, "preview": True})
    view = alice("GET", f"/v1/jobs/{job_id}").json
    assert view["urls"]["preview"] == view["urls"]["get"] + "/preview"
    none_yet = alice("GET", f"/v1/jobs/{job_id}/preview")
    assert (none_yet.status_code, none_yet.json["error"]["code"]) == (404, "preview_not_found")
    fence = claim(store, SHAPES)
    follower = follow(job_id)
    follower.until(EventKind.STATE)
    store.events.write([], [(job_id, Preview(fence, 3, b"webp"))])
    follower.until(EventKind.PREVIEW)
    store.events.write([], [(job_id, Preview(fence, 7, b"webp2"))])
    follower.until(EventKind.PREVIEW, 2)
    assert [event.data["step"] for event in follower.events if event.kind is EventKind.PREVIEW] == [3, 7]
    answer = alice("GET", f"/v1/jobs/{job_id}/preview")
    assert (answer.data, answer.mimetype, answer.headers["X-Step"]) == (b"webp2", "image/webp", "7")
    assert bob("GET", f"/v1/jobs/{job_id}/preview").status_code == 404
    assert bob("GET", f"/v1/jobs/{job_id}/events").status_code == 404
    alice("POST", f"/v1/jobs/{job_id}/cancel")
    store.settle([Settlement(job_id, fence, Outcome.CANCELED)])
    assert states(follower.ended())[-1][0] == "canceled"


def test_a_preview_of_a_text_is_refused(alice: Caller) -> None:
    answer = alice("POST", "/v1/jobs", json={**TEXT_JOB, "preview": True})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == "/preview"
    without = submit(alice, IMAGE_JOB)
    assert "without preview" in alice("GET", f"/v1/jobs/{without}/preview").json["detail"]


def test_a_bad_last_event_id_is_refused(alice: Caller) -> None:
    job_id = submit(alice, TEXT_JOB)
    answer = alice("GET", f"/v1/jobs/{job_id}/events", {"last-event-id": "7"})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == "/Last-Event-ID"


def test_a_quiet_stream_says_that_it_is_there(alice: Caller, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    job_id = submit(alice, TEXT_JOB)
    follower = follow(job_id)
    eventually(lambda: follower.comments >= 3)
    alice("POST", f"/v1/jobs/{job_id}/cancel")
    assert follower.ended(), "the end comes after all the silence"


def test_too_many_streams_are_refused_and_give_their_seats_back(
    alice: Caller, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_seats", Seats(1))
    job_id = submit(alice, TEXT_JOB)
    alice("HEAD", f"/v1/jobs/{job_id}/events").close()
    follower = follow(job_id)
    assert follower.status == 200
    refused = alice("GET", f"/v1/jobs/{job_id}/events")
    assert (refused.status_code, refused.json["error"]["code"]) == (503, "too_many_streams")
    assert refused.headers["Retry-After"] == "2"
    alice("POST", f"/v1/jobs/{job_id}/cancel")
    follower.ended()
    assert len(follow(job_id).ended()) == 1


def test_who_waits_leaves_the_desk(
    alice: Caller, follow: Follow, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_places", threading.BoundedSemaphore(1))
    job_id = submit(alice, TEXT_JOB)
    follower = follow(job_id)
    held: list[Any] = []
    poll = threading.Thread(target=lambda: held.append(alice("GET", f"/v1/jobs/{job_id}?wait=20")))
    poll.start()
    follower.until(EventKind.STATE)
    assert alice("GET", "/healthz").status_code == 200
    alice("POST", f"/v1/jobs/{job_id}/cancel")
    poll.join(5)
    assert held[0].json["state"] == "canceled"
    follower.ended()
