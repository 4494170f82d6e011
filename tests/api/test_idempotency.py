"""An Idempotency-Key is kept, or refused: it is never passed over."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from flask import Flask

from api.idempotency import HONOURED
from api.openapi import ALL_OPERATIONS
from api.operation import IDEMPOTENCY
from tests.api.conftest import TEXT_JOB, Caller
from tests.api.pictures import picture

KEY = {"Idempotency-Key": "k-1"}


def test_the_document_says_where_it_is_kept(app: Flask) -> None:
    kept = {(one.method, one.path) for one in ALL_OPERATIONS if IDEMPOTENCY in one.parameters}
    rules = [rule for rule in app.url_map.iter_rules() if rule.endpoint in HONOURED]
    assert {("post", rule.rule.replace("<", "{").replace(">", "}")) for rule in rules} == kept


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/v1/files", {"data": {"content": (BytesIO(picture()), "x.png")}}),
        ("/v1/batches", {"data": b"{}", "content_type": "application/x-ndjson"}),
        ("/v1/batches", {"json": {"input_file_id": "file_x"}}),
        ("/v1/admin/keys", {"json": {"tenant": "acme"}}),
    ],
)
def test_elsewhere_it_is_refused(
    path: str, options: dict[str, Any], alice: Caller, stored: Callable[[], set[str]]
) -> None:
    before = stored()
    answer = alice("POST", path, headers=KEY, **options)
    assert answer.status_code == 422
    assert answer.json["errors"][0] == {
        "pointer": "/Idempotency-Key", "detail": f"Idempotency-Key is not kept by POST {path}: leave it out",
        "limit": "no key", "value": "k-1",
    }  # fmt: skip
    assert stored() == before


def test_a_cancellation_may_have_one(alice: Caller) -> None:
    job_id = alice("POST", "/v1/jobs", json=TEXT_JOB, headers=KEY).json["id"]
    for _ in range(2):
        assert alice("POST", f"/v1/jobs/{job_id}/cancel", headers=KEY).json["state"] == "canceled"
