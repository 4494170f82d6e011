"""A video from the request's body to the stored file, by the real engine of a model with random weights."""

from __future__ import annotations

import io
import uuid
from typing import Any

import numpy as np
import pytest
from PIL import Image

from genmill.input_limits import Limits
from genmill.jobs import JobRequest, JobState, new_job_id
from genmill.links import Links
from genmill.registry import ModelSpec, Registry
from genmill.storage import open_storage
from genmill.store import Store
from genmill.views import job_view
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.worker.engines import tiny_static, tiny_video
from worker.engines.images import image_engine
from worker.floor import Floor

FILM = ModelSpec(
    name="film", kind="image", source="in memory", max_batch=4,
    defaults={"width": 32, "height": 32, "steps": 3, "guidance": 3.0, "num_frames": 9},
    limits=Limits(min_size=32, max_size=64, max_frames=17, frame_factor=4),
)  # fmt: skip


@pytest.mark.parametrize(("build", "frames"), [(tiny_video.wan, 9), (tiny_static.painter, 1)])
def test_a_job_is_served_whole(build: Any, frames: int, store: Store, make_settings: SettingsFactory) -> None:
    settings = make_settings()
    floor = Floor(store, Registry(models=(FILM,)), settings, load=lambda spec: image_engine(spec, build()))
    raw = {"prompt": "a red circle", "seed": 5, "num_images": 2, "num_frames": frames}
    jobs = [store.submit(JobRequest(new_job_id(), "a", FILM, FILM.parse_input(raw)))[0] for _ in range(2)]

    def turn() -> bool:
        floor.turn_over("w", ["p1"], None, uuid.uuid4().hex)
        floor.step()
        floor.settle()
        return all(record and record.state.is_terminal for record in store.get_many(jobs))

    eventually(turn, every_s=0.001)
    floor.close()
    records = [record for record in store.get_many(jobs) if record]
    assert [record.state for record in records] == [JobState.SUCCEEDED] * 2
    storage = open_storage(settings)
    first, second = ([storage.get(output["key"]) for output in record.result["outputs"]] for record in records)
    assert [one.body for one in first] == [other.body for other in second]  # the same seed, the same bytes
    view = job_view(records[0], Links(settings))
    for shown, stored in zip(view["outputs"], first, strict=True):
        with Image.open(io.BytesIO(stored.body)) as opened:
            assert getattr(opened, "n_frames", 1) == frames == shown.get("frames", 1)
            assert np.asarray(opened.convert("RGB")).std() > 1
        assert shown["content_type"] == stored.content_type == ("image/webp" if frames > 1 else "image/png")
    assert view["receipt"]["batch_max"] == 4
