"""The client against a transport of the test's own: retries, keys, errors."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmill.client import ApiError, ApiUnreachable, Client
from genmill.errors import (
    GenmillError,
    IdempotencyMismatch,
    InvalidRequest,
    JobNotFound,
    StoreUnavailable,
    Unauthorized,
    UnknownModel,
)
from genmill.jobs import JobState

BASE = "http://api.test"


def view(**changes: Any) -> dict[str, Any]:
    return {"id": "j1", "state": "queued", "outputs": [], "error": None} | changes


class Server:
    """Answers in order, repeating the last; keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


Connect = Callable[..., tuple[Client, Server]]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    def make(*answers: httpx.Response | Exception, api_key: str | None = "gm_k") -> tuple[Client, Server]:
        server = Server(*answers)
        return Client(BASE, api_key, transport=httpx.MockTransport(server)), server

    return make


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    return taken


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    body = {"status": status, "detail": "why", "errors": [{"pointer": "/x", "detail": "why", "limit": "1"}],
            "error": {"message": "why", "type": "t", "param": None, "code": code}}  # fmt: skip
    return httpx.Response(
        status, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def test_submit_sends_key_and_idempotency_key(connect: Connect) -> None:
    client, server = connect(httpx.Response(202, json=view()))
    job = client.submit(
        "shapes", {"prompt": "a"}, webhook="https://x", ttl_s=5, deadline_s=7.5, best_effort=True, reproducible=True,
        metadata={"a": 1},
    )  # fmt: skip
    assert (job.id, job.state, job.is_done) == ("j1", JobState.QUEUED, False)
    (request,) = server.seen
    assert json.loads(request.content) == {
        "model": "shapes", "input": {"prompt": "a"}, "webhook": "https://x",
        "ttl_s": 5, "deadline_s": 7.5, "best_effort": True, "reproducible": True,
        "metadata": {"a": 1},
    }  # fmt: skip
    assert request.headers["authorization"] == "Bearer gm_k"
    assert len(request.headers["idempotency-key"]) == 34


def test_retries_repeat_the_same_key(connect: Connect, pauses: list[float]) -> None:
    answers = (httpx.ConnectError("no"), httpx.ReadTimeout("slow"), problem(503, "store_unavailable", retry_after="3"))
    client, server = connect(*answers, httpx.Response(202, json=view()))
    assert client.submit("shapes", {"prompt": "a"}).id == "j1"
    assert len(server.seen) == 4
    assert len({request.headers["idempotency-key"] for request in server.seen}) == 1
    assert len({request.content for request in server.seen}) == 1
    assert len(pauses) == 3
    assert pauses[2] == 3.0


def test_given_idempotency_key(connect: Connect) -> None:
    client, server = connect(httpx.Response(202, json=view()))
    client.submit("shapes", {"prompt": "a"}, idempotency_key="mine")
    assert server.seen[0].headers["idempotency-key"] == '"mine"'


@pytest.mark.parametrize(
    ("status", "code", "kind", "tries"),
    [
        (422, "invalid_request", InvalidRequest, 1),
        (422, "unknown_model", UnknownModel, 1),
        (422, "idempotency_mismatch", IdempotencyMismatch, 1),
        (422, "new_code", InvalidRequest, 1),
        (401, "unauthorized", Unauthorized, 1),
        (404, "job_not_found", JobNotFound, 1),
        (500, "internal_error", GenmillError, 1),
        (500, "new_code", ApiError, 1),
        (503, "store_unavailable", StoreUnavailable, 6),
        (429, "too_many", InvalidRequest, 6),
    ],
)
def test_errors_are_typed(
    status: int, code: str, kind: type[GenmillError], tries: int, connect: Connect, pauses: list[float]
) -> None:
    client, server = connect(problem(status, code))
    with pytest.raises(kind) as caught:
        client.status()
    assert type(caught.value) is kind
    assert caught.value.detail == "why"
    assert caught.value.faults[0].limit == "1"
    assert len(server.seen) == tries


def test_an_answer_that_is_no_problem(connect: Connect) -> None:
    client, _ = connect(httpx.Response(500, text="<html>"))
    with pytest.raises(ApiError, match="HTTP 500"):
        client.status()


def test_nobody_answers(connect: Connect, pauses: list[float]) -> None:
    client, server = connect(httpx.ConnectError("refused"))
    with pytest.raises(ApiUnreachable, match=r"api\.test"):
        client.models()
    assert len(server.seen) == 6
    assert sum(pauses) < 15


def test_wait_polls_until_the_end(connect: Connect, pauses: list[float]) -> None:
    running, done = view(state="running"), view(state="succeeded", text={"text": "circle"})
    client, server = connect(*(httpx.Response(200, json=answer) for answer in (view(), running, done)))
    job = client.job("j1").wait(30)
    assert (job.state, job.text) == (JobState.SUCCEEDED, "circle")
    assert 0 < float(server.seen[1].url.params["wait"]) <= 30
    assert len(server.seen) == 3
    job.wait()
    assert len(server.seen) == 3


def test_wait_gives_up(connect: Connect) -> None:
    client, _ = connect(httpx.Response(200, json=view()))
    with pytest.raises(TimeoutError, match="still queued"):
        client.job("j1").wait(0.05)


def test_download_and_save_send_no_key(connect: Connect, tmp_path: Path) -> None:
    output = {"url": f"{BASE}/v1/outputs/a?signature=s", "content_type": "image/png"}
    client, server = connect(httpx.Response(200, json=view(outputs=[output])), httpx.Response(200, content=b"png"))
    (path,) = client.job("j1").save(tmp_path / "out")
    assert path.name == "j1-0.png"
    assert path.read_bytes() == b"png"
    assert "authorization" not in server.seen[1].headers


def test_an_expired_link_is_renewed_once(connect: Connect) -> None:
    def job(signature: str) -> httpx.Response:
        return httpx.Response(200, json=view(outputs=[{"url": f"{BASE}/v1/outputs/a?signature={signature}"}]))

    client, server = connect(job("old"), problem(410, "output_expired"), job("new"), httpx.Response(200, content=b"x"))
    assert client.job("j1").download() == [b"x"]
    assert server.seen[-1].url.params["signature"] == "new"


@pytest.mark.parametrize("as_text", [True, False])
def test_init_image_of_a_path_goes_along(as_text: bool, connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"png")
    client, server = connect(httpx.Response(202, json=view()))
    given = {"prompt": "a", "init_image": str(path) if as_text else path}
    client.submit("shapes", given)
    sent = json.loads(server.seen[0].content)["input"]["init_image"]
    assert sent == "data:image/png;base64," + base64.b64encode(b"png").decode()
    assert given["init_image"] in (path, str(path))


@pytest.mark.parametrize(
    "reference", ["https://x/a.png", "http://x/a.png", "data:image/png;base64,AA==", "file:file_1"]
)
def test_init_image_references_stay(reference: str, connect: Connect) -> None:
    client, server = connect(httpx.Response(202, json=view()))
    client.submit("shapes", {"prompt": "a", "init_image": reference})
    assert json.loads(server.seen[0].content)["input"]["init_image"] == reference


def test_masks_and_images_of_controls_go_along_too(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"png")
    uri = "data:image/png;base64," + base64.b64encode(b"png").decode()
    client, server = connect(httpx.Response(202, json=view()), httpx.Response(202, json=view()))
    client.submit("shapes", {"prompt": "a", "init_image": "file:file_1", "mask_image": path})
    client.submit("shapes", {"prompt": "a", "control": {"name": "canny", "image": str(path)}})
    sent = [json.loads(request.content)["input"] for request in server.seen]
    assert sent[0] == {"prompt": "a", "init_image": "file:file_1", "mask_image": uri}
    assert sent[1]["control"] == {"name": "canny", "image": uri}


def test_jobs_wait_for_others_and_use_what_those_make(connect: Connect) -> None:
    client, server = connect(httpx.Response(202, json=view()))
    text, other = client.submit("captions", {"prompt": "a"}), client.submit("shapes", {"prompt": "b"})
    given = {"prompt": text.output(), "init_image": other.output("outputs/0")}
    client.submit("shapes", given, depends_on=["j0", text])
    client.submit("shapes", {"prompt": "c"}, depends_on=text)
    client.submit("shapes", {"prompt": "c"}, depends_on="j0")
    bodies = [json.loads(request.content) for request in server.seen]
    assert bodies[2]["input"] == {
        "prompt": {"from": "job:j1", "path": "text"}, "init_image": {"from": "job:j1", "path": "outputs/0"},
    }  # fmt: skip
    assert [body.get("depends_on") for body in bodies] == [None, None, ["j0", "j1"], ["j1"], ["j0"]]


def test_lines_of_a_batch_take_their_images_along_and_are_sent_again_whole(
    connect: Connect, tmp_path: Path, pauses: list[float]
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"png")
    view_of_batch = {"id": "batch_a", "status": "in_progress", "counts": {"total": 2}}
    client, server = connect(httpx.ReadTimeout("slow"), httpx.Response(202, json=view_of_batch))
    lines = ({"custom_id": name, "model": "shapes", "input": {"prompt": "a", "init_image": path}} for name in "ab")
    batch = client.batches.create(lines, priority="p2", webhook="https://x/h")
    assert (batch.id, batch.state.value, batch.counts) == ("batch_a", "in_progress", {"total": 2})
    first, second = server.seen
    assert first.content == second.content
    sent = [json.loads(line) for line in second.content.splitlines()]
    assert [line["custom_id"] for line in sent] == ["a", "b"]
    assert sent[0]["input"]["init_image"] == "data:image/png;base64," + base64.b64encode(b"png").decode()
    assert dict(second.url.params) == {"priority": "p2"}
    assert second.headers["genmill-webhook"] == "https://x/h", "a query would stand in logs"
    with pytest.raises(InvalidRequest, match="webhook must be a URL"):
        client.batches.create([], webhook="https://x/h\r\nx-other: 1")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_of_lines_is_sent_as_it_is(
    kind: Callable[[Path], str | Path], connect: Connect, tmp_path: Path
) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"custom_id": "a", "model": "shapes", "input": {"prompt": "a"}}\n')
    client, server = connect(httpx.Response(202, json={"id": "batch_a", "status": "in_progress", "counts": {}}))
    assert client.batches.create(kind(path)).id == "batch_a"
    assert server.seen[0].content == path.read_bytes()


