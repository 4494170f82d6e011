"""`/v1/usage` in both forms, and who may ask of whom."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import pytest
from flask import Flask
from redis import Redis

from genmill import api_keys
from genmill.registry import load_registry
from genmill.store import Store
from tests.api.conftest import IMAGE_JOB, Caller, finish_one

SHAPES = load_registry().get("shapes").batch_key


@pytest.fixture
def used(alice: Caller, bob: Caller, store: Store) -> None:
    for caller in (alice, bob, alice):
        caller("POST", "/v1/jobs", json=IMAGE_JOB)
        finish_one(store, SHAPES, {"outputs": [{"key": "k", "bytes": 700}]})
    alice("POST", f"/v1/jobs/{alice('POST', '/v1/jobs', json=IMAGE_JOB).json['id']}/cancel")


@pytest.fixture
def admin(app: Flask, redis: Redis) -> Caller:
    return Caller(app.test_client(), api_keys.create(redis, "ops", "", scopes=["admin"]))


def test_json(used: None, alice: Caller) -> None:
    answer = alice("GET", "/v1/usage").json
    assert answer["to"] == datetime.now(UTC).date().isoformat()
    assert {row["tenant"] for row in answer["data"]} == {"alice"}
    total = answer["total"]
    assert (total["succeeded"], total["canceled"], total["output_bytes"]) == (2, 1, 1400)


@pytest.mark.parametrize(("query", "accept"), [("?format=csv", "*/*"), ("", "text/csv"), ("", "text/csv, */*;q=0.1")])
def test_csv(query: str, accept: str, used: None, alice: Caller) -> None:
    answer = alice("GET", f"/v1/usage{query}", headers={"accept": accept})
    assert answer.mimetype == "text/csv"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert sum(int(row["succeeded"]) for row in rows) == 2
    assert {row["tenant"] for row in rows} == {"alice"}


def test_the_format_goes_before_accept(used: None, alice: Caller) -> None:
    assert alice("GET", "/v1/usage?format=json", headers={"accept": "text/csv"}).mimetype == "application/json"


def test_an_admin_reads_any_and_all(used: None, admin: Caller) -> None:
    assert {row["tenant"] for row in admin("GET", "/v1/usage?tenant=*").json["data"]} == {"alice", "bob"}
    assert {row["tenant"] for row in admin("GET", "/v1/admin/usage").json["data"]} == {"alice", "bob"}
    for path in ("/v1/usage?tenant=bob", "/v1/admin/usage?tenant=bob"):
        assert {row["tenant"] for row in admin("GET", path).json["data"]} == {"bob"}
    assert admin("GET", "/v1/usage").status_code == 403


def test_days_without_use_are_left_out(used: None, alice: Caller) -> None:
    answer = alice("GET", "/v1/usage?from=2026-01-01&to=2026-01-31").json
    assert (answer["from"], answer["to"], answer["data"]) == ("2026-01-01", "2026-01-31", [])
    assert answer["total"]["succeeded"] == 0


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("from=yesterday", "/from"),
        ("to=2026-13-01", "/to"),
        ("to=0", "/to"),
        ("from=2026-02-01&to=2026-01-01", "/from"),
        ("from=2020-01-01", "/from"),
        ("format=xml", "/format"),
        ("colour=red", "/colour"),
    ],
)
def test_bad_queries(query: str, pointer: str, alice: Caller) -> None:
    answer = alice("GET", f"/v1/usage?{query}")
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == pointer
