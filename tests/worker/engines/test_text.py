"""The text engine: what `generate` would write, whoever shares the batch."""

from typing import Any

import pytest
import torch

from genmill.inputs import ImageInput, Message, TextInput
from tests.worker.engines import tiny_text
from tests.worker.engines.runs import end_of, finish
from worker.engines.base import EngineJob, Event, Failed, Finished, Left, Progress, TextOutput
from worker.engines.sampling import choose
from worker.engines.text import TextEngine
from worker.engines.wording import cut


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_text.model()


@pytest.fixture
def engine(model: Any) -> TextEngine:
    return TextEngine.from_model(tiny_text.spec(), model, tiny_text.tokenizer())


def text_job(job_id: str, **changes: Any) -> EngineJob:
    base = {"prompt": "a red circle", "max_tokens": 8, "temperature": 1.0, "seed": 1}
    return EngineJob(job_id, TextInput(**{**base, **changes}))


def written(events: list[Event]) -> TextOutput:
    end = end_of(events)
    assert isinstance(end, Finished), end
    assert end.text is not None
    return end.text


def run(engine: TextEngine, *jobs: EngineJob) -> dict[str, TextOutput]:
    engine.admit(jobs)
    return {job_id: written(events) for job_id, events in finish(engine).items()}


def generated(model: Any, prompt: str, count: int) -> str:
    tokenizer = tiny_text.tokenizer()
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    mask = torch.ones_like(ids)
    tokens = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)[0]
    return str(tokenizer.decode(tokens[ids.shape[1] :], skip_special_tokens=True))


def test_greedy_text_is_that_of_generate_with_requests_joining_on_the_way(engine: TextEngine, model: Any) -> None:
    prompts = ["a", "a red", "a red circle on", "the quick brown fox", "x" * 40, "blue"]
    jobs = [
        text_job(f"job{index}", prompt=prompt, temperature=0.0, max_tokens=4 + index)
        for index, prompt in enumerate(prompts)
    ]
    engine.admit(jobs[:2])

    def join(turn: int) -> None:
        if turn == 2:
            engine.admit(jobs[2:])

    events = finish(engine, join)
    for index, prompt in enumerate(prompts):
        text = written(events[f"job{index}"])
        assert text.text == generated(model, prompt, 4 + index)
        assert not text.text.startswith(prompt)
        assert text.prompt_tokens == len(prompt)


def test_a_text_depends_on_its_seed_and_not_on_its_neighbours(engine: TextEngine) -> None:
    asked = {"max_tokens": 24, "temperature": 1.3, "top_p": 0.9}
    alone = run(engine, text_job("a", **asked))["a"]
    crowd = [text_job(f"n{index}", prompt="x" * (index + 1), seed=index, max_tokens=30) for index in range(7)]
    together = run(engine, *crowd[:3], text_job("a", **asked), *crowd[3:])["a"]
    assert together == alone
    assert run(engine, text_job("a", **{**asked, "seed": 2}))["a"].text != alone.text


def test_text_ends_before_its_stop_string(engine: TextEngine) -> None:
    whole = run(engine, text_job("a", max_tokens=12))["a"]
    assert whole.finish_reason == "length"
    assert whole.completion_tokens == 12
    stop = whole.text[3:5]
    text = run(engine, text_job("a", max_tokens=12, stop=("never to be seen", stop)))["a"]
    assert text.text == whole.text[: whole.text.index(stop)]
    assert text.finish_reason == "stop"
    assert text.completion_tokens < 12
    assert cut("abcabc", ("c", "b")) == ("a", True)
    assert cut("abc", ("x",)) == ("abc", False)


def test_the_models_own_end_ends_the_text(engine: TextEngine, model: Any) -> None:
    weight = model.lm_head.weight
    with torch.no_grad():
        kept = weight[tiny_text.EOS].clone()
        weight[tiny_text.EOS] = weight[3:20].sum(dim=0) * 5  # an end that is likely sooner or later
    try:
        texts = run(engine, *(text_job(f"job{index}", seed=index, max_tokens=40) for index in range(6)))
    finally:
        with torch.no_grad():
            weight[tiny_text.EOS] = kept
    stopped = [text for text in texts.values() if text.finish_reason == "stop"]
    assert stopped
    assert all(text.completion_tokens <= 40 and "</s>" not in text.text for text in stopped)


