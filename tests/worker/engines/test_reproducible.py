"""What a reproducible job promises: the same bits, whoever is on board. Others promise the same up to rounding."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from genmill.inputs import TextInput
from tests.worker.engines import tiny, tiny_text
from tests.worker.engines.runs import end_of, finish, image_job, pictures, together
from worker.engines.base import EngineJob, Event, Finished
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.engines.text import TextEngine


def company(count: int = 7) -> list[EngineJob]:
    return [image_job(f"other{index}", steps=3 + index % 4, guidance=4.0, seed=50 + index) for index in range(count)]


@pytest.fixture(params=[tiny.stable_diffusion, tiny.flux])
def pipe(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(params=[1, 2])
def engine(pipe: Any, request: pytest.FixtureRequest) -> Any:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe, Crew(request.param))
    yield engine
    engine.close()


def finished(events: list[Event]) -> Finished:
    end = end_of(events)
    assert isinstance(end, Finished)
    return end


def test_company_moves_no_bit_of_a_reproducible_picture(engine: DiffusionEngine) -> None:
    job = replace(image_job("mine", steps=5, seed=3, num_images=2), is_reproducible=True)
    alone = pictures(together(engine, [job])["mine"])
    events = together(engine, [*company(), job])
    assert all(torch.equal(one, other) for one, other in zip(pictures(events["mine"]), alone, strict=True))
    assert finished(events["mine"]).receipt.batch_max == 1
    assert finished(events["other0"]).receipt.batch_max == len(company())


def test_a_reproducible_picture_is_the_plain_one_up_to_rounding(engine: DiffusionEngine) -> None:
    job = image_job("mine", steps=5, seed=3)
    shared = pictures(together(engine, [*company(), job])["mine"])[0]
    by_itself = pictures(together(engine, [*company(), replace(job, is_reproducible=True)])["mine"])[0]
    assert float((shared - by_itself).abs().max()) < 1e-4


def test_deterministic_kernels_are_for_its_forwards_alone() -> None:
    pipe, modes = tiny.stable_diffusion(), []
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    pipe.unet.register_forward_hook(lambda *_: modes.append(torch.are_deterministic_algorithms_enabled()))
    together(engine, [image_job("other", steps=2), replace(image_job("mine", steps=2), is_reproducible=True)])
    assert sorted(modes) == [False, False, True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    engine.close()


def text_job(job_id: str, **changes: Any) -> EngineJob:
    return EngineJob(job_id, TextInput(**{"prompt": "a red circle", "max_tokens": 6, "seed": 1, **changes}))


def test_a_reproducible_text_is_written_alone_and_holds_up_nobody_for_ever() -> None:
    engine = TextEngine.from_model(tiny_text.spec(), tiny_text.model(), tiny_text.tokenizer())
    mine = replace(text_job("mine"), is_reproducible=True)
    engine.admit([text_job("before", max_tokens=4), mine, text_job("after", max_tokens=4)])
    ends = {job_id: finished(events) for job_id, events in finish(engine).items()}
    assert ends["mine"].receipt.batch_max == 1
    assert {job_id for job_id, end in ends.items() if end.text} == {"before", "mine", "after"}
    engine.admit([mine])
    again = finished(finish(engine)["mine"])
    assert again.text == ends["mine"].text
    engine.close()
