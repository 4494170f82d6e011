"""Memory that runs out and prompts that poison, from the claim to the commit, with the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genmill.jobs import JobRecord, JobRequest, JobState, new_job_id
from genmill.keeping import outputs_folder
from genmill.registry import ModelSpec
from genmill.store import Store
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.worker.engines import tiny
from tests.worker.loading import CLASSES, registry_of
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.floor import Floor

BAD = "poison"


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return registry_of(tmp_path, "a", limits="{ min_size = 8 }").get("a").model_copy(update={"max_batch": 16})


@pytest.fixture
def pipe() -> Any:
    return tiny.stable_diffusion()


@pytest.fixture
def floor(store: Store, spec: ModelSpec, pipe: Any, make_settings: SettingsFactory, tmp_path: Path) -> Iterator[Floor]:
    registry = registry_of(tmp_path, "a").model_copy(update={"models": (spec,)})
    floor = Floor(store, registry, make_settings(), load=lambda _: DiffusionEngine.from_pipeline(spec, pipe, Crew(1)))
    yield floor
    floor.close()


def submit(store: Store, spec: ModelSpec, number: int, prompt: str = "a red circle") -> str:
    asked = {"prompt": prompt, "width": 32, "height": 32, "steps": 2 + number % 3, "guidance": 3.0, "seed": number}
    return store.submit(JobRequest(new_job_id(), "t", spec, spec.parse_input(asked)))[0]


def run_all(floor: Floor, store: Store, ids: list[str]) -> list[JobRecord]:
    def is_over() -> bool:
        floor.turn_over("w", CLASSES, None, new_job_id())
        floor.step()
        return all(record and record.state.is_terminal for record in store.get_many(ids))

    eventually(is_over, every_s=0.0, within_s=60)
    return [record for record in store.get_many(ids) if record]


def picture_of(folder: Path, record: JobRecord) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(folder / outputs_folder(record.job_id) / "1" / "0.png")).astype(float) / 255


def refuse(pipe: Any, why: Callable[[dict[str, Any]], Exception | None]) -> None:
    def check(_: object, _args: object, given: dict[str, Any]) -> None:
        if (error := why(given)) is not None:
            raise error

    pipe.unet.register_forward_pre_hook(check, with_kwargs=True)


def test_memory_that_holds_four_rows_lets_all_finish_and_charges_no_attempt(
    floor: Floor, store: Store, spec: ModelSpec, pipe: Any
) -> None:
    sizes: list[int] = []

    def short(given: dict[str, Any]) -> Exception | None:
        sizes.append(len(given["sample"]))
        return torch.OutOfMemoryError("no room") if sizes[-1] > 4 else None

    refuse(pipe, short)
    ids = [submit(store, spec, number) for number in range(16)]
    records = run_all(floor, store, ids)
    assert [record.state for record in records] == [JobState.SUCCEEDED] * 16
    assert {record.fence for record in records} == {1}
    crashes = [store.redis.hmget(f"rq:job:{job_id}", "crashes", "postponed") for job_id in ids]
    assert all(not int(value or 0) for pair in crashes for value in pair)
    (station,) = floor.residents.stations()
    engine = station._engine
    assert isinstance(engine, DiffusionEngine)
    assert engine.learnt_caps()["4x16x16"] in (4, 5)  # a row more after twenty that fitted
    assert [size for size in sizes if size > 4] == [32, 16, 8]


def test_one_poisoned_prompt_of_sixteen_leaves_fifteen_as_they_would_be_alone(
    floor: Floor, store: Store, spec: ModelSpec, pipe: Any, tmp_path: Path
) -> None:
    poison, _ = pipe.encode_prompt(BAD, "cpu", 1, False)

    def poisoned(given: dict[str, Any]) -> Exception | None:
        far = (given["encoder_hidden_states"] - poison).abs().amax(dim=(1, 2))
        return ValueError("cannot read this prompt") if bool((far < 1e-4).any()) else None

    expected = [
        pipe(
            "a red circle", width=32, height=32, num_inference_steps=2 + n % 3, guidance_scale=3.0, output_type="np",
            generator=torch.Generator().manual_seed(n),
        ).images[0]
        for n in range(16)
    ]  # fmt: skip
    refuse(pipe, poisoned)
    ids = [submit(store, spec, n, BAD if n == 5 else "a red circle") for n in range(16)]
    records = run_all(floor, store, ids)
    bad = records.pop(5)
    expected.pop(5)
    assert bad.state is JobState.FAILED
    told = "the model raised ValueError while it worked on this job; it is logged"
    assert bad.error == {"code": "generation_failed", "message": told}
    for record, picture in zip(records, expected, strict=True):
        assert record.state is JobState.SUCCEEDED
        assert np.abs(picture_of(tmp_path / "outputs", record) - picture).max() <= 0.5 / 255 + 1e-4
