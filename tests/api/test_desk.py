"""Places at work: who waits for others has none, and who gets none is told to come again."""

from __future__ import annotations

import threading
from io import RawIOBase
from typing import Any

import pytest

from api import desk, input_images
from tests.api.conftest import IMAGE_JOB, Caller
from tests.api.pictures import picture


@pytest.fixture(autouse=True)
def _one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "_places", threading.BoundedSemaphore(1))
    monkeypatch.setattr(desk, "PATIENCE_S", 0.05)


def test_no_place_is_503_but_for_health(alice: Caller, stranger: Caller) -> None:
    with desk.at_work():
        refused = alice("POST", "/v1/jobs", json=IMAGE_JOB)
        assert (refused.status_code, refused.json["error"]["code"]) == (503, "too_busy")
        assert refused.headers["Retry-After"] == "2"
        assert [stranger("GET", path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    assert alice("POST", "/v1/jobs", json=IMAGE_JOB).status_code == 202
    assert desk._places.acquire(blocking=False), "all places are free again"


def test_a_slow_image_server_keeps_no_place(alice: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[int] = []

    def fetch(*_given: Any) -> bytes:
        others.append(alice("GET", "/v1/jobs").status_code)
        return picture()

    monkeypatch.setattr(input_images.net, "fetch", fetch)
    job = {**IMAGE_JOB, "input": {**IMAGE_JOB["input"], "init_image": "https://example.org/x.png"}}
    assert alice("POST", "/v1/jobs", json=job).status_code == 202
    assert others == [200]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/files"])
def test_a_slow_body_keeps_no_place(path: str, alice: Caller) -> None:
    others: list[int] = []

    class Slow(RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _room: Any) -> int:
            others.append(alice("GET", "/v1/jobs").status_code)
            return 0

    kind = "application/json" if path == "/v1/jobs" else "multipart/form-data; boundary=b"
    answer = alice("POST", path, content_type=kind, content_length=10, environ_overrides={"wsgi.input": Slow()})
    assert answer.status_code in (400, 422)
    assert 200 in others
