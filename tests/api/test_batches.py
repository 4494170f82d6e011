"""Batches over HTTP: lines in, results out, nothing for strangers."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from flask import Flask
from redis import Redis

from api.app import create_app
from api.batch_lines import CUSTOM_ID
from api.seats import Seats
from api.services import Services
from genmill import tenants
from genmill.batches import LineParts
from genmill.errors import StorageUnavailable
from genmill.keys import JobClass
from genmill.settings import Settings
from genmill.store import Outcome, Settlement, Store, Want
from scheduler.batch_round import BatchRound
from tests.api.conftest import Caller
from tests.api.pictures import data_uri, picture
from tests.conftest import SettingsFactory

NDJSON = {"content-type": "application/x-ndjson"}


def lines(count: int, **more: Any) -> bytes:
    rows = ({"custom_id": f"c{n}", "model": "captions", "input": {"prompt": "a red"}, **more} for n in range(count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(max_image_bytes=200_000, max_image_pixels=512 * 512, max_body_bytes=20_000, batch_window=50)


@pytest.fixture
def services(app: Flask) -> Services:
    found: Services = app.extensions["genmill"]
    return found


@pytest.fixture
def turn(services: Services, store: Store) -> Callable[[], float]:
    """One turn of a scheduler's round."""
    return BatchRound(
        store, services.storage, services.registry, services.settings, leads=lambda: True, collect_every_s=0
    ).turn


def post(caller: Caller, body: Any, query: str = "") -> Any:
    return caller("POST", f"/v1/batches{query}", data=body, headers=NDJSON)


def results(caller: Caller, batch_id: str, query: str = "") -> list[dict[str, Any]]:
    answer = caller("GET", f"/v1/batches/{batch_id}/results{query}")
    assert (answer.status_code, answer.mimetype) == (200, "application/x-ndjson")
    return [json.loads(row) for row in answer.data.splitlines()]


def test_a_batch_from_its_lines_to_its_results(
    alice: Caller, turn: Callable[[], float], work: Callable[..., list[str]]
) -> None:
    answer = post(alice, lines(5), "?priority=p2&expires_in_s=600")
    assert answer.status_code == 202
    batch = answer.json
    assert answer.headers["Location"] == batch["urls"]["get"]
    assert (batch["status"], batch["counts"]["total"], batch["counts"]["waiting"]) == ("in_progress", 5, 5)
    turn()
    running = work(most=2, is_settled=False)
    assert alice("GET", f"/v1/batches/{batch['id']}").json["counts"]["running"] == 2
    assert alice("GET", f"/v1/jobs/{running[0]}").json["metadata"]["batch_id"] == batch["id"]
    assert alice("GET", f"/v1/jobs/{running[0]}").json["priority"] == "p2"
    work(fails=frozenset({"c4"}))
    turn()

    some = results(alice, batch["id"])
    assert {row["custom_id"]: row["state"] for row in some} == {"c2": "succeeded", "c3": "succeeded", "c4": "failed"}
    assert results(alice, batch["id"], "?after=1&limit=1") == [some[1]]
    assert results(alice, batch["id"], "?after=3") == []
    assert alice("GET", f"/v1/batches/{batch['id']}").json["counts"] == {
        "total": 5, "waiting": 0, "running": 2, "succeeded": 2, "failed": 1, "canceled": 0, "skipped": 0,
    }  # fmt: skip


def test_the_same_body_again_is_the_same_batch(alice: Caller, redis: Redis) -> None:
    first = post(alice, lines(3))
    again = post(alice, lines(3))
    assert (again.status_code, again.json["id"]) == (200, first.json["id"])
    assert again.headers["Idempotency-Replayed"] == "true"
    assert post(alice, lines(3), "?rerun=true").json["id"] != first.json["id"]


