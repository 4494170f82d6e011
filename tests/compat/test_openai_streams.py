"""openai 3, unmodified: texts in chunks, and how likely their tokens were."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.compat.conftest import Served
from tests.compat.prompt_worker import EARLY, WORDS, PromptWorker
from tests.fleet import eventually

HELLO: list[Any] = [{"role": "user", "content": "a red"}]
HOLD: list[Any] = [{"role": "user", "content": "hold it"}]


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_a_chat_is_told_while_it_is_written(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    with openai_client.chat.completions.create(model="captions", messages=HOLD, stream=True) as stream:
        chunks = [next(stream)]
        assert (chunks[0].choices[0].delta.role, chunks[0].object) == ("assistant", "chat.completion.chunk")
        chunks.append(next(stream))
        assert text_of(chunks) == WORDS[:EARLY]
        worker.release()
        chunks += stream
    assert text_of(chunks) == WORDS
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_where_it_is_asked_for(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    *chunks, last = openai_client.chat.completions.create(
        model="captions", messages=HELLO, stream=True, stream_options=options
    )
    assert text_of(chunks) == WORDS
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (2, 5, 7)


def test_the_streaming_helper_puts_the_reply_together(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    with openai_client.chat.completions.stream(model="captions", messages=HELLO, logprobs=True) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == WORDS
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert "".join(token.token for token in logprobs.content or []) == WORDS


def test_completions(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    chunks = list(openai_client.completions.create(model="captions", prompt="a red", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == WORDS
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_asynchronous_client_streams(served: Served, worker: PromptWorker) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream: Any = await client.chat.completions.create(model="captions", messages=HELLO, stream=True)
        return text_of([chunk async for chunk in stream])

    async def many() -> list[str]:
        async with openai.AsyncOpenAI(api_key=served.keys["alice"], base_url=f"{served.url}/v1") as client:
            return await asyncio.gather(*(one(client) for _ in range(6)))

    assert asyncio.run(many()) == [WORDS] * 6


@pytest.mark.parametrize(
    ("prompt", "code"), [("fail it", "generation_failed"), ("invalid it", "invalid_job"), ("poison it", "poisoned")]
)
def test_a_failure_in_a_stream_is_an_api_error(
    prompt: str, code: str, worker: PromptWorker, openai_client: openai.OpenAI
) -> None:
    stream = openai_client.completions.create(model="captions", prompt=prompt, stream=True)
    with pytest.raises(openai.APIError, match="as the prompt says") as caught:
        list(stream)
    assert caught.value.code == code
    assert worker.taken == 1


def test_a_canceled_job_ends_its_stream(served: Served, worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    with openai_client.chat.completions.create(model="captions", messages=HOLD, stream=True) as stream:
        assert text_of([next(stream), next(stream)]) == WORDS[:EARLY]
        (job_id,) = served.store.list_ids("alice", None, 9)
        served.store.cancel(job_id)
        with pytest.raises(openai.APIError) as caught:
            list(stream)
    assert caught.value.code == "canceled"


def test_a_client_that_goes_away_leaves_its_job(
    served: Served, worker: PromptWorker, openai_client: openai.OpenAI
) -> None:
    with openai_client.chat.completions.create(model="captions", messages=HOLD, stream=True) as stream:
        next(stream)
    (job_id,) = served.store.list_ids("alice", None, 9)
    eventually(lambda: worker.taken)
    worker.release()
    eventually(lambda: (record := served.store.get(job_id)) and record.state.is_terminal)
    record = served.store.get(job_id)
    assert record is not None
    assert record.state == "succeeded"


def test_what_is_refused_is_refused_before_the_stream(served: Served, openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="max_tokens must be between"):
        openai_client.completions.create(model="captions", prompt="a", max_tokens=9999, stream=True)
    with pytest.raises(openai.UnprocessableEntityError, match="stream is not served here"):
        openai_client.images.generate(prompt="a red circle", stream=True)
    assert not served.redis.keys("rq:job:*")


def test_log_probabilities(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    chat = openai_client.chat.completions.create(model="captions", messages=HELLO, logprobs=True, top_logprobs=2)
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    first = (logprobs.content or [])[0]
    assert (first.token, first.logprob, bytes(first.bytes or [])) == ("circle", -0.5, b"circle")
    assert [(one.token, one.logprob) for one in first.top_logprobs] == [("t0", -1.0), ("t1", -2.0)]

    for asked in (0, 2):
        choice = openai_client.completions.create(model="captions", prompt="a red", logprobs=asked).choices[0]
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or []) == choice.text
        assert (choice.logprobs.text_offset or [])[:3] == [0, 6, 9]
        tops = choice.logprobs.top_logprobs
        assert tops is None if asked == 0 else tops is not None and tops[0] == {"t0": -1.0, "t1": -2.0}
    with pytest.raises(openai.UnprocessableEntityError, match="logprobs: must be at most 20, got 21") as caught:
        openai_client.completions.create(model="captions", prompt="a red", logprobs=21)
    assert caught.value.param == "/logprobs"
    plain = openai_client.chat.completions.create(model="captions", messages=HELLO, logprobs=False)
    assert plain.choices[0].logprobs is None