def test_a_batch_is_waited_for_and_its_results_are_followed(connect: Connect, pauses: list[float]) -> None:
    def batch(status: str) -> httpx.Response:
        return httpx.Response(200, json={"id": "batch_a", "status": status, "counts": {}})

    def rows(*numbers: int) -> httpx.Response:
        return httpx.Response(200, content="".join(json.dumps({"seq": number}) + "\n" for number in numbers))

    client, server = connect(
        batch("in_progress"), rows(1, 2), rows(), batch("finalizing"), rows(3), rows(), batch("expired"), rows(4),
        rows(),
    )  # fmt: skip
    handle = client.batches.get("batch_a")
    assert [row["seq"] for row in handle.results(follow=True)] == [1, 2, 3, 4]
    assert handle.state.value == "expired"
    afters = [request.url.params["after"] for request in server.seen if request.url.path.endswith("/results")]
    assert afters == ["0", "2", "2", "3", "3", "4"]
    client, _ = connect(batch("in_progress"), batch("in_progress"))
    with pytest.raises(TimeoutError, match="still in_progress"):
        client.batches.get("batch_a").wait(0)


def test_a_redelivery_has_a_key_of_its_own(connect: Connect, pauses: list[float]) -> None:
    client, server = connect(
        httpx.Response(200, json=view(state="succeeded")), problem(503, "store_unavailable"),
        httpx.Response(202, json={"id": "cb_1", "redelivery": "queued"}),
    )  # fmt: skip
    assert client.job("j1").redeliver("cb_1")["redelivery"] == "queued"
    posts = server.seen[1:]
    assert [json.loads(request.content) for request in posts] == [{"delivery_id": "cb_1"}] * 2
    assert len({request.headers["idempotency-key"] for request in posts}) == 1


def test_jobs_follow_the_pages(connect: Connect) -> None:
    first = {"data": [view(id="a"), view(id="b")], "has_more": True, "after": "b"}
    second = {"data": [view(id="c")], "has_more": False}
    client, server = connect(httpx.Response(200, json=first), httpx.Response(200, json=second))
    assert [job.id for job in client.jobs(state="queued", limit=10)] == ["a", "b", "c"]
    assert dict(server.seen[1].url.params) == {"state": "queued", "after": "b", "limit": "8"}


def test_address_and_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENMILL_URL", "http://elsewhere:1/")
    monkeypatch.setenv("GENMILL_API_KEY", "gm_env")
    server = Server(httpx.Response(200, json={}))
    Client(transport=httpx.MockTransport(server)).status()
    assert str(server.seen[0].url) == "http://elsewhere:1/v1/status"
    assert server.seen[0].headers["authorization"] == "Bearer gm_env"