def test_batches_of_others_are_not_there(alice: Caller, bob: Caller) -> None:
    batch_id = post(alice, lines(2)).json["id"]
    for method, path in [("GET", ""), ("GET", "/results"), ("POST", "/cancel")]:
        answer = bob(method, f"/v1/batches/{batch_id}{path}")
        assert (answer.status_code, answer.json["error"]["code"]) == (404, "batch_not_found")
    assert bob("POST", "/v1/batches", json={"resume_of": batch_id}).status_code == 404
    assert bob("GET", "/v1/batches").json["data"] == []
    file_id = alice("POST", "/v1/files", data={"file": (BytesIO(lines(2)), "x"), "purpose": "batch"}).json["id"]
    assert bob("POST", "/v1/batches", json={"file_id": file_id}).status_code == 404


def test_lists_come_in_pages(alice: Caller) -> None:
    made = [post(alice, lines(count)).json["id"] for count in (1, 2, 3)]
    page = alice("GET", "/v1/batches?limit=2").json
    assert page["has_more"]
    rest = alice("GET", f"/v1/batches?limit=2&after={page['after']}").json
    assert not rest["has_more"]
    assert sorted(batch["id"] for batch in page["data"] + rest["data"]) == sorted(made)


def test_lines_from_a_file(alice: Caller, services: Services) -> None:
    upload = alice("POST", "/v1/files", data={"file": (BytesIO(lines(4)), "x.jsonl"), "purpose": "batch"})
    assert (upload.status_code, upload.json["purpose"]) == (201, "batch")
    answer = alice("POST", "/v1/batches", json={"file_id": upload.json["id"], "metadata": {"for": "you"}})
    assert (answer.status_code, answer.json["counts"]["total"]) == (202, 4)
    assert answer.json["metadata"] == {"for": "you"}


def test_lines_from_the_storage(alice: Caller, bob: Caller, services: Services, settings: Settings) -> None:
    services.storage.put("imports/alice/big.jsonl", lines(4), "application/x-ndjson")
    services.storage.put("files/alice/x", lines(4), "application/x-ndjson")
    uri = f"{settings.storage_url}/imports/alice/big.jsonl"
    assert alice("POST", "/v1/batches", json={"uri": uri}).json["counts"]["total"] == 4
    assert bob("POST", "/v1/batches", json={"uri": uri}).status_code == 404
    for bad in ("files/alice/x", "imports/alice/../bob/x", "imports/alice/none.jsonl", "../etc/passwd"):
        answer = alice("POST", "/v1/batches", json={"uri": f"{settings.storage_url}/{bad}"})
        assert answer.status_code == 404, bad
    assert alice("POST", "/v1/batches", json={"uri": "file:///etc/passwd"}).status_code == 404


def test_a_body_larger_than_any_other_may_be(alice: Caller, settings: Settings) -> None:
    body = lines(500)
    assert len(body) > settings.max_body_bytes
    assert post(alice, body).json["counts"]["total"] == 500


