"""Batches in OpenAI's form: what is refused, and what the files of an ended batch hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from flask import Flask
from redis import Redis

from api.services import Services
from genmill import keys
from genmill.errors import GenerationFailed, StorageUnavailable
from genmill.registry import load_registry
from genmill.settings import Settings
from genmill.store import Outcome, Settlement, Store, Want
from scheduler.batch_round import BatchRound
from tests.api.conftest import Caller
from tests.api.pictures import picture
from tests.conftest import SettingsFactory

REGISTRY = load_registry()
CHAT, COMPLETIONS, IMAGES = "/v1/chat/completions", "/v1/completions", "/v1/images/generations"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "captions", "messages": [{"role": "user", "content": "a red"}], "max_tokens": 4},
    COMPLETIONS: {"model": "captions", "prompt": "a red", "logprobs": 0},
    IMAGES: {"model": "shapes", "prompt": "a red circle", "size": "64x64"},
}
WANTS = [Want(spec.batch_key, 8) for spec in REGISTRY.models]
TEXT = {"text": "circle", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 1}
Turn = Callable[[], float]


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(batch_window=2)


@pytest.fixture
def services(app: Flask) -> Services:
    found: Services = app.extensions["genmill"]
    return found


@pytest.fixture
def turn(services: Services, store: Store) -> Turn:
    """One turn of a scheduler's round."""
    return BatchRound(
        store, services.storage, services.registry, services.settings, leads=lambda: True, collect_every_s=0
    ).turn


def row(url: str, number: int = 0, /, **more: Any) -> dict[str, Any]:
    body = {**BODIES[url], **more.pop("body", {})}
    return {"custom_id": f"c{number}", "method": "POST", "url": url, "body": body, **more}


def upload(caller: Caller, rows: list[dict[str, Any]]) -> str:
    lines = "".join(json.dumps(one) + "\n" for one in rows).encode()
    form = {"file": (BytesIO(lines), "x.jsonl"), "purpose": "batch"}
    return str(caller("POST", "/v1/files", data=form).json["id"])


def create(caller: Caller, rows: list[dict[str, Any]], endpoint: str, **more: Any) -> Any:
    headers = more.pop("headers", None)
    body = {"input_file_id": upload(caller, rows), "endpoint": endpoint, "completion_window": "24h", **more}
    return caller("POST", "/v1/batches", json=body, headers=headers)


def work(store: Store, turn: Turn, results: Callable[[str], dict[str, Any]]) -> None:
    """Feeds, runs and collects until nothing is left to claim."""
    turn()
    while claims := store.claim("w1", ["p3"], WANTS).claims:
        store.settle([Settlement(one.job_id, one.fence, Outcome.FINISHED, results(one.job_id)) for one in claims])
        turn()
    turn()


def text_result(_job_id: str) -> dict[str, Any]:
    return {"text": {**TEXT, "tokens": [{"token": "circle", "logprob": -0.5, "top": []}]}, "outputs": []}


