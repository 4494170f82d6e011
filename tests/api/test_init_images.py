"""Init images by data URI, URL and file: stored with the job, gone without it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from PIL import Image
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from api.app import create_app
from api.services import Services
from genmill import api_keys
from genmill.settings import Settings
from genmill.store import Store, Stored
from tests.api.conftest import Caller
from tests.api.pictures import data_uri, picture
from tests.conftest import SettingsFactory


def image_to_image(init_image: str) -> dict[str, Any]:
    return {"model": "shapes", "input": {"prompt": "a red circle", "init_image": init_image, "strength": 0.5}}


def stored_image(job_id: str, app: Flask, store: Store) -> Image.Image:
    """The image that a worker will find."""
    record = store.get(job_id)
    assert record is not None
    key = record.request["input"]["init_image"]
    assert key == f"inputs/{job_id}/init.png"
    services: Services = app.extensions["genmill"]
    stored = services.storage.get(key)
    assert stored.content_type == "image/png"
    return Image.open(BytesIO(stored.body))


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGB"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("PNG", "P"), ("PNG", "L")]
)
def test_data_uri(kind: str, mode: str, alice: Caller, app: Flask, store: Store) -> None:
    colour = "white" if mode != "RGB" else "red"
    answer = alice("POST", "/v1/jobs", json=image_to_image(data_uri(picture(kind=kind, mode=mode, colour=colour))))
    assert answer.status_code == 202, answer.text
    assert answer.json["input"]["init_image"] == "stored"
    kept = stored_image(answer.json["id"], app, store)
    assert (kept.size, kept.mode) == ((64, 64), "RGB")


@pytest.mark.parametrize("field", ["content", "file"])
def test_uploaded_file(field: str, alice: Caller, app: Flask, store: Store) -> None:
    uploaded = alice("POST", "/v1/files", data={field: (BytesIO(picture()), "a.png")}).json
    for reference in (f"file:{uploaded['id']}", uploaded["urls"]["get"]):
        answer = alice("POST", "/v1/jobs", json=image_to_image(reference))
        assert answer.status_code == 202, answer.text
        assert stored_image(answer.json["id"], app, store).getpixel((0, 0)) == (255, 0, 0)


def test_other_tenants_file_is_not_there(alice: Caller, bob: Caller, stored: Callable[[], set[str]]) -> None:
    uploaded = alice("POST", "/v1/files", data={"content": (BytesIO(picture()), "a.png")}).json
    before = stored()
    for reference in (f"file:{uploaded['id']}", uploaded["urls"]["get"]):
        answer = bob("POST", "/v1/jobs", json=image_to_image(reference))
        assert answer.status_code == 422
        assert answer.json["errors"][0]["detail"] == "there is no such file"
    assert bob("GET", f"/v1/files/{uploaded['id']}/content").status_code == 404
    assert stored() == before


@pytest.fixture
def image_server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = picture() if self.path == "/good.png" else b"\0" * 300_000
            self.send_response(302 if self.path == "/moved" else 200)
            if self.path == "/moved":
                self.send_header("location", "/good.png")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_url_is_fetched_at_submit(
    image_server: str, make_settings: SettingsFactory, redis: Redis, store: Store
) -> None:
    app = create_app(make_settings(allow_private_urls=True, max_image_bytes=200_000))
    alice = Caller(app.test_client(), api_keys.create(redis, "alice", "test"))
    answer = alice("POST", "/v1/jobs", json=image_to_image(f"{image_server}/good.png"))
    assert answer.status_code == 202, answer.text
    assert stored_image(answer.json["id"], app, store).size == (64, 64)
    for path, words in (("moved", "302"), ("large", "larger than 200000 bytes")):
        refused = alice("POST", "/v1/jobs", json=image_to_image(f"{image_server}/{path}"))
        assert refused.status_code == 422
        assert words in refused.json["errors"][0]["detail"]


def test_the_image_is_brought_to_the_jobs_size(alice: Caller, app: Flask, store: Store) -> None:
    body = image_to_image(data_uri(picture((500, 300))))
    body["input"] |= {"width": 96, "height": 72}
    answer = alice("POST", "/v1/jobs", json=body)
    assert stored_image(answer.json["id"], app, store).size == (96, 72)


def test_replay_and_mismatch_leave_no_second_image(alice: Caller, stored: Callable[[], set[str]]) -> None:
    body = image_to_image(data_uri(picture()))
    first = alice("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    before = stored()
    assert sum("/inputs/" in name for name in before) == 1
    again = alice("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert again.json["id"] == first.json["id"]
    other = image_to_image(data_uri(picture(colour="blue")))
    assert alice("POST", "/v1/jobs", json=other, headers={"Idempotency-Key": "k"}).status_code == 422
    assert stored() == before


def test_image_is_removed_when_the_submit_fails(
    alice: Caller, stored: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RedisConnectionError("gone")

    monkeypatch.setattr(Store, "submit_told", fail)
    before = stored()
    answer = alice("POST", "/v1/jobs", json=image_to_image(data_uri(picture())))
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "2"
    assert stored() == before


def test_a_lost_answer_keeps_job_and_image(
    alice: Caller, app: Flask, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, calls = Store.submit_told, []

    def lose_first_answer(self: Store, request: Any, guard: Any = None) -> Stored:
        reply = submit(self, request, guard)
        calls.append(reply)
        if len(calls) == 1:
            raise RedisConnectionError("gone")
        return reply

    monkeypatch.setattr(Store, "submit_told", lose_first_answer)
    answer = alice("POST", "/v1/jobs", json=image_to_image(data_uri(picture())))
    assert answer.status_code == 202
    assert len(calls) == 2
    assert stored_image(answer.json["id"], app, store).size == (64, 64)


def test_storage_down_is_503(alice: Caller, settings: Settings, redis: Redis) -> None:
    root = Path(settings.storage_url.removeprefix("file://"))
    root.parent.mkdir(exist_ok=True)
    root.write_text("a file where the folder should be")
    answer = alice("POST", "/v1/jobs", json=image_to_image(data_uri(picture())))
    assert answer.status_code == 503
    assert answer.json["error"]["code"] == "storage_unavailable"
    assert redis.keys("rq:job:*") == []
    assert alice("GET", "/readyz").status_code == 503
    assert alice("GET", "/healthz").status_code == 200
