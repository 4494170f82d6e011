"""The command line against an API of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from genmill.answers import OnPause
from genmill.cli import options
from genmill.cli.app import main
from genmill.client import Client

JOB_ID = "01jq"
PROMPT = "a red circle on a blue background"


def view(state: str = "succeeded", **changes: Any) -> dict[str, Any]:
    """A job as the API shows it."""
    return {
        "id": JOB_ID,
        "state": state,
        "model": "shapes",
        "priority": "p1",
        "timings": {"queued_s": 0.1, "run_s": 1.25, "total_s": 1.35, "gpu_ms": 900.0},
        "progress": None,
        "position": None,
        "input": {"prompt": PROMPT, "steps": 20},
        "outputs": [{"url": f"http://api.test/v1/outputs/{JOB_ID}/1/0.png", "content_type": "image/png"}],
        "receipt": {"seed": 7, "batch_mean": 3.5, "batch_max": 8, "forwards": 20},
        "error": None,
        "metadata": {},
    } | changes


class Api:
    """Answers by method and path; keeps what was sent."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Any] = {}
        self.sent: list[tuple[str, str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.sent.append((request.method, request.url.path, body))
        answer = self.answers[(request.method, request.url.path)]
        if isinstance(answer, bytes):
            return httpx.Response(200, content=answer)
        if isinstance(answer, tuple):
            status, shown, *headers = answer
            return httpx.Response(status, json=shown, headers=headers[0] if headers else None)
        return httpx.Response(200, json=answer)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    api = Api()

    def connect(url: str | None, api_key: str | None, *, on_pause: OnPause) -> Client:
        return Client(url, api_key, transport=httpx.MockTransport(api), on_pause=on_pause)

    monkeypatch.setattr(options, "Client", connect)
    monkeypatch.setenv("GENMILL_URL", "http://api.test")
    return api


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit code, stdout, stderr) of a command."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(list(arguments))
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return call
