"""The webhook of a batch's lines in a header: a query would stand in logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from genmill import keys
from genmill.settings import Settings
from genmill.store import Store
from tests.api.conftest import TEXT_JOB, Caller
from tests.conftest import SettingsFactory

NDJSON = {"content-type": "application/x-ndjson"}
LINE = json.dumps({"custom_id": "a", **TEXT_JOB}).encode()
URL = "http://127.0.0.1:9/h?token=secret"


@pytest.fixture
def settings(make_settings: SettingsFactory) -> Settings:
    return make_settings(allow_private_urls=True, allow_http_webhooks=True)


def test_the_webhook_of_lines_may_come_in_a_header(alice: Caller, store: Store) -> None:
    url, wide = URL, f"{URL}&name=caf\u00e9"
    first = alice("POST", "/v1/batches", data=LINE, headers={**NDJSON, "Genmill-Webhook": url})
    again = alice(
        "POST", "/v1/batches", query_string={"webhook": url}, data=LINE, headers={**NDJSON, "Genmill-Webhook": url}
    )
    assert (first.status_code, again.status_code, again.json["id"]) == (202, 200, first.json["id"])
    other = {**NDJSON, "Genmill-Webhook": wide.encode().decode("latin-1")}
    second = alice("POST", "/v1/batches?rerun=true", data=LINE, headers=other)
    hooks = [store.redis.hget(keys.batch(one.json["id"]), "hook") for one in (first, second)]
    assert hooks == [url.encode(), wide.encode()]


@pytest.mark.parametrize(
    ("query", "header", "body", "pointer"),
    [
        ("", "https://127.0.0.1:1/\xff", {"data": LINE}, "/Genmill-Webhook"),
        ("?webhook=http://a", "http://b", {"data": LINE}, "/Genmill-Webhook"),
        ("", "nonsense", {"data": LINE}, "/webhook"),
        ("", "http://a", {"json": {"file_id": "x"}}, "/Genmill-Webhook"),
    ],
)
def test_a_header_that_cannot_be_its_webhook_is_refused(
    alice: Caller, stored: Callable[[], set[str]], query: str, header: str, body: dict[str, Any], pointer: str
) -> None:
    before, headers = stored(), {"Genmill-Webhook": header} | (NDJSON if "data" in body else {})
    answer = alice("POST", f"/v1/batches{query}", headers=headers, **body)
    assert (answer.status_code, answer.json["errors"][0]["pointer"]) == (422, pointer)
    assert stored() == before
