"""Jobs that wait for others, over HTTP: what is taken, shown and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from genmill import keys
from genmill.errors import JobFailure
from genmill.registry import load_registry
from genmill.store import Outcome, Settlement, Store, Want
from tests.api.conftest import IMAGE_JOB, TEXT_JOB, Caller, finish_one
from tests.api.pictures import data_uri, picture

SHAPES, CAPTIONS = (load_registry().get(name).batch_key for name in ("shapes", "captions"))
TEXT_RESULT = {"outputs": [], "text": {"text": "a blue ring"}, "receipt": {}}


def submitted(caller: Caller, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = caller("POST", "/v1/jobs", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json
    return job


def source(job: dict[str, Any], path: str = "text") -> dict[str, str]:
    return {"from": f"job:{job['id']}", "path": path}


def fail_one(store: Store, batch_key: str) -> None:
    (claim,) = store.claim("w", ["p1"], [Want(batch_key, 1)]).claims
    settlement = Settlement(claim.job_id, claim.fence, Outcome.FAILED, error=JobFailure("it broke"))
    assert store.settle([settlement]) == [True]


def refused(answer: Any, code: str = "invalid_request") -> list[tuple[str, str | None, str | None]]:
    assert answer.status_code == 422, answer.text
    assert answer.json["error"]["code"] == code
    return [(fault["pointer"], fault.get("limit"), fault.get("value")) for fault in answer.json["errors"]]


def test_a_picture_of_a_text_waits_for_it_and_says_so(alice: Caller, store: Store) -> None:
    text = submitted(alice, TEXT_JOB)
    job = submitted(alice, {"model": "shapes", "input": {"prompt": source(text), "seed": 7}})
    assert (job["state"], job["position"], job["depends_on"]) == ("queued", None, [text["id"]])
    assert job["waiting_for"] == {"reason": "dependency", "jobs": [text["id"]]}
    assert (job["input"]["prompt"], job["input"]["seed"]) == (source(text), 7)
    finish_one(store, CAPTIONS, TEXT_RESULT)
    now = alice("GET", f"/v1/jobs/{job['id']}").json
    assert (now["state"], now["position"], now["waiting_for"]["reason"]) == ("queued", 0, "no_worker")
    assert now["input"]["prompt"] == source(text)


def test_all_places_take_what_other_jobs_make(alice: Caller) -> None:
    text, picture_job = submitted(alice, TEXT_JOB), submitted(alice, IMAGE_JOB)
    image, words = source(picture_job, "outputs/0"), source(text)
    given = {"prompt": words, "negative_prompt": words, "init_image": image, "mask_image": image}
    job = submitted(alice, {"model": "shapes", "input": given})
    assert {name: job["input"][name] for name in given} == given
    assert sorted(job["depends_on"]) == sorted([text["id"], picture_job["id"]])
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": words}]
    chat = submitted(alice, {"model": "captions", "input": {"messages": messages}})
    assert chat["input"]["messages"] == messages


def test_an_image_that_is_given_stands_beside_one_that_is_made(alice: Caller, stored: Callable[[], set[str]]) -> None:
    made = submitted(alice, IMAGE_JOB)
    before = stored()
    given = {"prompt": "x", "init_image": source(made, "outputs/0"), "mask_image": data_uri(picture())}
    job = submitted(alice, {"model": "shapes", "input": given})
    assert (job["input"]["init_image"], job["input"]["mask_image"]) == (given["init_image"], "stored")
    assert [path for path in stored() - before if "inputs/" in path and path.endswith("mask.png")]


def test_depends_on_alone_orders_jobs(alice: Caller, store: Store) -> None:
    first = submitted(alice, TEXT_JOB)
    second = submitted(alice, {**IMAGE_JOB, "depends_on": [first["id"], first["id"]]})
    assert (second["depends_on"], second["waiting_for"]["reason"]) == ([first["id"]], "dependency")
    finish_one(store, CAPTIONS, TEXT_RESULT)
    third = submitted(alice, {**IMAGE_JOB, "depends_on": [first["id"]]})
    assert third["position"] == 1, "what it depends on has succeeded"


@pytest.mark.parametrize("harm", ["fail", "cancel"])
def test_those_that_wait_end_with_what_they_wait_for_and_tell_why(alice: Caller, store: Store, harm: str) -> None:
    first = submitted(alice, TEXT_JOB)
    second = submitted(alice, {"model": "shapes", "input": {"prompt": source(first)}})
    if harm == "fail":
        fail_one(store, CAPTIONS)
    else:
        alice("POST", f"/v1/jobs/{first['id']}/cancel")
    ended = alice("GET", f"/v1/jobs/{second['id']}?wait=5").json
    state, why = (
        ("failed", "failed: it broke") if harm == "fail" else ("canceled", "was canceled: The job was canceled.")
    )
    assert (ended["state"], ended["started_at"]) == (state, None)
    assert ended["error"] == {"code": "dependency_failed", "message": f"job:{first['id']} {why}"}


def test_a_failed_dependency_is_refused_and_a_repeated_request_is_not(
    alice: Caller, store: Store, stored: Callable[[], set[str]]
) -> None:
    first = submitted(alice, TEXT_JOB)
    body = {
        **IMAGE_JOB,
        "input": {**IMAGE_JOB["input"], "init_image": data_uri(picture())},
        "depends_on": [first["id"]],
    }
    second = submitted(alice, body, **{"Idempotency-Key": "k"})
    fail_one(store, CAPTIONS)
    before = stored()
    faults = refused(alice("POST", "/v1/jobs", json=body), "dependency_unusable")
    assert faults == [("/depends_on/0", "a job that may still succeed", first["id"])]
    assert stored() == before
    again = alice("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert (again.json["id"], again.headers["Idempotency-Replayed"]) == (second["id"], "true")


def test_jobs_of_others_are_as_unknown_as_those_that_never_were(
    alice: Caller, bob: Caller, stored: Callable[[], set[str]]
) -> None:
    theirs = submitted(bob, TEXT_JOB)
    before = stored()
    answers = []
    for job_id in (theirs["id"], "0" * 26):
        answer = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "depends_on": [job_id]})
        assert refused(answer, "dependency_unusable") == [("/depends_on/0", "a job of yours", job_id)]
        answers.append(answer.json["detail"].replace(job_id, "ID"))
        body = {"model": "shapes", "input": {"prompt": {"from": f"job:{job_id}", "path": "outputs/7"}}}
        answer = alice("POST", "/v1/jobs", json=body)
        assert refused(answer, "dependency_unusable") == [("/input/prompt/from", "a job of yours", job_id)]
        answers.append(answer.json["detail"].replace(job_id, "ID"))
    assert len(set(answers)) == 1
    assert stored() == before


BAD_INPUTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a place that takes none": ({"prompt": "x", "steps": ("text", "text")}, "/input/steps", "prompt, negative_prompt"),
    "no job": ({"prompt": {"from": "file:1", "path": "text"}}, "/input/prompt/from", "job:"),
    "no path": ({"prompt": {"from": "job:1"}}, "/input/prompt/path", "must be given"),
    "an unknown path": ({"prompt": ("text", "receipt/seed")}, "/input/prompt/path", "outputs"),
    "more than a reference": (
        {"prompt": {"from": "job:1", "path": "text", "x": 1}},
        "/input/prompt/x",
        "no such field",
    ),
    "a picture for a text": ({"prompt": ("image", "text")}, "/input/prompt", "makes 1 image"),
    "a text for a picture": ({"prompt": "x", "init_image": ("text", "text")}, "/input/init_image", "makes a text"),
    "a path to nothing": ({"prompt": ("text", "outputs/0")}, "/input/prompt/path", "its path is text"),
    "an image too many": (
        {"prompt": "x", "init_image": ("image", "outputs/1")},
        "/input/init_image/path",
        "outputs/1",
    ),
    "a mask alone": (
        {"prompt": "x", "mask_image": ("image", "outputs/0")},
        "/input/mask_image",
        "needs an init_image",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_a_reference_that_cannot_be_filled_is_refused(
    name: str, alice: Caller, stored: Callable[[], set[str]]
) -> None:
    jobs = {"text": submitted(alice, TEXT_JOB), "image": submitted(alice, IMAGE_JOB)}
    given, pointer, words = BAD_INPUTS[name]
    raw = {
        field: source(jobs[value[0]], value[1]) if isinstance(value, tuple) else value
        for field, value in given.items()
    }
    before = stored()
    answer = alice("POST", "/v1/jobs", json={"model": "shapes", "input": raw})
    assert [fault[0] for fault in refused(answer)] == [pointer]
    assert words in answer.text
    assert stored() == before


REFERENCE = {"from": "job:j1", "path": "text"}
ODD_INPUTS = [
    {"prompt": "x", "control/image": REFERENCE}, {"prompt": "x", "a/b": REFERENCE}, {"": REFERENCE},
    {"prompt": {"from": {"from": 1}, "path": "text"}}, {"prompt": {"from": None}}, {"control": {"image": REFERENCE}},
    {"prompt": [REFERENCE]}, {"prompt": "x", "loras": [REFERENCE]}, {"x" * 5000: REFERENCE},
    {"messages": {"0": {"content": REFERENCE}}}, {"messages": [{"content": REFERENCE}] * 2_000},
]  # fmt: skip


@pytest.mark.parametrize("raw", ODD_INPUTS, ids=range(len(ODD_INPUTS)))
@pytest.mark.parametrize("model", ["shapes", "captions"])
def test_odd_inputs_are_refused_in_few_words(
    model: str, raw: dict[str, Any], alice: Caller, stored: Callable[[], set[str]]
) -> None:
    before = stored()
    answer = alice("POST", "/v1/jobs", json={"model": model, "input": raw})
    assert answer.status_code == 422, answer.text
    assert answer.json["errors"]
    assert stored() == before


@pytest.mark.parametrize("ids", [["a:b"], [7], "abc", ["x" * 65], [f"{n}" for n in range(17)]])
def test_dependencies_of_a_wrong_form_are_refused(ids: Any, alice: Caller) -> None:
    ((pointer, *_), *_) = refused(alice("POST", "/v1/jobs", json={**IMAGE_JOB, "depends_on": ids}))
    assert pointer.startswith("/depends_on")


def test_more_jobs_than_one_may_wait_for_are_refused_wherever_they_are_named(alice: Caller) -> None:
    text = submitted(alice, TEXT_JOB)
    body = {"model": "shapes", "input": {"prompt": source(text)}, "depends_on": [f"{n}" for n in range(16)]}
    assert refused(alice("POST", "/v1/jobs", json=body)) == [("/depends_on", "16 jobs", "17 jobs")]


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"depends_on": ["j1"]}, "/depends_on"),
        ({"input": {"prompt": {"from": "job:j1", "path": "text"}}}, "/input/prompt"),
    ],
)
def test_a_line_of_a_batch_waits_for_no_other_job(more: dict[str, Any], pointer: str, alice: Caller) -> None:
    line = json.dumps({"custom_id": "a", **IMAGE_JOB, **more})
    answer = alice("POST", "/v1/batches", data=line, headers={"content-type": "application/jsonl"})
    assert refused(answer, "batch_invalid")[0][0] == pointer
    assert "waits for no other job" in answer.text


def test_what_a_source_has_made_is_not_read_to_take_a_job(alice: Caller, store: Store, redis: Redis) -> None:
    text = submitted(alice, TEXT_JOB)
    finish_one(store, CAPTIONS, TEXT_RESULT)
    redis.set(keys.results(text["id"]), "no stream: to read it as one is an error", ex=60)
    assert submitted(alice, {"model": "shapes", "input": {"prompt": source(text)}})["depends_on"] == [text["id"]]
    wrong = {"model": "shapes", "input": {"prompt": "x", "init_image": source(text)}}
    assert refused(alice("POST", "/v1/jobs", json=wrong))[0][0] == "/input/init_image"


def test_no_job_waits_for_a_line_of_a_batch(alice: Caller, stored: Callable[[], set[str]]) -> None:
    line = json.dumps({"custom_id": "a", **IMAGE_JOB})
    batch = alice("POST", "/v1/batches", data=line, headers={"content-type": "application/jsonl"}).json
    job, line_id = submitted(alice, IMAGE_JOB), f"{batch['id']}-1"
    before = stored()
    answer = alice("POST", "/v1/jobs", json={**IMAGE_JOB, "depends_on": [job["id"], line_id]})
    assert refused(answer) == [("/depends_on/1", "a job of POST /v1/jobs", line_id)]
    assert f"{line_id} is a line of a batch" in answer.json["detail"]
    assert stored() == before


def test_the_document_describes_references(alice: Caller) -> None:
    schemas = alice("GET", "/openapi.json").json["components"]["schemas"]
    text = schemas["JobBody"]["properties"]["input"]["anyOf"][0]["$ref"].rpartition("/")[2]
    prompt = schemas[text]["properties"]["prompt"]["anyOf"]
    assert {"$ref": "#/components/schemas/Reference"} in prompt
    assert schemas["ChainedTextInput"]["properties"]["messages"]["anyOf"][0]["items"] == {
        "$ref": "#/components/schemas/ChainedMessage"
    }
    assert "anyOf" not in schemas["ImageInput"]["properties"]["prompt"], "a line of a batch takes none"
    assert "depends_on" not in schemas["LineBody"]["properties"]