@pytest.mark.parametrize(
    ("line", "pointer", "limit", "value"),
    [
        ({"model": "captions", "input": {"prompt": "x"}}, "/custom_id", None, None),
        ({"custom_id": ""}, "/custom_id", "1 character", "''"),
        ({"custom_id": "a\nb"}, "/custom_id", CUSTOM_ID, "'a\\nb'"),
        ({"custom_id": "c", "model": "none"}, "/model", "shapes, captions", "none"),
        ({"custom_id": "c", "input": {"prompt": "x", "max_tokens": 9999}}, "/input/max_tokens", "1..64", "9999"),
        ({"custom_id": "c", "priority": "p9"}, "/priority", None, "'p9'"),
        ({"custom_id": "c", "url": "/v1/x"}, "/url", None, "'/v1/x'"),
        ({"custom_id": "c", "webhook": "ftp://x"}, "/webhook", None, None),
        (
            {"custom_id": "c", "model": "shapes", "input": {"prompt": "x", "init_image": "https://a.test/x.png"}},
            "/input/init_image", "data: or file:", "https://a.test/x.png",
        ),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_and_nothing_is_stored(
    line: dict[str, Any], pointer: str, limit: str | None, value: str | None, alice: Caller,
    stored: Callable[[], set[str]],
) -> None:  # fmt: skip
    base = {"model": "captions", "input": {"prompt": "a red"}} if "custom_id" in line else {}
    before = stored()
    answer = post(alice, lines(2) + json.dumps({**base, **line}).encode())
    assert answer.status_code == 422
    assert answer.json["error"]["code"] == "batch_invalid"
    (fault,) = answer.json["errors"]
    assert (fault["line"], fault["pointer"]) == (3, pointer)
    if limit is not None:
        assert fault["limit"] == limit
    if value is not None:
        assert fault["value"] == value
    assert stored() == before


@pytest.mark.parametrize(
    ("options", "status", "pointer"),
    [
        ({"json": {}}, 422, "/file_id"),
        ({"json": {"file_id": "x", "uri": "y"}}, 422, "/file_id"),
        ({"json": {"file_id": "x"}}, 404, None),
        ({"json": {"resume_of": "batch_x"}}, 404, None),
        ({"json": {"file_id": "x", "expires_in_s": 1}}, 422, "/expires_in_s"),
        ({"json": {"file_id": "x", "window": 1}}, 422, "/window"),
        ({"json": []}, 400, "/"),
        ({"data": b"x", "headers": {"content-type": "text/plain"}}, 415, "/"),
        ({"data": b"", "headers": NDJSON}, 422, "/"),
    ],
)
def test_bad_orders(options: dict[str, Any], status: int, pointer: str | None, alice: Caller) -> None:
    answer = alice("POST", "/v1/batches", **options)
    assert answer.status_code == status
    assert pointer is None or answer.json["errors"][0]["pointer"] == pointer


def test_only_so_many_bodies_are_read_at_once(alice: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    seats = Seats(8)
    monkeypatch.setattr("api.batches._seats", seats)
    for others, words in (("alice", "2 batches of this tenant are read"), (None, "8 batches are read")):
        taken = [others or f"t{number}" for number in range(2 if others else 8)]
        assert [seats.take(one) for one in taken] == [None] * len(taken)
        answer = post(alice, lines(1))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
        assert words in answer.json["detail"]
        for one in taken:
            seats.give_back(one)
    assert post(alice, b"bad").status_code == 422
    assert post(alice, lines(1)).status_code == 202


@pytest.mark.parametrize("query", ["?after=-1", "?after=x", "?limit=0", "?seq=1"])
def test_bad_queries_of_results(query: str, alice: Caller) -> None:
    batch_id = post(alice, lines(1)).json["id"]
    answer = alice("GET", f"/v1/batches/{batch_id}/results{query}")
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == "/" + query[1:].split("=", maxsplit=1)[0]
    assert post(alice, lines(1), "?expires_in_s=1").status_code == 422


def test_init_images_go_with_the_batch(
    alice: Caller, services: Services, stored: Callable[[], set[str]], turn: Callable[[], float], store: Store
) -> None:
    row = {"custom_id": "i", "model": "shapes", "input": {"prompt": "x", "init_image": data_uri(picture())}}
    before = stored()
    assert post(alice, json.dumps(row).encode() + b"\nbad").status_code == 422
    assert stored() == before
    batch_id = post(alice, json.dumps(row).encode()).json["id"]
    (line,) = LineParts(services.storage).all(batch_id)
    assert services.storage.get(line.input["init_image"]).body.startswith(b"\x89PNG")
    turn()
    record = store.get(f"{batch_id}-1")
    assert record is not None
    assert record.request["input"]["init_image"] == f"batches/{batch_id}/inputs/1-init.png"


def test_outputs_are_signed_when_they_are_read(alice: Caller, turn: Callable[[], float], store: Store) -> None:
    batch_id = post(alice, lines(1)).json["id"]
    turn()
    (claim,) = store.claim("w", ["p3"], [Want("captions@1/auto", 1)]).claims
    output = {"key": "x/1/0.png", "content_type": "image/png", "bytes": 3}
    store.settle([Settlement(claim.job_id, claim.fence, Outcome.FINISHED, result={"outputs": [output]})])
    turn()
    (row,) = results(alice, batch_id)
    assert "/v1/outputs/x/1/0.png?expires=" in row["outputs"][0]["url"]
    assert "key" not in row["outputs"][0]


def test_a_body_over_the_limit_is_refused_with_it(
    make_settings: SettingsFactory, redis: Redis, stored: Callable[[], set[str]]
) -> None:
    client = create_app(make_settings(auth=False, batch_max_bytes=1_000)).test_client()
    before = stored()
    for body in (lines(100), lines(13) + b"\n" * 75):
        answer = client.post("/v1/batches", data=body, headers=NDJSON)
        assert answer.status_code == 413
        assert answer.get_json()["errors"][0]["limit"] == "1000 bytes"
    assert stored() == before


def test_a_class_that_is_not_open_is_named_with_its_line(
    alice: Caller, redis: Redis, turn: Callable[[], float]
) -> None:
    open_one = post(alice, lines(1)).json["id"]
    tenants.change(redis, "alice", tenants.TenantFacts(classes=(JobClass.P1,)))
    (fault,) = post(alice, lines(1, priority="p1") + lines(2, priority="p2").splitlines()[1]).json["errors"]
    assert (fault["line"], fault["pointer"], fault["limit"], fault["value"]) == (2, "/priority", "p1", "p2")
    turn()  # and one that was open when the batch was taken costs its lines
    turn()
    assert [row["error"]["code"] for row in results(alice, open_one)] == ["class_not_allowed"]


def test_a_line_streams_and_draws_previews_as_a_job(alice: Caller, turn: Callable[[], float], store: Store) -> None:
    picture_line = {"custom_id": "p", "model": "shapes", "input": {"prompt": "x"}, "preview": True}
    batch_id = post(alice, lines(1, stream=True) + json.dumps(picture_line).encode()).json["id"]
    turn()
    text, image = store.get(f"{batch_id}-1"), store.get(f"{batch_id}-2")
    assert text is not None
    assert image is not None
    assert (text.request["stream"], image.request["preview"]) == (True, True)
    (fault,) = post(alice, lines(1, preview=True)).json["errors"]
    assert (fault["line"], fault["pointer"], fault["limit"], fault["value"]) == (1, "/preview", "image models", "true")


def test_metadata_is_bounded_as_that_of_jobs(alice: Caller) -> None:
    upload = alice("POST", "/v1/files", data={"file": (BytesIO(lines(1)), "x.jsonl"), "purpose": "batch"})
    answer = alice("POST", "/v1/batches", json={"file_id": upload.json["id"], "metadata": {"a": "x" * 5_000}})
    assert answer.status_code == 422
    (fault,) = answer.json["errors"]
    assert fault["pointer"] == "/metadata"
    assert "at most 4096 bytes" in fault["detail"]


def test_results_while_the_storage_is_away_are_503(
    alice: Caller, turn: Callable[[], float], work: Callable[..., list[str]], services: Services,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    batch_id = post(alice, lines(2)).json["id"]
    turn()
    work()
    turn()

    def fail(_key: str) -> None:
        raise StorageUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(services.storage, "get", fail)
        answer = alice("GET", f"/v1/batches/{batch_id}/results")
        assert (answer.status_code, answer.json["error"]["code"]) == (503, "storage_unavailable")
        assert answer.headers["Retry-After"] == "2"
    assert len(results(alice, batch_id)) == 2


def test_cancel_says_what_it_did(alice: Caller, turn: Callable[[], float]) -> None:
    batch_id = post(alice, lines(3)).json["id"]
    answer = alice("POST", f"/v1/batches/{batch_id}/cancel").json
    assert (answer["cancel"], answer["status"]) == ("cancelling", "cancelling")
    turn()
    answer = alice("POST", f"/v1/batches/{batch_id}/cancel").json
    assert (answer["cancel"], answer["status"], answer["counts"]["canceled"]) == ("too_late", "cancelled", 3)
    resumed = alice("POST", "/v1/batches", json={"resume_of": batch_id})
    assert (resumed.status_code, resumed.json["resume_of"], resumed.json["counts"]["total"]) == (202, batch_id, 3)
