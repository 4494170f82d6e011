"""Uploads, and outputs under signed links."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from redis import Redis

from api import uploads
from api.app import create_app
from api.services import Services
from genmill import api_keys, keys
from genmill.links import Links
from genmill.registry import load_registry
from genmill.settings import Settings
from genmill.store import Store
from scheduler.clearing import clear_files
from tests.api.conftest import IMAGE_JOB, Caller, finish_one
from tests.api.pictures import bomb, picture
from tests.conftest import SettingsFactory

SHAPES = load_registry().get("shapes").batch_key


def local(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


def test_upload_and_read_back(alice: Caller) -> None:
    body = picture(kind="WEBP")
    answer = alice("POST", "/v1/files", data={"content": (BytesIO(body), "x.png")})
    assert answer.status_code == 201
    facts = answer.json
    assert facts["size"] == facts["bytes"] == len(body)
    assert facts["content_type"] == "image/webp"
    assert facts["name"] == "x.png"
    read = alice("GET", f"/v1/files/{facts['id']}/content")
    assert read.data == body
    assert read.content_type == "image/webp"
    assert read.headers["ETag"] == f'"{facts["etag"]}"'


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"data": {"content": (BytesIO(b"hello"), "x.png")}}, 422, "not an image"),
        ({"data": {"content": (BytesIO(bomb()), "x.png")}}, 422, "262144 pixels"),
        ({"data": {"content": (BytesIO(b"\0" * 250_000), "x.png")}}, 422, "200000 bytes"),
        ({"data": {"other": (BytesIO(picture()), "x.png")}}, 422, "content or file"),
        ({"data": {"content": "text"}, "content_type": "multipart/form-data"}, 422, "content or file"),
        ({"json": {}}, 415, "multipart/form-data"),
    ],
    ids=["no image", "bomb", "large", "other field", "no file", "JSON"],
)
def test_bad_upload(
    options: dict[str, Any], status: int, words: str, alice: Caller, stored: Callable[[], set[str]]
) -> None:
    before = stored()
    answer = alice("POST", "/v1/files", **options)
    assert answer.status_code == status
    assert words in answer.json["detail"]
    assert stored() == before


@pytest.mark.parametrize(
    "form", [{"metadata": "x" * 200_000}, {f"field{number}": "x" for number in range(40)}], ids=["long", "many"]
)
def test_fields_beside_the_file_are_bounded(
    form: dict[str, str], alice: Caller, stored: Callable[[], set[str]]
) -> None:
    before = stored()
    answer = alice("POST", "/v1/files", data={**form, "content": (BytesIO(picture()), "x.png")})
    assert answer.status_code == 413
    assert answer.json["errors"][0]["limit"] == "100000 bytes in 20 fields"
    assert stored() == before


def test_output_of_a_job(alice: Caller, stranger: Caller, app: Flask, store: Store) -> None:
    services: Services = app.extensions["genmill"]
    job_id = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"]
    key = f"outputs/{job_id}/1/0.png"
    services.storage.put(key, picture(), "image/png")
    output = {"key": key, "content_type": "image/png", "width": 32, "height": 24, "bytes": len(picture())}
    finish_one(store, SHAPES, {"outputs": [output], "receipt": {"batch": 1}})
    job = alice("GET", f"/v1/jobs/{job_id}").json
    assert job["receipt"] == {"batch": 1}
    shown = job["outputs"][0]
    assert {name: shown[name] for name in ("content_type", "width", "height", "bytes")} == {
        name: output[name] for name in ("content_type", "width", "height", "bytes")
    }
    assert "key" not in shown
    read = stranger("GET", local(shown["url"]))
    assert read.status_code == 200
    assert read.data == picture()
    assert read.content_type == "image/png"
    assert "private" in read.headers["Cache-Control"]
    again = stranger("GET", local(shown["url"]), headers={"If-None-Match": read.headers["ETag"]})
    assert again.status_code == 304
    assert again.data == b""


def test_an_output_that_is_kept_no_more_says_so(stranger: Caller, app: Flask) -> None:
    answer = stranger("GET", local(app.extensions["genmill"].links.output_url("gone/1/0.png")))
    assert (answer.status_code, answer.json["error"]["code"]) == (410, "output_expired")


def test_links_that_are_not_ours_or_too_old(stranger: Caller, app: Flask, settings: Settings) -> None:
    services: Services = app.extensions["genmill"]
    services.storage.put("outputs/a/0.png", picture(), "image/png")
    good = local(services.links.output_url("outputs/a/0.png"))
    assert stranger("GET", good).status_code == 200
    for bad in (
        good[:-1] + "!",
        good.replace("/0.png", "/1.png"),
        good.replace("expires=", "expires=9"),
        "/v1/outputs/a",
    ):
        answer = stranger("GET", bad)
        assert answer.status_code == 403
        assert answer.json["error"]["code"] == "forbidden"
    old = Links(settings, clock=lambda: 1_000_000.0).output_url("outputs/a/0.png")
    assert stranger("GET", local(old)).status_code == 410
    gone = local(services.links.output_url("outputs/gone/0.png"))
    assert stranger("GET", gone).status_code == 410
    climbing = local(services.links.output_url("outputs/../../secret"))
    assert stranger("GET", climbing).status_code in (403, 404, 410)


def test_facts_list_and_deletion(alice: Caller, bob: Caller, stored: Callable[[], set[str]]) -> None:
    before = stored()
    form = {"metadata": '{"a": [1]}', "purpose": "user_data"}
    ids = []
    for _ in range(3):
        answer = alice("POST", "/v1/files", data={"content": (BytesIO(picture()), "x.png"), **form})
        ids.append(answer.json["id"])
    assert alice("GET", f"/v1/files/{ids[0]}").json["metadata"] == {"a": [1]}
    page = alice("GET", "/v1/files?limit=2&order=asc").json
    assert [one["id"] for one in page["data"]] == ids[:2]
    assert page["results"] == page["data"]
    assert (page["has_more"], page["last_id"]) == (True, ids[1])
    rest = alice("GET", f"/v1/files?order=asc&after={page['last_id']}").json
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (ids[2:], False)
    assert alice("GET", "/v1/files?purpose=vision").json["data"] == []
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert bob(method, f"/v1/files/{ids[0]}{path}").status_code == 404
    assert bob("GET", "/v1/files").json["data"] == []
    assert alice("DELETE", f"/v1/files/{ids[0]}").status_code == 204
    deleted = alice("DELETE", f"/v1/files/{ids[1]}", headers={"Accept": "application/json"})
    assert deleted.json == {"id": ids[1], "object": "file", "deleted": True}
    assert alice("DELETE", f"/v1/files/{ids[1]}").status_code == 404
    assert alice("DELETE", f"/v1/files/{ids[2]}").status_code == 204
    assert stored() == before


def test_an_expired_file_is_gone_and_cleared_away(
    alice: Caller, app: Flask, redis: Redis, store: Store, stored: Callable[[], set[str]]
) -> None:
    before = stored()
    form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    answer = alice("POST", "/v1/files", data={"file": (BytesIO(picture()), "x.png"), **form})
    file_id = answer.json["id"]
    assert answer.json["expires_at"] == answer.json["created_at"] + 3600
    assert redis.expiretime(f"gm:file:alice:{file_id}") == answer.json["expires_at"]
    redis.pexpireat(f"gm:file:alice:{file_id}", 1)  # its time has come
    assert alice("GET", f"/v1/files/{file_id}/content").status_code == 404
    job = {**IMAGE_JOB, "input": {**IMAGE_JOB["input"], "init_image": f"file:{file_id}"}}
    assert "no such file" in alice("POST", "/v1/jobs", json=job).json["detail"]
    assert alice("GET", "/v1/files").json["data"] == []
    redis.zadd(keys.PREFIXES["fileshelf"], {f"alice/{file_id}": 1})
    clear_files(store, app.extensions["genmill"].storage)
    assert stored() == before


def test_a_tenant_has_so_many_files(
    make_settings: SettingsFactory, redis: Redis, stored: Callable[[], set[str]]
) -> None:
    app = create_app(make_settings(max_files=2))
    alice, bob = (Caller(app.test_client(), api_keys.create(redis, name, "test")) for name in ("alice", "bob"))
    first, _ = (send(alice).json["id"] for _ in range(2))
    before = stored()
    refused = send(alice)
    assert (refused.status_code, refused.json["error"]["code"]) == (429, "limit_reached")
    assert refused.json["errors"][0] | {"detail": ""} == {
        "pointer": "/", "detail": "", "limit": "2 files", "value": "2 files",
    }  # fmt: skip
    assert stored() == before
    assert send(bob).status_code == 201
    assert alice("DELETE", f"/v1/files/{first}").status_code == 204
    assert send(alice).status_code == 201


def test_a_page_reads_no_more_facts_than_it_needs(
    alice: Caller, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "READ_AT_ONCE", 2)
    ids = [send(alice, purpose="vision" if number % 3 else "user_data").json["id"] for number in range(7)]
    redis.delete(keys.file("alice", ids[2]))
    read: list[str] = []
    monkeypatch.setattr(uploads, "_facts", lambda *given: read.extend(given[1]) or facts(*given))
    page = alice("GET", "/v1/files?order=asc&limit=1").json
    assert ([one["id"] for one in page["data"]], page["has_more"], read) == (ids[:1], True, ids[:2])
    pages, after = [], ""
    while page := alice("GET", f"/v1/files?order=asc&limit=2&purpose=vision{after}").json:
        pages += [one["id"] for one in page["data"]]
        after = f"&after={page['last_id']}"
        if not page["has_more"]:
            break
    assert pages == [ids[1], ids[4], ids[5]]


def send(caller: Caller, **form: str) -> Any:
    return caller("POST", "/v1/files", data={"content": (BytesIO(picture()), "x.png"), **form})


facts = uploads._facts


@pytest.mark.parametrize(
    ("form", "pointer"),
    [
        ({"purpose": "fine-tune"}, "/purpose"),
        ({"metadata": "{"}, "/metadata"),
        ({"metadata": "[]"}, "/metadata"),
        ({"metadata": '{"a": NaN}'}, "/metadata"),
        ({"metadata": '{"a": 1e999}'}, "/metadata"),
        ({"metadata": f'{{"a": "{"x" * 5000}"}}'}, "/metadata"),
        ({"expires_after[seconds]": "60"}, "/expires_after[seconds]"),
        ({"expires_after[anchor]": "last_used"}, "/expires_after[anchor]"),
        ({"name": "x"}, "/name"),
    ],
)
def test_bad_forms(form: dict[str, str], pointer: str, alice: Caller, stored: Callable[[], set[str]]) -> None:
    before = stored()
    answer = alice("POST", "/v1/files", data={"content": (BytesIO(picture()), "x.png"), **form})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == pointer
    assert stored() == before
