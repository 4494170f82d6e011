"""Jobs that use what others made, on a whole fleet with the models that ship: API, workers, scheduler."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from redis import Redis
from werkzeug.serving import make_server

from api.app import create_app
from genmill import keys
from genmill.client import Client
from genmill.jobs import JobState
from genmill.settings import Settings
from tests.fleet import Fleet, eventually, free_port

TEXT = {"prompt": "", "temperature": 0}
"""Of which a whole caption comes."""


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """Of an API in this process, over TCP."""
    port = free_port()
    served = settings.model_copy(update={"auth": False, "public_url": f"http://127.0.0.1:{port}"})
    server = make_server("127.0.0.1", port, create_app(served), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Client(f"http://127.0.0.1:{server.port}") as client:
        yield client
    server.shutdown()
    server.server_close()


def test_a_caption_becomes_a_picture_and_that_another_picture(fleet: Fleet, client: Client) -> None:
    caption = client.submit("captions", TEXT)
    asked = {"steps": 8, "seed": 7}
    picture = client.submit("shapes", {"prompt": caption.output(), **asked}, reproducible=True)
    given = {"prompt": caption.output(), "init_image": picture.output("outputs/0"), "strength": 0.5}
    variation = client.submit("shapes", {**given, **asked}, reproducible=True)
    assert [job.data["waiting_for"]["reason"] for job in (picture, variation)] == ["dependency"] * 2
    assert picture.data["depends_on"] == [caption.id]
    fleet.worker()
    for job in (caption, picture, variation):
        assert job.wait(90).state is JobState.SUCCEEDED, job.error
    assert caption.text == "a green cross on a purple background"
    ends = [job.data[when] for job in (caption, picture, variation) for when in ("started_at", "ended_at")]
    assert ends == sorted(ends)

    alone = client.submit("shapes", {"prompt": caption.text, **asked}, reproducible=True).wait(60)
    assert alone.download() == picture.download()
    (saved,) = picture.save(fleet.folder / "saved")
    again = {"prompt": caption.text, "init_image": saved, "strength": 0.5, **asked}
    assert client.submit("shapes", again, reproducible=True).wait(60).download() == variation.download()


def test_a_worker_that_dies_between_two_jobs_of_a_chain_loses_nothing(
    fleet: Fleet, client: Client, redis: Redis
) -> None:
    fleet.scheduler()
    caption = client.submit("captions", TEXT)
    picture = client.submit("shapes", {"prompt": caption.output(), "steps": 100})
    behind = client.submit("shapes", {"prompt": "a red circle", "steps": 2}, depends_on=picture)
    worker = fleet.worker(name="first")
    eventually(lambda: redis.hget(keys.job(caption.id), "status") == b"finished", within_s=60, every_s=0.001)
    worker.kill()
    assert behind.refresh().state is JobState.QUEUED
    assert behind.data["waiting_for"] == {"reason": "dependency", "jobs": [picture.id]}
    fleet.worker(name="second")
    for job in (picture, behind):
        assert job.wait(90).state is JobState.SUCCEEDED, job.error
    assert redis.xlen(keys.results(picture.id)) == redis.xlen(keys.results(behind.id)) == 1
    assert redis.exists(keys.PREFIXES["chained"]) == 0


def test_what_fails_takes_those_behind_it_along(fleet: Fleet, client: Client) -> None:
    caption = client.submit("captions", TEXT)
    picture = client.submit("shapes", {"prompt": caption.output()})
    behind = client.submit("shapes", {"prompt": "a red circle"}, depends_on=[picture])
    caption.cancel()
    for job in (picture, behind):
        assert job.refresh().state is JobState.CANCELED
    assert (picture.error or {})["message"].startswith(f"job:{caption.id} was canceled")
    assert (behind.error or {})["message"].endswith((picture.error or {})["message"])
