"""Events of jobs on a whole fleet: API, worker, and what is between them."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from redis import Redis
from werkzeug.serving import make_server

from api.app import create_app
from genmill.client import Client, JobHandle
from genmill.events import EventKind, JobEvent
from genmill.jobs import JobState
from genmill.settings import Settings
from tests.fleet import Fleet, eventually

PROMPT = "a red circle"


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """Of an API in this process, over TCP."""
    server = make_server("127.0.0.1", 0, create_app(settings.model_copy(update={"auth": False})), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Client(f"http://127.0.0.1:{server.port}") as client:
        yield client
    server.shutdown()
    server.server_close()


def text_of(events: list[JobEvent]) -> str:
    """As a client puts it together."""
    text, attempt = "", 0
    for event in events:
        if event.data["attempt"] != attempt:
            text, attempt = "", event.data["attempt"]
        if event.kind is EventKind.TOKEN:
            text = text[: event.data["offset"]] + event.data["text"]
    return text


def told(job: JobHandle) -> list[JobEvent]:
    return list(job.events())


def test_a_text_is_told_as_it_is_written(fleet: Fleet, client: Client) -> None:
    given = {"prompt": PROMPT, "max_tokens": 60, "seed": 4, "temperature": 1.5, "logprobs": True, "top_logprobs": 2}
    streamed, plain = (client.submit("captions", given, stream=stream) for stream in (True, False))
    heard: dict[str, list[JobEvent]] = {}
    followers = [
        threading.Thread(target=lambda job=job: heard.update({job.id: told(job)})) for job in (streamed, plain)
    ]
    for follower in followers:
        follower.start()
    fleet.worker("--burst")
    for follower in followers:
        follower.join(60)
    assert text_of(heard[streamed.id]) == text_of(heard[plain.id]) == streamed.text == plain.text
    states = [event.data["state"] for event in heard[streamed.id] if event.kind is EventKind.STATE]
    assert states == ["queued", "running", "succeeded"]
    tokens = {job.id: [e for e in heard[job.id] if e.kind is EventKind.TOKEN] for job in (streamed, plain)}
    assert len(tokens[plain.id]) == 1
    assert len(tokens[streamed.id]) > 1
    assert len(streamed.data["text"]["tokens"]) == streamed.data["text"]["completion_tokens"]
    assert all(len(token["top"]) == 2 for token in streamed.data["text"]["tokens"])


def test_a_picture_is_seen_before_it_is_finished(fleet: Fleet, client: Client) -> None:
    fleet.worker()
    first = client.submit("shapes", {"prompt": "a red circle on a blue background", "steps": 2})
    first.wait(60)  # the map is learnt from it
    job = client.submit("shapes", {"prompt": "a red circle on a blue background", "steps": 100}, preview=True)
    events = told(job)
    previews = [event for event in events if event.kind is EventKind.PREVIEW]
    assert previews
    assert [event.kind for event in events if event.kind in (EventKind.OUTPUT, EventKind.STATE)][-2:] == [
        EventKind.OUTPUT, EventKind.STATE
    ]  # fmt: skip
    latest = Image.open(io.BytesIO(client.fetch(f"/v1/jobs/{job.id}/preview")))
    assert (latest.format, max(latest.size)) == ("WEBP", 128)


def test_what_a_dead_worker_told_is_void(fleet: Fleet, client: Client, redis: Redis, tmp_path: Path) -> None:
    fleet.scheduler()
    job = client.submit("captions", {"prompt": PROMPT, "max_tokens": 60, "seed": 2, "temperature": 2.0}, stream=True)
    events: list[JobEvent] = []
    follower = threading.Thread(target=lambda: events.extend(job.events()))
    follower.start()
    worker = fleet.worker(name="first")
    eventually(lambda: redis.hget(f"rq:job:{job.id}", "status") == b"started", every_s=0.001)
    worker.kill()
    if redis.hget(f"rq:job:{job.id}", "status") != b"started":
        pytest.skip("the text was written before the worker could be killed")
    fleet.worker(name="second")
    follower.join(60)
    states = [(e.data["state"], e.data["attempt"]) for e in events if e.kind is EventKind.STATE]
    assert ("running", 2) in states
    assert states[-1] == (JobState.SUCCEEDED.value, 2)
    assert text_of(events) == job.text
