"""What takes milliseconds is not done by the thread that steps the engines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.store import Store
from tests.conftest import SettingsFactory
from tests.worker.engines import tiny, tiny_static
from tests.worker.loading import all_done, registry_of, run_until
from worker.engines import pictures, previews
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.engines.images import image_engine
from worker.floor import Floor


@pytest.mark.parametrize("build", [tiny.stable_diffusion, tiny_static.painter])
def test_pixels_are_not_made_on_the_loop(
    build: Any, store: Store, make_settings: SettingsFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = registry_of(tmp_path, "a", limits="{ min_size = 8 }").get("a")
    registry = registry_of(tmp_path, "a").model_copy(update={"models": (spec,)})
    makers: list[tuple[str, str]] = []

    def noted(place: Any, name: str) -> None:
        real = getattr(place, name)

        def note(*given: Any, **more: Any) -> Any:
            makers.append((name, threading.current_thread().name))
            return real(*given, **more)

        monkeypatch.setattr(place, name, note)

    noted(pictures, "as_output")
    noted(previews.LatentMap, "learn")
    noted(Image.Image, "save")
    noted(Image, "fromarray")
    floor = Floor(store, registry, make_settings(), load=lambda _: image_engine(spec, build()))
    asked = {"prompt": "a red circle", "width": 32, "height": 32, "steps": 2, "num_images": 2}
    ids = [store.submit(JobRequest(new_job_id(), "t", spec, spec.parse_input(asked)))[0] for _ in range(3)]
    run_until(floor, lambda: all_done(store, ids))
    floor.close()
    assert sum(name == "as_output" for name, _ in makers) == 6
    assert [(name, thread) for name, thread in makers if not thread.startswith("encode")] == []


def test_a_picture_of_no_numbers_fails_its_job_alone_and_is_charged(
    store: Store, make_settings: SettingsFactory, tmp_path: Path
) -> None:
    spec = registry_of(tmp_path, "a", limits="{ min_size = 8 }").get("a")
    registry = registry_of(tmp_path, "a").model_copy(update={"models": (spec,)})
    pipe = tiny.stable_diffusion()
    decode, decoded_before = pipe.vae.decode, list[int]()

    def spoiled(*given: Any, **more: Any) -> Any:
        decoded = decode(*given, **more)
        if not decoded_before:
            decoded[0][:1] = torch.nan
        decoded_before.append(1)
        return decoded

    pipe.vae.decode = spoiled
    floor = Floor(store, registry, make_settings(), load=lambda _: DiffusionEngine.from_pipeline(spec, pipe, Crew(1)))
    asked = [{"prompt": "a", "width": 32, "height": 32, "steps": 2, "seed": seed} for seed in (1, 2)]
    ids = [store.submit(JobRequest(new_job_id(), "t", spec, spec.parse_input(one)))[0] for one in asked]

    def ended() -> bool:
        return all(record and record.state.is_terminal for record in store.get_many(ids))

    run_until(floor, ended)
    floor.close()
    records = [record for record in store.get_many(ids) if record]
    (bad,) = [record for record in records if record.state is not JobState.SUCCEEDED]
    assert bad.state is JobState.FAILED
    assert bad.error is not None
    assert bad.error["code"] == "output_invalid"