def test_an_evicted_request_leaves_the_others_as_they_are(engine: TextEngine) -> None:
    alone = run(engine, text_job("b", seed=5, max_tokens=20))["b"]
    engine.admit([text_job("a", max_tokens=20), text_job("b", seed=5, max_tokens=20)])
    done: list[Left | None] = []

    def evict(turn: int) -> None:
        if turn == 4:
            done.append(engine.evict("a"))
            engine.admit([text_job("a", seed=3, max_tokens=4)])  # the same job may come back at once

    events = finish(engine, evict)
    assert [left.step for left in done if left] == [4]
    assert written(events["b"]) == alone
    assert written(events["a"]).completion_tokens == 4
    assert engine.evict("a") is None


def test_progress_receipts_and_slots(engine: TextEngine) -> None:
    assert engine.free_slots() == 8
    engine.admit([text_job("a", max_tokens=3), text_job("b", max_tokens=5)])
    assert engine.free_slots() == 6
    events = finish(engine)
    progress = [event for event in events["b"] if isinstance(event, Progress)]
    assert [(event.step, event.steps) for event in progress] == [(1, 5), (2, 5), (3, 5), (4, 5)]
    end = end_of(events["b"])
    assert isinstance(end, Finished)
    assert (end.receipt.forwards, end.receipt.batch_min, end.receipt.batch_max) == (5, 1, 2)
    assert end.receipt.gpu_ms > 0
    assert end.receipt.seed == 1
    assert engine.is_idle()
    assert engine.free_slots() == 8
    assert engine.step() == []


def test_messages_need_a_chat_template(engine: TextEngine) -> None:
    asked = TextInput(messages=(Message(role="user", content="hello"),), max_tokens=3, temperature=0.0, seed=0)
    engine.admit([EngineJob("a", asked)])
    end = end_of(finish(engine)["a"])
    assert isinstance(end, Failed)
    assert "chat template" in end.error.detail
    tokenizer = tiny_text.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    try:
        engine.admit([EngineJob("b", asked)])
        text = written(finish(engine)["b"])
    finally:
        tokenizer.chat_template = None
    assert text.prompt_tokens == len("user: hello\nassistant:")


def test_prompts_beyond_the_context_and_image_jobs_fail_alone(engine: TextEngine) -> None:
    engine.admit([text_job("long", prompt="x" * tiny_text.CONTEXT), text_job("fits", prompt="x" * 90, max_tokens=50)])
    engine.admit([EngineJob("image", ImageInput(prompt="x"))])
    events = finish(engine)
    assert isinstance(end_of(events["long"]), Failed)
    assert isinstance(end_of(events["image"]), Failed)
    assert written(events["fits"]).completion_tokens == tiny_text.CONTEXT - 90


def test_an_error_fails_the_culprit_alone(engine: TextEngine, model: Any) -> None:
    jobs = [text_job(f"job{index}", seed=index, max_tokens=10) for index in range(6)]
    alone = {job.job_id: run(engine, job)[job.job_id] for job in jobs}
    rows = engine._batch.sampler

    def fault(*_: Any) -> None:
        if any(name.startswith("job3#") and rows.dice[name]._drawn[4:] for name in rows.rows):
            raise ValueError("cannot go on with this one")

    hook = model.register_forward_pre_hook(fault)
    engine.admit(jobs)
    events = finish(engine)
    hook.remove()
    end = end_of(events["job3"])
    assert isinstance(end, Failed)
    assert "cannot go on" not in end.error.detail, "what a library says is for the operator"
    assert "cannot go on" in str(end.error.__cause__)
    others = [job.job_id for job in jobs if job.job_id != "job3"]
    assert {name: written(events[name]) for name in others} == {name: alone[name] for name in others}


def test_out_of_memory_fails_nobody_and_lowers_the_slots(engine: TextEngine, model: Any) -> None:
    jobs = [text_job(f"job{index}", seed=20 + index, max_tokens=6) for index in range(8)]
    alone = {job.job_id: run(engine, job)[job.job_id] for job in jobs}

    def limit(*_: Any) -> None:
        if len(engine._batch.sampler.rows) > 4:
            raise torch.OutOfMemoryError("no room")

    hook = model.register_forward_pre_hook(limit)
    assert run(engine, *jobs) == alone
    hook.remove()
    assert engine.free_slots() == 4


