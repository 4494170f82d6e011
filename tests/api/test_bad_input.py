"""Every bad input is a 4xx that names field, limit and value, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from genmill.inputs import ImageInput, TextInput
from tests.api.conftest import IMAGE_JOB, Caller
from tests.api.pictures import bomb, data_uri, picture

PROMPT = "a red circle"
GOOD = picture()
MB = 1_000_000


def image(**fields: Any) -> dict[str, Any]:
    return {"model": "shapes", "input": {"prompt": PROMPT, **fields}}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "captions", "input": fields}


SILENCE = [{"role": "user", "content": ""}] * 300


def hook(url: str) -> dict[str, Any]:
    return {**IMAGE_JOB, "webhook": url}


def init(body: bytes) -> dict[str, Any]:
    return image(init_image=data_uri(body))


FIELD, IMAGE, URL, INIT = "invalid_request", "invalid_image", "url_not_allowed", "/input/init_image"

# body, code, pointer, words of the limit, words of the value
FIELDS: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "unknown model": ({**IMAGE_JOB, "model": "sdxl"}, "unknown_model", "/model", "shapes, captions", "sdxl"),
    "no model": ({"input": {}}, FIELD, "/model", "", ""),
    "no input": ({"model": "shapes"}, FIELD, "/input", "", ""),
    "input is a list": ({"model": "shapes", "input": []}, FIELD, "/input", "", "[]"),
    "no prompt": ({"model": "shapes", "input": {}}, FIELD, "/input/prompt", "", ""),
    "empty prompt": (image(prompt=""), FIELD, "/input/prompt", "1", "''"),
    "prompt 1 MB": (image(prompt="x" * MB), FIELD, "/input/prompt", "2000", f"{MB}"),
    "negative prompt 1 MB": (image(negative_prompt="x" * MB), FIELD, "/input/negative_prompt", "2000", f"{MB}"),
    "width not a multiple": (image(width=65), FIELD, "/input/width", "multiple of 8", "65"),
    "height too large": (image(height=4096), FIELD, "/input/height", "64..128", "4096"),
    "steps 0": (image(steps=0), FIELD, "/input/steps", "1..100", "0"),
    "steps 10,000": (image(steps=10_000), FIELD, "/input/steps", "1..100", "10000"),
    "steps a word": (image(steps="many"), FIELD, "/input/steps", "", "many"),
    "seed too large": (image(seed=2**53), FIELD, "/input/seed", f"{2**53 - 1}", f"{2**53}"),
    "seed negative": (image(seed=-1), FIELD, "/input/seed", "0", "-1"),
    "guidance": (image(guidance=1000), FIELD, "/input/guidance", "0..20", "1000"),
    "images": (image(num_images=99), FIELD, "/input/num_images", "1..4", "99"),
    "scheduler": (image(scheduler="magic"), FIELD, "/input/scheduler", "ddim", "magic"),
    "unknown input field": (image(colour=1), FIELD, "/input/colour", "", "1"),
    "strength": (image(strength=2), FIELD, "/input/strength", "1", "2"),
    "unknown field": ({**IMAGE_JOB, "colour": 1}, FIELD, "/colour", "", "1"),
    "priority": ({**IMAGE_JOB, "priority": "p9"}, FIELD, "/priority", "p0", "p9"),
    "ttl": ({**IMAGE_JOB, "ttl_s": 0}, FIELD, "/ttl_s", "1", "0"),
    "deadline": ({**IMAGE_JOB, "deadline_s": 0}, FIELD, "/deadline_s", "0.1", "0"),
    "deadline too far": ({**IMAGE_JOB, "deadline_s": 10**7}, FIELD, "/deadline_s", "604800", f"{10**7}"),
    "best effort": ({**IMAGE_JOB, "best_effort": "perhaps"}, FIELD, "/best_effort", "", "perhaps"),
    "reproducible": ({**IMAGE_JOB, "reproducible": "perhaps"}, FIELD, "/reproducible", "", "perhaps"),
    "metadata": ({**IMAGE_JOB, "metadata": {"a": "x" * 5000}}, FIELD, "/metadata", "4096", "5009"),
    "text: both": (text(prompt="a", messages=[]), FIELD, "/input", "", ""),
    "preview": ({**IMAGE_JOB, "preview": 2}, FIELD, "/preview", "", "2"),
    "stream": ({**IMAGE_JOB, "stream": "perhaps"}, FIELD, "/stream", "", "perhaps"),
    "preview of a text": ({**text(prompt="a"), "preview": True}, FIELD, "/preview", "image models", "true"),
    "text: logprobs": (text(prompt="a", logprobs=True, top_logprobs=21), FIELD, "/input/top_logprobs", "20", "21"),
    "text: only top": (text(prompt="a", top_logprobs=2), FIELD, "/input", "logprobs: true", "top_logprobs 2"),
    "text: tokens": (text(prompt="a", max_tokens=9999), FIELD, "/input/max_tokens", "1..64", "9999"),
    "text: prompt 1 MB": (text(prompt="x" * MB), FIELD, "/input/prompt", "2000", f"{MB}"),
    "text: messages": (text(messages=SILENCE), FIELD, "/input/messages", "256 messages", "300 messages"),
    "webhook no URL": (hook("nowhere"), URL, "/webhook", "https", "nowhere"),
    "webhook http": (hook("http://9.9.9.9/"), URL, "/webhook", "https", "http://9.9.9.9/"),
    "webhook loopback": (hook("https://127.0.0.1/"), URL, "/webhook", "global", "127.0.0.1"),
    "webhook port": (hook("https://9.9.9.9:22/"), URL, "/webhook", "443", "22"),
    "init image a bomb": (init(bomb()), IMAGE, INIT, f"{512 * 512} pixels", f"{60_000**2} pixels"),
    "init image no image": (init(b"<svg/>"), IMAGE, INIT, "PNG, JPEG, WEBP", "6 bytes"),
    "init image a GIF": (init(picture(kind="GIF")), IMAGE, INIT, "PNG, JPEG, WEBP", "47 49 46"),
    "init image cut": (init(GOOD[:-30]), IMAGE, INIT, "", "cut short"),
    "init image empty": (init(b""), IMAGE, INIT, "PNG", "0 bytes"),
    "init image too many bytes": (init(b"\0" * 300_000), IMAGE, INIT, "200000 bytes", "300000 bytes"),
    "init image no base64": (image(init_image="data:image/png;base64,%%%"), IMAGE, INIT, "base64", "%%%"),
    "init image no comma": (image(init_image="data:image/png"), IMAGE, INIT, "base64", "data:image"),
    "init image a key": (image(init_image="inputs/x/init.png"), IMAGE, INIT, "data URI", "inputs/x"),
    "init image no file": (image(init_image="file:file_1"), IMAGE, INIT, "POST /v1/files", "file_1"),
    "init image climbs": (image(init_image="file:../x"), IMAGE, INIT, "POST /v1/files", "../x"),
    "init image loopback": (
        image(init_image="http://127.0.0.1:80/x.png"), URL, INIT, "global", "127.0.0.1",
    ),
    "init image metadata service": (
        image(init_image="http://169.254.169.254/latest"), URL, INIT, "global", "169.254",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_bad_field(name: str, alice: Caller, stored: Callable[[], set[str]]) -> None:
    body, code, pointer, limit, value = FIELDS[name]
    before = stored()
    answer = alice("POST", "/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert_problem(answer, code)
    faults = [fault for fault in answer.json["errors"] if fault["pointer"] == pointer]
    assert faults, answer.json["errors"]
    shown = json.dumps(faults)
    assert limit in shown
    assert value in shown
    assert len(answer.data) < 3000
    assert stored() == before


# raw body, content type, status, code, words of the detail
BODIES: dict[str, tuple[bytes, str | None, int, str, str]] = {
    "not JSON": (b'{"model": ', "application/json", 400, "malformed_json", "not valid JSON"),
    "not UTF-8": (b'{"model": "\xff"}', "application/json", 400, "malformed_json", "not valid JSON"),
    "a list": (b"[]", "application/json", 400, "malformed_json", "got list"),
    "empty": (b"", "application/json", 400, "malformed_json", "not valid JSON"),
    "NaN": (b'{"model": NaN}', "application/json", 400, "malformed_json", "NaN"),
    "infinite": (b'{"model": 1e999}', "application/json", 400, "malformed_json", "too large"),
    "deep": (b"[" * 100_000, "application/json", 400, "malformed_json", "not valid JSON"),
    "digits": (b'{"a": ' + b"9" * 9999 + b"}", "application/json", 400, "malformed_json", "not valid JSON"),
    "nested": (b'{"metadata": ' + b"[" * 975 + b"]" * 975 + b"}", "application/json", 400, "malformed_json", "nested"),
    "lone surrogate": (b'{"model": "\\ud800"}', "application/json", 400, "malformed_json", "other half of its pair"),
    "surrogate bytes": (b'{"model": "\xed\xa0\x80"}', "application/json", 400, "malformed_json", "UTF-8"),
    "a form": (b"a=b", "application/x-www-form-urlencoded", 415, "unsupported_media_type", "urlencoded"),
    "text": (b"{}", "text/plain", 415, "unsupported_media_type", "application/json"),
    "no type": (b"{}", None, 415, "unsupported_media_type", "none"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_bad_body(name: str, alice: Caller, stored: Callable[[], set[str]]) -> None:
    body, content_type, status, code, words = BODIES[name]
    before = stored()
    answer = alice("POST", "/v1/jobs", data=body, content_type=content_type)
    assert answer.status_code == status, answer.text
    assert_problem(answer, code)
    assert words in answer.json["detail"]
    assert stored() == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {"model": "shapes", "input": {"prompt": "x", **{f"n{number}": 1 for number in range(5_000)}}}),
        ("/v1/jobs", {**IMAGE_JOB, **{f"n{number}": 1 for number in range(5_000)}}),
        ("/v1/jobs", {"model": "captions", "input": {"messages": [{}] * 5_000}}),
        ("/v1/jobs", {"model": "captions", "input": {"prompt": "x", "stop": [1] * 5_000}}),
        ("/v1/predictions", {"version": "shapes", "input": {f"n{number}": 1 for number in range(5_000)}}),
        ("/v1/chat/completions", {"model": "captions", "messages": [{}] * 5_000}),
        (
            "/v1/chat/completions",
            {"model": "captions", "messages": [], **{f"n{number}": 1 for number in range(5_000)}},
        ),
        ("/v1/batches", {"file_id": "x", "metadata": {f"n{number}": 1 for number in range(5_000)}}),
    ],
)
def test_an_answer_to_thousands_of_faults_is_bounded(path: str, body: dict[str, Any], alice: Caller) -> None:
    answer = alice("POST", path, json=body)
    assert 400 <= answer.status_code < 500
    assert len(answer.data) < 250_000
    assert len(answer.json.get("errors", ())) <= 100


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("data:" + ";" * 2_000_000 + ",x", "no comma after its type"),
        ("data:image/png," + "%41" * 100_000, "300000 characters that are not base64"),
    ],
)
def test_a_data_uri_that_is_dear_to_read_is_not_read(given: str, words: str, alice: Caller) -> None:
    answer = alice("POST", "/v1/jobs", json=image(init_image=given))
    assert answer.status_code == 422
    assert words in answer.json["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("GET", "/v1/v1/jobs", "/v1/jobs is meant, so the base URL is wrong by /v1"),
        ("POST", "/chat/completions", "/v1/chat/completions is meant"),
        ("POST", "/predictions", "/v1/predictions is meant"),
        ("GET", "/nowhere", "There is no /nowhere here; /openapi.json tells what there is"),
        ("GET", "/v1/nowhere", "/openapi.json tells"),
    ],
)
def test_a_path_that_is_none_says_which_is_meant(method: str, path: str, told: str, alice: Caller) -> None:
    answer = alice(method, path, json={} if method == "POST" else None)
    assert answer.status_code == 404
    assert_problem(answer, "not_found")
    assert told in answer.json["detail"]


def test_what_a_batch_may_be_is_told(alice: Caller) -> None:
    answer = alice("POST", "/v1/batches", data=b"{}", content_type="text/plain")
    assert answer.status_code == 415
    assert answer.json["errors"][0]["limit"] == "application/x-ndjson or application/json"


def test_body_over_the_limit_is_refused_before_it_is_parsed(alice: Caller, stored: Callable[[], set[str]]) -> None:
    before = stored()
    answer = alice("POST", "/v1/jobs", data=b"[" * 12_000_001, content_type="application/json")
    assert answer.status_code == 413
    assert_problem(answer, "body_too_large")
    assert answer.json["errors"][0]["limit"] == "12000000 bytes"
    assert answer.json["errors"][0]["value"] == "12000001 bytes"
    assert stored() == before


def test_all_faults_are_told_at_once(alice: Caller) -> None:
    answer = alice("POST", "/v1/jobs", json=image(width=65, steps=0, guidance=-1))
    assert {fault["pointer"] for fault in answer.json["errors"]} == {"/input/width", "/input/steps", "/input/guidance"}


@pytest.mark.parametrize("key", ["gm_wrong", "", "x" * 10_000, "gm_ü"])
def test_bad_key(key: str, stranger: Caller, stored: Callable[[], set[str]]) -> None:
    before = stored()
    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
        answer = stranger("POST", "/v1/jobs", json=IMAGE_JOB, headers=headers)
        assert answer.status_code == 401
        assert_problem(answer, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert stored() == before


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "?wait=5"), ("POST", "/cancel")], ids=["read", "wait", "cancel"]
)
def test_other_tenants_job_is_not_there(method: str, path: str, alice: Caller, bob: Caller) -> None:
    job_id = alice("POST", "/v1/jobs", json=IMAGE_JOB).json["id"]
    theirs, nobodys = (bob(method, f"/v1/jobs/{name}{path}") for name in (job_id, "0" * 26))
    assert theirs.status_code == nobodys.status_code == 404
    assert_problem(theirs, "job_not_found")
    assert theirs.json["detail"].replace(job_id, "0" * 26) == nobodys.json["detail"]
    assert bob("GET", "/v1/jobs").json["data"] == []
    assert alice("GET", f"/v1/jobs/{job_id}").json["state"] == "queued"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("GET", "/v1/jobs?limit=1000", 422, "invalid_request"),
        ("GET", "/v1/jobs?state=lost", 422, "invalid_request"),
        ("GET", "/v1/jobs?colour=red", 422, "invalid_request"),
        ("GET", "/v1/jobs/x?wait=soon", 422, "invalid_request"),
        ("GET", "/v1/models/none", 404, "not_found"),
        ("GET", "/v1/files/../x/content", 404, "not_found"),
    ],
)
def test_bad_paths_and_queries(method: str, path: str, status: int, code: str, alice: Caller) -> None:
    answer = alice(method, path)
    assert answer.status_code == status
    assert_problem(answer, code)


@pytest.mark.parametrize("name", ["%00", "%ff", "%ED%A0%80", "x" * 5000, "a:dependents", "%2e%2e", "a%2fb"])
def test_odd_names_in_paths_are_not_found(name: str, alice: Caller, redis: Redis) -> None:
    redis.sadd("rq:job:a:dependents", "b")
    for path in (f"/v1/jobs/{name}", f"/v1/models/{name}", f"/v1/files/{name}/content", f"/v1/nowhere/{name}"):
        assert alice("GET", path).status_code == 404
    assert alice("GET", f"/v1/outputs/{name}").status_code in {403, 404}
    assert alice("GET", f"/v1/jobs?after={name}&model={name}").json["data"] == []


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
NAMES = sorted({*ImageInput.model_fields, *TextInput.model_fields})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=st.sampled_from(["shapes", "captions"]) | JSON,
    fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4) | JSON,
    more=st.dictionaries(
        st.sampled_from(["priority", "webhook", "ttl_s", "deadline_s", "best_effort", "reproducible", "metadata"]),
        JSON,
        max_size=2,
    ),
)
def test_no_body_is_our_fault(model: Any, fields: Any, more: dict[str, Any], alice: Caller) -> None:
    answer = alice("POST", "/v1/jobs", json={"model": model, "input": fields, **more})
    assert answer.status_code in {202, 400, 422}, answer.text


@pytest.mark.parametrize("key", ["", '""', "x" * 300, "tab\there"])
def test_bad_idempotency_key(key: str, alice: Caller, stored: Callable[[], set[str]]) -> None:
    before = stored()
    answer = alice("POST", "/v1/jobs", json=IMAGE_JOB, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["pointer"] == "/Idempotency-Key"
    assert stored() == before


def assert_problem(answer: Any, code: str) -> None:
    """The one body of all errors, as both dialects' clients need it."""
    assert answer.content_type == "application/problem+json"
    body = answer.json
    assert {"type", "title", "status", "detail", "errors", "error"} <= set(body)
    assert body["status"] == answer.status_code
    assert body["error"]["code"] == code
    assert body["error"]["message"] == body["detail"]
    assert isinstance(body["error"]["type"], str)
    assert answer.headers["x-request-id"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