def file_of(caller: Caller, file_id: str) -> list[dict[str, Any]]:
    answer = caller("GET", f"/v1/files/{file_id}/content")
    assert answer.status_code == 200
    lines = [json.loads(line) for line in answer.data.splitlines()]
    return sorted(lines, key=lambda line: line["custom_id"])


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_texts(endpoint: str, alice: Caller, bob: Caller, store: Store, turn: Turn) -> None:
    made = create(alice, [row(endpoint, number) for number in range(3)], endpoint, metadata={"a": "b"})
    assert made.status_code == 202
    batch = made.json
    assert (batch["status"], batch["endpoint"], batch["metadata"]) == ("in_progress", endpoint, {"a": "b"})
    assert batch["expires_at"] == batch["created_at"] + 24 * 3600
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    work(store, turn, text_result)
    ended = alice("GET", f"/v1/batches/{batch['id']}").json
    assert (ended["status"], ended["error_file_id"]) == ("completed", None)
    assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert ended["completed_at"] >= ended["created_at"]
    lines = file_of(alice, ended["output_file_id"])
    assert [line["custom_id"] for line in lines] == ["c0", "c1", "c2"]
    (choice,) = lines[0]["response"]["body"]["choices"]
    assert (choice["message"]["content"] if endpoint == CHAT else choice["text"]) == "circle"
    assert choice["logprobs"] is not None
    assert (lines[0]["response"]["status_code"], lines[0]["error"]) == (200, None)
    facts = alice("GET", f"/v1/files/{ended['output_file_id']}").json
    assert (facts["purpose"], facts["bytes"]) == (
        "batch_output", len(alice("GET", f"/v1/files/{ended['output_file_id']}/content").data)
    )  # fmt: skip
    for path in ("", "/content"):
        assert bob("GET", f"/v1/files/{ended['output_file_id']}{path}").status_code == 404
        assert alice("GET", f"/v1/files/{batch['id']}-errors{path}").status_code == 404


def test_a_result_file_while_the_storage_is_away_is_503(
    alice: Caller, store: Store, turn: Turn, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = create(alice, [row(CHAT)], CHAT).json["id"]
    work(store, turn, text_result)

    def fail(_key: str) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(services.storage, "get", fail)
    for path in ("", "/content"):
        answer = alice("GET", f"/v1/files/{batch_id}-output{path}")
        assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "2")


def test_images_are_links(alice: Caller, store: Store, turn: Turn, services: Services) -> None:
    def draw(job_id: str) -> dict[str, Any]:
        services.storage.put(f"{job_id}/1/0.png", picture(), "image/png")
        return {"outputs": [{"key": f"{job_id}/1/0.png", "content_type": "image/png"}]}

    batch_id = create(alice, [row(IMAGES)], IMAGES).json["id"]
    work(store, turn, draw)
    (line,) = file_of(alice, alice("GET", f"/v1/batches/{batch_id}").json["output_file_id"])
    (image,) = line["response"]["body"]["data"]
    assert alice("GET", image["url"].split("8080")[1]).data == picture()


def test_failures_and_lines_that_never_ran_are_in_the_error_file(alice: Caller, store: Store, turn: Turn) -> None:
    batch_id = create(alice, [row(CHAT, number) for number in range(4)], CHAT).json["id"]
    turn()
    first, second = store.claim("w1", ["p3"], WANTS).claims
    store.settle([
        Settlement(first.job_id, first.fence, Outcome.FINISHED, text_result("")),
        Settlement(second.job_id, second.fence, Outcome.FAILED, error=GenerationFailed("it broke")),
    ])  # fmt: skip
    assert alice("POST", f"/v1/batches/{batch_id}/cancel").json["status"] == "cancelling"
    for _ in range(3):
        turn()
    ended = alice("GET", f"/v1/batches/{batch_id}").json
    assert (ended["status"], ended["request_counts"]) == ("cancelled", {"total": 4, "completed": 1, "failed": 3})
    assert ended["cancelled_at"] >= ended["cancelling_at"]
    assert [line["custom_id"] for line in file_of(alice, ended["output_file_id"])] == ["c0"]
    errors = {line["custom_id"]: line["error"]["code"] for line in file_of(alice, ended["error_file_id"])}
    assert errors == {"c1": "generation_failed", "c2": "batch_cancelled", "c3": "batch_cancelled"}


def test_what_an_expired_batch_did_not_run(alice: Caller, store: Store, turn: Turn, redis: Redis) -> None:
    batch_id = create(alice, [row(CHAT, number) for number in range(3)], CHAT).json["id"]
    turn()
    redis.hset(keys.batch(batch_id), "expires_ms", 1)  # its time has come
    for _ in range(4):
        turn()
    ended = alice("GET", f"/v1/batches/{batch_id}").json
    assert (ended["status"], ended["output_file_id"]) == ("expired", None)
    assert [line["error"]["code"] for line in file_of(alice, ended["error_file_id"])] == ["batch_expired"] * 3


