"""Adapters, masks and ControlNets from the API to the result: a real model on the floor, asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from redis import Redis

from api.app import create_app
from genmill.jobs import new_job_id
from genmill.registry import Registry, load_registry
from genmill.settings import Settings
from genmill.store import Store
from tests.api.pictures import data_uri
from tests.conftest import SettingsFactory
from tests.fleet import eventually
from tests.worker.doubles import FakeEngine
from tests.worker.engines import tiny
from tests.worker.engines.tiny_loras import controlnet, write_lora
from worker.engines.loader import load_engine
from worker.floor import Floor
from worker.residency import LOAD_RETRY_S

CLASSES = ["p0", "p1", "p2", "p3"]
MODELS = """
[[models]]
name = "tiny"
kind = "image"
source = "model"
defaults = { width = 32, height = 32, steps = 3, guidance = 3.0, seed = 1 }
limits = { min_size = 32 }
[models.adapters.ink]
source = "ink/pytorch_lora_weights.safetensors"
[models.adapters.gone]
source = "gone.safetensors"
[models.controlnets.canny]
source = "canny"
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    pipe = tiny.stable_diffusion()
    pipe.save_pretrained(folder / "model")
    controlnet(pipe.unet).save_pretrained(folder / "canny")
    write_lora(tiny.stable_diffusion, folder / "ink", seed=11, has_text=True)
    (folder / "models.toml").write_text(MODELS)
    return folder / "models.toml"


@pytest.fixture
def settings(make_settings: SettingsFactory, models: Path) -> Settings:
    return make_settings(models=models, auth=False)


@pytest.fixture
def registry(models: Path) -> Registry:
    return load_registry(models)


@pytest.fixture
def client(settings: Settings, redis: Redis) -> FlaskClient:
    return create_app(settings).test_client()


@pytest.fixture
def floor(store: Store, registry: Registry, settings: Settings) -> Iterator[Floor]:
    floor = Floor(store, registry, settings, load=lambda spec: load_engine(spec, device="cpu"))
    yield floor
    floor.close()


def png(image: Image.Image) -> str:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return data_uri(buffer.getvalue())


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))


def mask(corner: int = 16) -> Image.Image:
    image = Image.new("RGB", (64, 64))
    image.paste((255, 255, 255), (0, 0, 2 * corner, 2 * corner))
    return image


def submit(client: FlaskClient, **fields: Any) -> str:
    answer = client.post("/v1/jobs", json={"model": "tiny", "input": {"prompt": "a cat", **fields}})
    assert answer.status_code == 202, answer.text
    return str(answer.get_json()["id"])


def read(client: FlaskClient, job_id: str) -> dict[str, Any]:
    view: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").get_json()
    return view


def turn(floor: Floor) -> None:
    floor.turn_over("w", CLASSES, None, new_job_id())
    floor.step()
    floor.settle()


def run(floor: Floor, client: FlaskClient, *job_ids: str) -> list[dict[str, Any]]:
    """Turns until all have ended; their views."""

    def is_done() -> bool:
        turn(floor)
        return all(read(client, job_id)["ended_at"] for job_id in job_ids)

    eventually(is_done, every_s=0.001)
    return [read(client, job_id) for job_id in job_ids]


def pixels(client: FlaskClient, view: dict[str, Any]) -> np.ndarray[Any, Any]:
    assert view["state"] == "succeeded", view["error"]
    body = client.get(view["outputs"][0]["url"].removeprefix("http://127.0.0.1:8080")).data
    return np.asarray(Image.open(BytesIO(body)), dtype=np.float32)


