"""Predictions without a client: what the client cannot send, and what other dialects see of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from api.replicate.bodies import ALIASES
from genmill.jobs import Dialect
from genmill.predictions import version_of
from genmill.registry import load_registry
from genmill.store import Store
from tests.api.conftest import Caller

PATH = "/v1/models/genmill/shapes/predictions"
CIRCLE = {"prompt": "a red circle"}
REGISTRY = load_registry()
SHAPES, CAPTIONS = (version_of(REGISTRY.get(name)) for name in ("shapes", "captions"))


def test_aliases_are_fields_of_the_inputs() -> None:
    for spec in REGISTRY.models:
        assert set(ALIASES[spec.kind].values()) <= set(spec.input_class.model_fields)
        assert not set(ALIASES[spec.kind]) & set(spec.input_class.model_fields)


@pytest.mark.parametrize("name", ["shapes", "captions"])
def test_a_versions_schema_points_to_nothing_that_is_not_there(name: str, alice: Caller) -> None:
    (version,) = alice("GET", f"/v1/models/genmill/{name}/versions").json["results"]
    parts = version["openapi_schema"]["components"]["schemas"]
    pointed = set(re.findall(r'"\$ref": "#/([^"]*)"', json.dumps(version)))
    assert pointed == {f"components/schemas/{part}" for part in set(parts) - {"Input", "Output"}}


def test_a_prediction_is_a_job_of_all_dialects(alice: Caller, store: Store) -> None:
    created = alice("POST", PATH, json={"input": {**CIRCLE, "num_inference_steps": 5, "num_outputs": 2}})
    assert created.status_code == 201
    job = alice("GET", f"/v1/jobs/{created.json['id']}").json
    assert (job["model"], job["input"]["steps"], job["input"]["num_images"]) == ("shapes", 5, 2)
    assert alice("GET", created.headers["Location"]).json["id"] == job["id"]
    record = store.get(job["id"])
    assert record is not None
    assert record.dialect is Dialect.REPLICATE
    assert alice("POST", f"/v1/jobs/{job['id']}/cancel").json["cancel"] == "dequeued"
    assert alice("GET", f"/v1/predictions/{job['id']}").json["status"] == "canceled"


@pytest.mark.parametrize(
    ("path", "body", "pointer", "words"),
    [
        ("/v1/predictions", {"input": CIRCLE}, "/version", "version is needed"),
        ("/v1/predictions", {"version": "genmill/sdxl", "input": CIRCLE}, "/version", "no model 'sdxl'"),
        ("/v1/predictions", {"version": f"a/shapes:{CAPTIONS}", "input": CIRCLE}, "/version", "has no version"),
        ("/v1/predictions", {"version": ["x"]}, "/version", "must be a text"),
        (PATH, {"input": CIRCLE, "model": "shapes"}, "/model", "no such field"),
        (PATH, {"input": {**CIRCLE, "image": "x"}}, "/input/image", "image must be a data URI"),
        (PATH, {"input": {**CIRCLE, "guidance_scale": 99}}, "/input/guidance_scale", "guidance_scale must be between"),
        (PATH, {"input": CIRCLE, "webhook": "https://x.example/", "webhook_completed": "https://x.example/"},
         "/webhook_completed", "either webhook or webhook_completed"),
        (PATH, {"input": CIRCLE, "webhook_completed": "https://127.0.0.1/"}, "/webhook_completed", "127.0.0.1"),
    ],
)  # fmt: skip
def test_bad_bodies(path: str, body: dict[str, Any], pointer: str, words: str, alice: Caller, redis: Any) -> None:
    answer = alice("POST", path, json=body)
    assert answer.status_code == 422
    assert (answer.json["errors"][0]["pointer"], answer.json["error"]["param"]) == (pointer, pointer)
    assert words in answer.json["detail"]
    assert not redis.keys("rq:job:*")


@pytest.mark.parametrize("owner_and_name", ["x/sdxl", "genmill/sdxl"])
def test_no_such_model(owner_and_name: str, alice: Caller) -> None:
    for path in ("", "/versions", f"/versions/{SHAPES}"):
        assert alice("GET", f"/v1/models/{owner_and_name}{path}").status_code == 404
    assert alice("POST", f"/v1/models/{owner_and_name}/predictions", json={"input": CIRCLE}).status_code == 404


def test_a_version_of_another_model_is_not_there(alice: Caller) -> None:
    assert alice("GET", f"/v1/models/genmill/shapes/versions/{SHAPES}").json["id"] == SHAPES
    assert alice("GET", f"/v1/models/genmill/shapes/versions/{CAPTIONS}").status_code == 404
    assert alice("POST", PATH, json={"version": CAPTIONS, "input": CIRCLE}).status_code == 404


def test_an_idempotency_key_replays(alice: Caller) -> None:
    one, two = (alice("POST", PATH, json={"input": CIRCLE}, headers={"Idempotency-Key": "k"}) for _ in range(2))
    assert one.json["id"] == two.json["id"]
    assert two.headers["Idempotency-Replayed"] == "true"
    other = alice("POST", PATH, json={"input": {"prompt": "another"}}, headers={"Idempotency-Key": "k"})
    assert other.status_code == 422


def test_a_cursor_that_leads_nowhere_is_an_empty_page(alice: Caller) -> None:
    alice("POST", PATH, json={"input": CIRCLE})
    assert alice("GET", "/v1/predictions?cursor=gone").json == {"previous": None, "next": None, "results": []}
    assert alice("GET", "/v1/predictions?page=2").status_code == 422


def test_a_prediction_may_use_what_another_one_makes(alice: Caller) -> None:
    first = alice("POST", PATH, json={"input": CIRCLE}).json["id"]
    reference = {"from": f"job:{first}", "path": "outputs/0"}
    made = alice("POST", PATH, json={"input": {**CIRCLE, "image": reference}}).json
    assert (made["status"], made["metrics"]["waiting_for"]) == ("starting", "dependency")
    refused = alice("POST", PATH, json={"input": {**CIRCLE, "image": {**reference, "path": "outputs/9"}}})
    assert refused.status_code == 422
    assert [fault["pointer"] for fault in refused.json["errors"]] == ["/input/image/path"]
