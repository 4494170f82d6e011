"""replicate 1.0.7, unmodified: predictions as streams."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import replicate
from replicate.helpers import FileOutput

from genmill.predictions import version_of
from genmill.registry import load_registry
from tests.compat.conftest import Served
from tests.compat.prompt_worker import EARLY, WORDS, PromptWorker
from tests.fleet import eventually

SHAPES, CAPTIONS = "genmill/shapes", "genmill/captions"
VERSION = version_of(load_registry().get("captions"))


@pytest.mark.parametrize("ref", [CAPTIONS, f"{CAPTIONS}:{VERSION}"])
def test_a_text_is_told_while_it_is_written(
    ref: str, worker: PromptWorker, replicate_client: replicate.Client
) -> None:
    told, outputs = [], 0
    for event in replicate_client.stream(ref, input={"prompt": "hold it"}):
        told.append(event)
        if event.event.value == "output" and not outputs:
            outputs += 1
            assert str(event) == WORDS[:EARLY]
            worker.release()
    assert "".join(str(event) for event in told) == WORDS
    assert (told[-1].event.value, told[-1].data) == ("done", "{}")
    assert "9/20" in "".join(event.data for event in told if event.event.value == "logs")
    assert all(event.id for event in told)


def test_the_asynchronous_client_streams(served: Served, worker: PromptWorker) -> None:
    async def one() -> str:
        async with httpx.AsyncHTTPTransport() as transport:
            client = replicate.Client(api_token=served.keys["alice"], base_url=served.url, transport=transport)
            stream: Any = await client.async_stream(CAPTIONS, input={"prompt": "a red"})
            return "".join([str(event) async for event in stream])

    assert asyncio.run(one()) == WORDS


def test_a_prediction_that_was_not_streamed_is_told_at_its_end(
    worker: PromptWorker, replicate_client: replicate.Client
) -> None:
    prediction = replicate_client.models.predictions.create(model=CAPTIONS, input={"prompt": "a red"})
    for _ in range(2):  # every connection hears it from the beginning
        told = [event for event in prediction.stream() if event.event.value != "logs"]
        assert [event.data for event in told] == [WORDS, "{}"]


def test_pictures_are_told_as_links(served: Served, worker: PromptWorker) -> None:
    client = served.replicate(is_secure=True)
    told = list(client.stream(SHAPES, input={"prompt": "a red circle", "num_images": 2}))
    outputs: list[Any] = [event.data for event in told if event.event.value == "output"]
    assert [type(output) for output in outputs] == [FileOutput] * 2
    assert outputs[0].read().startswith(b"\x89PNG")


def test_a_failure_raises_and_a_canceled_stream_is_done(
    served: Served, worker: PromptWorker, replicate_client: replicate.Client
) -> None:
    with pytest.raises(RuntimeError, match="as the prompt says"):
        list(replicate_client.stream(CAPTIONS, input={"prompt": "fail it"}))
    prediction = replicate_client.models.predictions.create(model=CAPTIONS, input={"prompt": "hold it"}, stream=True)
    eventually(lambda: worker.taken == 2)
    prediction.cancel()
    assert list(prediction.stream())[-1].data == '{"reason": "canceled"}'


def test_another_tenants_stream_is_not_there(served: Served, replicate_client: replicate.Client) -> None:
    prediction = replicate_client.models.predictions.create(model=SHAPES, input={"prompt": "a red circle"})
    url = (prediction.urls or {})["stream"]
    assert httpx.get(url, headers={"authorization": f"Bearer {served.keys['bob']}"}).status_code == 404
    assert httpx.get(url).status_code == 401