def test_every_kind_of_job_runs_on_one_loaded_model(floor: Floor, client: FlaskClient) -> None:
    start, paint = png(noise()), png(mask())
    ids = [
        submit(client),
        submit(client, loras=[{"name": "ink", "weight": 0.8}]),
        submit(client, init_image=start, strength=0.9),
        submit(client, init_image=start, mask_image=paint, strength=0.9),
        submit(client, init_image=start, mask_image=paint, strength=0.9, loras=[{"name": "ink"}]),
        submit(client, control={"name": "canny", "image": start}),
        submit(client, control={"name": "canny", "image": start}, loras=[{"name": "ink"}]),
    ]
    views = run(floor, client, *ids)
    images = [pixels(client, view) for view in views]
    for one in range(len(images)):
        for other in range(one):
            assert np.abs(images[one] - images[other]).max() > 1, (one, other)
    assert len(floor.residents.stations()) == 1, "the sets share the model's weights"
    assert floor.residents.switches.total == 0
    assert views[1]["receipt"]["loras"] == [{"name": "ink", "weight": 0.8}]
    assert views[0]["receipt"]["loras"] == []
    shown = [view["input"] for view in views]
    assert (shown[3]["init_image"], shown[3]["mask_image"]) == ("stored", "stored")
    assert shown[5]["control"] == {"name": "canny", "image": "stored", "scale": 1.0}


def test_jobs_of_one_set_share_forwards_and_are_what_they_are_alone(floor: Floor, client: FlaskClient) -> None:
    ink = [{"name": "ink"}]
    ids = [submit(client, loras=ink, seed=seed) for seed in range(3)] + [submit(client, seed=9)]
    views = run(floor, client, *ids)
    assert [view["receipt"]["batch_max"] for view in views] == [3, 3, 3, 1]
    (alone,) = run(floor, client, submit(client, loras=ink, seed=1))
    assert np.abs(pixels(client, alone) - pixels(client, views[1])).max() <= 1


def test_only_white_of_the_mask_is_painted_anew(floor: Floor, client: FlaskClient) -> None:
    start = Image.new("RGB", (32, 32), (200, 40, 40))
    asked = {"init_image": png(start), "strength": 1.0, "steps": 4}
    black, corner = (png(Image.new("L", (32, 32))), png(mask()))
    kept, painted = (
        pixels(client, view)
        for view in run(
            floor, client, submit(client, **asked, mask_image=black), submit(client, **asked, mask_image=corner)
        )
    )
    changed = np.abs(kept - painted).max(axis=2)
    # the decoder's random weights spread some of it over the whole picture
    assert changed[:12, :12].mean() > 2 * changed[24:, 24:].mean()


def test_a_missing_adapter_puts_its_jobs_off_and_no_others(
    floor: Floor, client: FlaskClient, store: Store, redis: Redis
) -> None:
    lost, fine = submit(client, loras=[{"name": "gone"}]), submit(client, loras=[{"name": "ink"}])
    (view,) = run(floor, client, fine)
    assert view["state"] == "succeeded"
    record = store.get(lost)
    assert record is not None
    assert (record.state.value, redis.zcard("rq:scheduled:p1")) == ("queued", 1)
    assert redis.hget(f"rq:job:{lost}", "postponed") == b"1"
    assert record.error is not None
    assert record.error["code"] == "model_unavailable"
    assert record.error["message"].endswith("it could not be loaded; the worker's log tells why")
    again = submit(client, loras=[{"name": "gone", "weight": 0.5}])
    for _ in range(3):
        turn(floor)
    record = store.get(again)
    assert record is not None
    assert record.fence == 0, "left to workers that have the adapter"
    now_s = floor.residents._clock() + LOAD_RETRY_S
    floor.residents._clock = lambda: now_s
    turn(floor)
    turn(floor)
    record = store.get(again)
    assert record is not None
    assert record.fence == 1, "tried again"


def test_jobs_with_adapters_for_an_engine_that_takes_none_fail_at_once(
    client: FlaskClient, store: Store, registry: Registry, settings: Settings
) -> None:
    floor = Floor(store, registry, settings, load=lambda _spec: FakeEngine())
    for loras in ([{"name": "ink"}], [{"name": "ink", "weight": 0.5}]):
        (view,) = run(floor, client, submit(client, loras=loras))
        assert view["error"]["code"] == "invalid_job"
        assert "model tiny runs in step batches, which take no loras" in view["error"]["message"]
    floor.close()