def test_deltas_of_a_streamed_text_are_its_beginning_whoever_shares_the_batch(engine: TextEngine) -> None:
    asked = {"max_tokens": 30, "temperature": 1.3, "seed": 9}
    plain = run(engine, text_job("a", **asked))["a"]
    stop = plain.text[20:22]
    jobs = [
        EngineJob(job.job_id, job.input, is_streamed=job.job_id != "quiet")
        for job in (
            text_job("a", **asked),
            text_job("quiet", seed=3, max_tokens=30),
            text_job("cut", **asked, stop=(stop,)),
        )
    ]
    engine.admit(jobs)
    events = finish(engine)
    for job_id in ("a", "cut"):
        whole, told = written(events[job_id]).text, ""
        for event in events[job_id][:-1]:
            assert isinstance(event, Progress)
            if event.delta is not None:
                assert event.delta.offset == len(told)
                told += event.delta.text
                assert whole.startswith(told)
        assert told
    assert written(events["a"]) == plain
    assert written(events["cut"]).text == plain.text[: plain.text.index(stop)]
    assert all(event.delta is None for event in events["quiet"] if isinstance(event, Progress))


def test_logprobs_are_those_of_the_model_itself(engine: TextEngine, model: Any) -> None:
    asked = {"max_tokens": 9, "temperature": 1.7, "top_p": 0.8}
    jobs = [
        text_job("three", **asked, logprobs=True, top_logprobs=3),
        text_job("plain", **asked, seed=2),
        text_job("own", prompt="the quick brown fox", **asked, seed=3, logprobs=True),
    ]
    texts = run(engine, *jobs)
    assert texts["plain"].tokens is None
    assert texts["three"].text == run(engine, jobs[0])["three"].text
    tokenizer = tiny_text.tokenizer()
    for job in (jobs[0], jobs[2]):
        told = texts[job.job_id].tokens
        assert isinstance(job.input, TextInput)
        assert told is not None
        assert len(told) == texts[job.job_id].completion_tokens
        prompt = tokenizer(job.input.prompt)["input_ids"]
        engine.admit([job])
        engine.step()
        seat = engine._seats[job.job_id]
        finish(engine)
        ids = torch.tensor([prompt + seat.tokens])
        with torch.inference_mode():
            known = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], dim=-1)
        for row, token, entry in zip(known, seat.tokens, told, strict=True):
            assert entry["token"] == tokenizer.decode([token])
            assert entry["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
            expected = row.topk(job.input.top_logprobs)
            assert [one["logprob"] for one in entry["top"]] == pytest.approx(expected.values.tolist(), abs=1e-4)
            assert [one["token"] for one in entry["top"]] == [tokenizer.decode([i]) for i in expected.indices.tolist()]


def test_logprobs_outlive_a_failed_step(engine: TextEngine, model: Any) -> None:
    job = text_job("a", max_tokens=8, logprobs=True, top_logprobs=1)
    alone, failures = run(engine, job)["a"], [4]

    def fault(*_: Any) -> None:
        failures[0] -= 1
        if failures[0] == 0:
            raise torch.OutOfMemoryError("once")

    hook = model.register_forward_pre_hook(fault)
    again = run(engine, job)["a"]
    hook.remove()
    assert again.tokens is not None
    assert alone.tokens is not None
    assert [token["token"] for token in again.tokens] == [token["token"] for token in alone.tokens]


def test_choice_follows_temperature_nucleus_and_number() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]]).repeat(4, 1)
    numbers = [0.999, 0.0, 0.999, 0.999]
    chosen = choose(logits, [0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.5, 1.0], numbers)
    assert chosen.tolist() == [1, 0, 1, 3]


def test_choice_has_the_distribution_of_softmax() -> None:
    logits = torch.tensor([[0.3, 1.2, -0.5]]).repeat(3000, 1)
    numbers = torch.linspace(0, 1, 3001, dtype=torch.float64)[:-1].tolist()
    chosen = choose(logits, [0.7] * 3000, [1.0] * 3000, numbers)
    shares = torch.bincount(chosen, minlength=3) / 3000
    assert torch.allclose(shares, torch.softmax(logits[0] / 0.7, dim=-1), atol=2e-3)
