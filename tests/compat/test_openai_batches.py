"""openai 3, unmodified: a batch from its file to its results, on the scheduler as it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.compat.conftest import Served
from tests.compat.prompt_worker import WORDS, PromptWorker
from tests.fleet import eventually

CHAT: Any = "/v1/chat/completions"


@pytest.fixture
def _scheduler(served: Served) -> Iterator[None]:
    process = served.fleet.scheduler()
    yield
    process.stop()


def lines(*prompts: str) -> bytes:
    rows = [
        {"custom_id": f"line-{number}", "method": "POST", "url": CHAT,
         "body": {"model": "captions", "messages": [{"role": "user", "content": prompt}]}}
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def created(client: openai.OpenAI, *prompts: str) -> Any:
    file = client.files.create(file=("lines.jsonl", lines(*prompts)), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"for": "you"}
    )


@pytest.mark.usefixtures("_scheduler")
def test_a_batch_runs_to_its_files(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    batch = created(openai_client, "a red", "fail it", "a blue")
    assert (batch.object, batch.status, batch.endpoint, batch.metadata) == (
        "batch", "in_progress", CHAT, {"for": "you"}
    )  # fmt: skip
    ended = eventually(lambda: (one := openai_client.batches.retrieve(batch.id)).status == "completed" and one)
    counts = ended.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    output = [json.loads(line) for line in openai_client.files.content(ended.output_file_id or "").text.splitlines()]
    assert {line["custom_id"] for line in output} == {"line-0", "line-2"}
    assert {line["response"]["body"]["choices"][0]["message"]["content"] for line in output} == {WORDS}
    (error,) = [json.loads(line) for line in openai_client.files.content(ended.error_file_id or "").text.splitlines()]
    assert (error["custom_id"], error["error"]["code"]) == ("line-1", "generation_failed")
    assert openai_client.files.retrieve(ended.output_file_id or "").purpose == "batch_output"


@pytest.mark.usefixtures("_scheduler")
def test_a_canceled_batch_keeps_what_is_done(worker: PromptWorker, openai_client: openai.OpenAI) -> None:
    batch = created(openai_client, "a red", "hold it")
    eventually(lambda: (counts := openai_client.batches.retrieve(batch.id).request_counts) and counts.completed == 1)
    assert openai_client.batches.cancel(batch.id).status == "cancelling"
    worker.release()
    ended = eventually(lambda: (one := openai_client.batches.retrieve(batch.id)).status == "cancelled" and one)
    assert ended.output_file_id is not None
    assert ended.cancelled_at is not None


def test_lists_page_and_are_each_tenants_own(served: Served, openai_client: openai.OpenAI) -> None:
    made = [created(openai_client, "a red", f"a {number}").id for number in range(3)]
    assert [batch.id for batch in openai_client.batches.list(limit=2)] == made[::-1]
    with served.openai("bob") as other:
        assert list(other.batches.list()) == []
        with pytest.raises(openai.NotFoundError):
            other.batches.retrieve(made[0])


def test_bad_lines_are_named(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="line 2") as caught:
        created(openai_client, "a red", "x" * 5000)
    assert caught.value.param == "/body/messages"
