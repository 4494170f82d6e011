"""Following a job over connections that break."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from genmill.answers import TRIES, ApiUnreachable
from genmill.client import Client
from genmill.errors import JobNotFound
from genmill.events import Delta, JobEvent, Narrator, Place, Snapshot
from genmill.jobs import JobState

BASE = "http://api.test"
VIEW = {"id": "j1", "state": "queued", "outputs": [], "error": None}


def a_life() -> list[JobEvent]:
    """Of a short text."""
    narrator = Narrator(Place())
    events = narrator.hear(Snapshot(JobState.QUEUED, 0)) + narrator.hear(Snapshot(JobState.RUNNING, 1))
    for offset, letter in enumerate("abcd"):
        events += narrator.read(Delta(1, offset, letter))
    return events + narrator.end(JobState.SUCCEEDED, 1, {"text": {"text": "abcde"}, "outputs": [], "error": None})


class Broken(httpx.SyncByteStream):
    """Some events and a comment, half an event, then nothing any more."""

    def __init__(self, events: list[JobEvent]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[bytes]:
        yield b": still here\n\n"
        for event in self._events:
            yield event.encode().encode()
        yield b"id: 9.running.9.9.9.9\nevent: state\n"
        raise httpx.ReadError("cut")


Connect = Callable[..., tuple[Client, list[str]]]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """A client of a server that answers each opening of the stream in turn; and the ids that it was given."""
    monkeypatch.setattr("genmill.answers.time.sleep", lambda _: None)

    def make(*answers: Callable[[], httpx.Response]) -> tuple[Client, list[str]]:
        given: list[str] = []
        left = list(answers)

        def handle(request: httpx.Request) -> httpx.Response:
            if not request.url.path.endswith("/events"):
                return httpx.Response(200, json={**VIEW, "state": "succeeded"} if given else VIEW)
            given.append(request.headers.get("last-event-id", ""))
            return (left.pop(0) if len(left) > 1 else left[0])()

        return Client(BASE, "gm_k", transport=httpx.MockTransport(handle)), given

    return make


def refuse() -> httpx.Response:
    raise httpx.ConnectError("refused")


def busy() -> httpx.Response:
    return httpx.Response(503, json={"error": {"message": "full", "code": "too_many_streams"}})


def test_a_broken_stream_goes_on_behind_its_last_event(connect: Connect) -> None:
    life = a_life()
    client, given = connect(
        lambda: httpx.Response(200, stream=Broken(life[:3])),
        refuse,
        busy,
        lambda: httpx.Response(200, stream=Broken(life[3:5])),
        lambda: httpx.Response(200, text="".join(event.encode() for event in life[5:])),
    )
    job = client.job("j1")
    assert list(job.events()) == life
    assert given == ["", life[2].id, life[2].id, life[2].id, life[4].id]
    assert job.state is JobState.SUCCEEDED


def test_what_had_all_been_heard_ends(connect: Connect) -> None:
    client, given = connect(lambda: httpx.Response(204))
    assert list(client.job("j1").events()) == []
    assert len(given) == 1


def test_a_job_that_is_gone_says_so(connect: Connect) -> None:
    gone = httpx.Response(404, json={"error": {"message": "There is no job", "code": "job_not_found"}})
    client, _ = connect(lambda: httpx.Response(200, text=a_life()[0].encode()), lambda: gone)
    events = client.job("j1").events()
    assert next(events) == a_life()[0]
    with pytest.raises(JobNotFound):
        next(events)


@pytest.mark.parametrize("answer", [refuse, lambda: httpx.Response(200, text=": genmill\n\n")])
def test_what_stays_away_is_given_up(answer: Callable[[], httpx.Response], connect: Connect) -> None:
    client, given = connect(answer)
    with pytest.raises(ApiUnreachable):
        list(client.job("j1").events())
    assert len(given) == TRIES