BAD_LINES: dict[str, tuple[str, dict[str, Any], str]] = {
    "other endpoint": (CHAT, {"url": COMPLETIONS}, "/url"),
    "method": (CHAT, {"method": "GET"}, "/method"),
    "unknown member": (CHAT, {"priority": "p0"}, "/priority"),
    "empty custom_id": (CHAT, {"custom_id": ""}, "/custom_id"),
    "length": (CHAT, {"body": {"max_tokens": 9999}}, "/body/max_tokens"),
    "stream": (CHAT, {"body": {"stream": True}}, "/body/stream"),
    "tools": (CHAT, {"body": {"tools": [1]}}, "/body/tools"),
    "model": (CHAT, {"body": {"model": "shapes"}}, "/body/model"),
    "class": (COMPLETIONS, {"body": {"priority": "p9"}}, "/body/priority"),
    "top": (COMPLETIONS, {"body": {"logprobs": 21}}, "/body/logprobs"),
    "size": (IMAGES, {"body": {"size": "65x64"}}, "/body/size"),
    "bytes": (IMAGES, {"body": {"response_format": "b64_json"}}, "/body/response_format"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_and_nothing_is_kept(case: str, alice: Caller, redis: Redis) -> None:
    endpoint, more, pointer = BAD_LINES[case]
    answer = create(alice, [row(endpoint), row(endpoint, 1, **more)], endpoint)
    assert answer.status_code == 422, answer.text
    assert (answer.json["errors"][0]["line"], answer.json["errors"][0]["pointer"]) == (2, pointer)
    assert not redis.keys("gm:batch:*")


def test_bad_orders(alice: Caller, bob: Caller) -> None:
    file_id = upload(alice, [row(CHAT)])
    image = alice("POST", "/v1/files", data={"file": (BytesIO(picture()), "x.png")}).json["id"]
    good = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    for more, pointer in (
        ({"endpoint": "/v1/embeddings"}, "/endpoint"),
        ({"completion_window": "7d"}, "/completion_window"),
        ({"metadata": {"a": "x" * 513}}, "/metadata/a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "/output_expires_after"),
        ({"input_file_id": image}, "/input_file_id"),
    ):
        answer = alice("POST", "/v1/batches", json=good | more)
        assert (answer.status_code, answer.json["errors"][0]["pointer"]) == (422, pointer)
    assert bob("POST", "/v1/batches", json=good).status_code == 404
    assert alice("GET", "/v1/batches").json["data"] == []


def test_only_a_retry_finds_the_batch_of_its_first_try(alice: Caller) -> None:
    body = {"input_file_id": upload(alice, [row(CHAT)]), "endpoint": CHAT, "completion_window": "24h"}
    first, again = (alice("POST", "/v1/batches", json=body) for _ in range(2))
    retry = alice("POST", "/v1/batches", json=body, headers={"x-stainless-retry-count": "1"})
    assert (first.status_code, again.status_code, retry.status_code) == (202, 202, 200)
    assert retry.json["id"] == again.json["id"] != first.json["id"]


def test_a_retry_finds_no_batch_of_long_ago(alice: Caller, redis: Redis) -> None:
    body = {"input_file_id": upload(alice, [row(CHAT)]), "endpoint": CHAT, "completion_window": "24h"}
    first = alice("POST", "/v1/batches", json=body).json["id"]
    created_ms: Any = redis.hget(keys.batch(first), "created_ms")
    redis.hset(keys.batch(first), "created_ms", int(created_ms) - (keys.HELD_TTL_S + 1) * 1000)
    retries = [alice("POST", "/v1/batches", json=body, headers={"x-stainless-retry-count": "1"}) for _ in range(2)]
    assert [retry.status_code for retry in retries] == [202, 200]
    assert retries[0].json["id"] == retries[1].json["id"] != first
