"""Both clients with the shipped models, run by `rq worker`: nothing here is a double."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import httpx
import openai
import pytest
import replicate
from PIL import Image

from tests.compat.conftest import Served

INPUT = {"prompt": "a red circle on a blue background", "seed": 7, "steps": 8}


@pytest.fixture
def _models(served: Served) -> Iterator[None]:
    process = served.fleet.worker(queues="p0 p1 p2 p3", name="models")
    yield
    process.stop()


@pytest.mark.usefixtures("_models")
def test_one_store_gives_all_dialects_the_same_picture_and_text(
    served: Served, replicate_client: replicate.Client, openai_client: openai.OpenAI
) -> None:
    (link,) = replicate_client.run("genmill/shapes", input=INPUT)
    drawn = Image.open(BytesIO(httpx.get(link).content)).convert("RGB")
    extra = {name: value for name, value in INPUT.items() if name != "prompt"}
    answer: Any = openai_client.images.generate(prompt=INPUT["prompt"], extra_body=extra)
    again = Image.open(BytesIO(base64.b64decode(answer.data[0].b64_json))).convert("RGB")
    differences = [abs(a - b) for a, b in zip(drawn.tobytes(), again.tobytes(), strict=True)]
    assert max(differences) <= 1

    written = "".join(replicate_client.run("genmill/captions", input={"prompt": "a red", "seed": 3}))
    completed = openai_client.completions.create(model="captions", prompt="a red", seed=3)
    assert completed.choices[0].text == written
    assert completed.usage is not None
    assert completed.usage.completion_tokens > 0
    streamed = replicate_client.stream("genmill/captions", input={"prompt": "a red", "seed": 3})
    assert "".join(str(event) for event in streamed) == written
    chunks = list(openai_client.completions.create(model="captions", prompt="a red", seed=3, logprobs=1, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == written
    assert len(chunks) >= 2, "text, and a closing one; how many tell so short a text is chance"
    logprobs = chunks[-1].choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens or []) == completed.usage.completion_tokens
    chat = openai_client.chat.completions.create(
        model="captions", messages=[{"role": "user", "content": "a red"}], max_tokens=4
    )
    assert chat.choices[0].message.content

    prediction = replicate_client.predictions.get(answer.job_id)  # another dialect's job
    assert prediction.status == "succeeded"
    assert (prediction.input or {})["seed"] == 7
    jobs = httpx.get(f"{served.url}/v1/jobs", headers={"x-api-key": served.keys["alice"]}).json()["data"]
    assert {job["state"] for job in jobs} == {"succeeded"}
    assert len(jobs) == 7
