"""openai 3, unmodified, against the served API."""

from __future__ import annotations

import asyncio
import base64
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from tests.api.pictures import picture
from tests.compat.conftest import Served
from tests.compat.prompt_worker import WORDS, PromptWorker
from tests.fleet import eventually

CIRCLE = "a red circle"
HELLO: list[Any] = [{"role": "user", "content": "a red"}]


def opened(image: Any) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(image.b64_json)))


def test_images_in_both_forms(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    plain = openai_client.images.generate(prompt=CIRCLE)
    assert plain.data is not None
    assert opened(plain.data[0]).size == (64, 64)
    assert httpx.get(plain.data[0].url or "").status_code == 200

    two = openai_client.images.generate(
        model="shapes", prompt=CIRCLE, n=2, size="128x64", response_format="b64_json", quality="high", style="vivid"
    )
    assert two.data is not None
    assert [(opened(image).size, image.url) for image in two.data] == [((128, 64), None)] * 2
    (one,) = openai_client.images.generate(prompt=CIRCLE, response_format="url").data or []
    assert one.b64_json is None


def test_extra_body_reaches_the_model(served: Served, worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    extra = {
        "seed": 7, "steps": 5, "guidance": 2.5, "negative_prompt": "blue", "scheduler": "ddim", "priority": "p0",
        "metadata": {"a": 1},
    }  # fmt: skip
    answer: Any = openai_client.images.generate(prompt=CIRCLE, extra_body=extra)
    job = httpx.get(f"{served.url}/v1/jobs/{answer.job_id}", headers={"x-api-key": served.keys["alice"]}).json()
    assert {name: job["input"][name] for name in extra if name in job["input"]} == {
        name: value for name, value in extra.items() if name not in ("priority", "metadata")
    }
    assert (answer.seed, job["priority"], job["metadata"]) == (7, "p0", {"a": 1})


def test_an_edit_starts_from_its_image(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    image = ("init.png", picture((64, 64)), "image/png")
    (made,) = openai_client.images.edit(image=image, prompt=CIRCLE, n=1, extra_body={"strength": "0.5"}).data or []
    assert opened(made).getpixel((0, 0)) == (0, 0, 255)  # the double paints blue what has an init image
    with pytest.raises(openai.UnprocessableEntityError, match="one image is edited at a time, got 2"):
        openai_client.images.edit(image=[image, image], prompt=CIRCLE)
    with pytest.raises(openai.UnprocessableEntityError, match="not an image") as caught:
        openai_client.images.edit(image=("a.png", b"no image"), prompt=CIRCLE)
    assert caught.value.param == "/image"


def mask(size: tuple[int, int] = (64, 64), hole: tuple[int, int, int, int] | None = (0, 0, 32, 64)) -> bytes:
    """Opaque but for its hole."""
    image, buffer = Image.new("RGBA", size, "white"), BytesIO()
    if hole is not None:
        image.paste((0, 0, 0, 0), hole)
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_an_edit_paints_where_its_mask_is_transparent(
    served: Served, worker: PromptWorker, openai_client: openai.OpenAI
) -> None:
    image = ("init.png", picture((64, 64)), "image/png")
    answer: Any = openai_client.images.edit(image=image, mask=("mask.png", mask()), prompt=CIRCLE)
    record = served.store.get(answer.job_id)
    assert record is not None
    asked = record.request["input"]
    stored = Image.open(BytesIO(served.storage.get(asked["mask_image"]).body))
    assert (stored.mode, stored.size, stored.getpixel((0, 0)), stored.getpixel((63, 63))) == ("L", (64, 64), 255, 0)
    assert (asked["strength"], served.storage.get(asked["init_image"]).content_type) == (1.0, "image/png")
    own: Any = openai_client.images.edit(
        image=image, mask=("mask.png", mask()), prompt=CIRCLE, extra_body={"strength": "0.5"}
    )
    record = served.store.get(own.job_id)
    assert record is not None
    assert record.request["input"]["strength"] == 0.5


MASKS = {
    "opaque": (mask(hole=None), "nothing of the mask is transparent"),
    "without alpha": (picture((64, 64)), "nothing of the mask is transparent"),
    "of another size": (mask((32, 64), (0, 0, 8, 8)), "size of the image, 64x64, got 32x64"),
    "no image": (b"no image", "not an image"),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_mask_that_cannot_be_one_is_refused(case: str, served: Served, openai_client: openai.OpenAI) -> None:
    body, words = MASKS[case]
    with pytest.raises(openai.UnprocessableEntityError, match=words) as caught:
        openai_client.images.edit(image=("i.png", picture((64, 64))), mask=("m.png", body), prompt=CIRCLE)
    assert caught.value.param == "/mask"
    assert not served.redis.keys("rq:job:*")


def test_chat(served: Served, worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    answer: Any = openai_client.chat.completions.create(
        model="captions", max_completion_tokens=8, temperature=0.5, top_p=0.9, stop="blue", seed=3, n=1,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [
            {"type": "text", "text": "a "}, {"type": "text", "text": "red"}]}],
    )  # fmt: skip
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", WORDS, "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 5, 7)
    record = served.store.get(answer.job_id)
    assert record is not None
    assert record.request["input"] | {"kind": ""} == {
        "kind": "", "prompt": None, "max_tokens": 8, "temperature": 0.5, "top_p": 0.9, "stop": ["blue"], "seed": 3,
        "logprobs": False, "top_logprobs": 0,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a red"}],
    }  # fmt: skip
    said = choice.message.model_dump()
    again = openai_client.chat.completions.create(model="captions", messages=[*HELLO, said, *HELLO])
    assert again.choices[0].message.content == WORDS


@pytest.mark.parametrize("prompt", ["a red", ["a red"]])
def test_completions(prompt: Any, worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    answer = openai_client.completions.create(model="captions", prompt=prompt, max_tokens=8)
    assert answer.choices[0].text == WORDS
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7


def test_the_asynchronous_client_shares_the_fleet(served: Served, worker: PromptWorker) -> None:
    async def many() -> list[Any]:
        async with openai.AsyncOpenAI(api_key=served.keys["alice"], base_url=f"{served.url}/v1") as client:
            calls = [client.completions.create(model="captions", prompt="a red") for _ in range(12)]
            return await asyncio.gather(*calls)

    answers = asyncio.run(many())
    assert [answer.choices[0].text for answer in answers] == [WORDS] * 12
    assert len({answer.job_id for answer in answers}) == 12


def test_models(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == ["shapes", "captions"]
    assert openai_client.models.retrieve("shapes-64").id == "shapes"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-9'; known: shapes, captions"):
        openai_client.models.retrieve("gpt-9")


def test_files(served: Served, openai_client: openai.OpenAI) -> None:
    body = picture()
    stored = [
        openai_client.files.create(
            file=(f"{n}.png", body), purpose="vision", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        for n in range(3)
    ]
    first = stored[0]
    assert (first.bytes, first.filename, first.purpose, first.status) == (len(body), "0.png", "vision", "processed")
    assert first.expires_at == first.created_at + 3600
    assert openai_client.files.retrieve(first.id) == first
    assert openai_client.files.content(first.id).read() == body
    assert [one.id for one in openai_client.files.list(limit=2)] == [one.id for one in reversed(stored)]
    with pytest.raises(openai.NotFoundError), served.openai("bob") as other:
        other.files.content(first.id)
    assert openai_client.files.delete(first.id).deleted is True
    with pytest.raises(openai.NotFoundError):
        openai_client.files.retrieve(first.id)
    lines = openai_client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    assert (lines.purpose, openai_client.files.content(lines.id).read()) == ("batch", b"{}")
    with pytest.raises(openai.UnprocessableEntityError, match="'vision'"):
        openai_client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "stream options": ({"stream": True, "stream_options": {"usage": True}}, "/stream_options/usage", "no such field"),
    "two choices": ({"n": 2}, "/n", "n is not served here: leave it out or give 1, got 2"),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "/tools", "tools is not served"),
    "log probabilities": (
        {"logprobs": True, "top_logprobs": 21}, "/top_logprobs", "top_logprobs: must be at most 20"
    ),
    "JSON": ({"response_format": {"type": "json_object"}}, "/response_format", "response_format is not served"),
    "unknown": ({"extra_body": {"top_k": 4}}, "/top_k", "no parameter top_k"),
    "length": ({"max_completion_tokens": 9999}, "/max_completion_tokens", "max_completion_tokens must be between"),
    "temperature": ({"temperature": 2.5}, "/temperature", "2"),
    "picture in a chat": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "/messages/0/content", "text",
    ),
    "image model": ({"model": "shapes"}, "/model", "model shapes makes image; models for text: captions"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_its_parameter(case: str, served: Served, openai_client: openai.OpenAI) -> None:
    options, param, words = REFUSED[case]
    with pytest.raises(openai.UnprocessableEntityError, match=words) as caught:
        openai_client.chat.completions.create(**{"model": "captions", "messages": HELLO, **options})
    assert (caught.value.param or "").startswith(param)
    assert caught.value.request_id
    assert not served.redis.keys("rq:job:*")


def test_errors_have_the_clients_classes(served: Served, worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="size must be a multiple of 8, got 65") as bad:
        openai_client.images.generate(prompt=CIRCLE, size="65x64")  # type: ignore[call-overload]
    assert (bad.value.code, bad.value.type, bad.value.param) == ("invalid_request", "invalid_request_error", "/size")
    with pytest.raises(openai.AuthenticationError):
        openai_client.with_options(api_key="wrong").models.list()
    served.store.limits.set({"rate:alice": 1})
    served.fleet.scheduler()
    with served.openai(retries=0) as client, pytest.raises(openai.RateLimitError) as limited:
        eventually(lambda: not client.completions.create(model="captions", prompt="a"), within_s=30)
    assert 0 < int(limited.value.response.headers["retry-after"]) <= 60


@pytest.mark.parametrize(
    ("prompt", "kind", "code", "runs"),
    [
        ("invalid it", openai.UnprocessableEntityError, "invalid_job", 1),
        ("poison it", openai.InternalServerError, "poisoned", 1),
        ("fail it", openai.InternalServerError, "generation_failed", 2),
    ],
)
def test_a_failure_is_tried_again_where_that_may_help(
    prompt: str, kind: type[openai.APIStatusError], code: str, runs: int, served: Served, worker: PromptWorker
) -> None:
    with served.openai(retries=1) as client, pytest.raises(kind, match="as the prompt says") as caught:
        client.completions.create(model="captions", prompt=prompt)
    assert caught.value.code == code
    assert worker.taken == runs


def test_a_canceled_job_ends_the_call_at_once(served: Served, worker: PromptWorker) -> None:
    with served.openai() as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.completions.create, model="captions", prompt="hold it")
        (job_id,) = eventually(lambda: served.store.list_ids("alice", None, 9))
        eventually(lambda: worker.taken)
        served.store.cancel(job_id)
        with pytest.raises(openai.ConflictError, match="canceled"):
            call.result(10)
    assert worker.taken == 1


def test_a_retry_waits_for_the_job_of_the_try_before(served: Served, worker: PromptWorker) -> None:
    with served.openai(timeout_s=1.0) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.images.generate, prompt="hold it")
        time.sleep(2)  # past the first answer, 504, and into the second try
        worker.release()
        assert len(call.result(20).data or []) == 1
    assert worker.taken == 1
    assert len(served.store.list_ids("alice", None, 9)) == 1


def test_a_retry_after_the_connection_broke_finds_its_job(served: Served, worker: PromptWorker) -> None:
    url, body = f"{served.url}/v1/completions", {"model": "captions", "prompt": "hold it"}
    headers = {"authorization": f"Bearer {served.keys['alice']}"}
    for _ in range(2):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=body, headers=headers, timeout=0.5)
    ids = set(eventually(lambda: len(found := served.store.list_ids("alice", None, 9)) == 2 and found))
    worker.release()
    again = headers | {"x-stainless-retry-count": "1"}
    answers = [httpx.post(url, json=body, headers=again, timeout=10).json()["job_id"] for _ in range(2)]
    assert set(answers) == ids
    assert httpx.post(url, json=body, headers=again, timeout=10).json()["job_id"] not in ids, "its answer was given"


def test_equal_calls_of_which_some_are_refused_make_one_job_each(served: Served, worker: PromptWorker) -> None:
    served.store.limits.set({"queued:alice": 6})
    served.fleet.scheduler()
    eventually(lambda: served.redis.hget("gm:lim:now", "queued:alice"))
    with ThreadPoolExecutor(20) as pool, served.openai(retries=12) as client:
        calls = [pool.submit(client.images.generate, prompt=CIRCLE) for _ in range(20)]
        answers: list[Any] = [call.result(60) for call in calls]
    assert len({answer.job_id for answer in answers}) == 20


def test_equal_prompts_on_purpose_are_two_jobs(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    answers: list[Any] = [openai_client.completions.create(model="captions", prompt="a red") for _ in range(2)]
    assert answers[0].job_id != answers[1].job_id
    key = {"Idempotency-Key": "k"}
    same: list[Any] = [
        openai_client.completions.create(model="captions", prompt="a red", extra_headers=key) for _ in range(2)
    ]
    assert same[0].job_id == same[1].job_id
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        openai_client.completions.create(model="captions", prompt="another", extra_headers=key)
    assert caught.value.code == "idempotency_mismatch"
