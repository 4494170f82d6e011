"""Adapters, masks and ControlNets over HTTP: checked before anything is stored, shown by the model and the job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from openapi_spec_validator import OpenAPIV31SpecValidator
from PIL import Image

from api.services import Services
from genmill.batches import LineParts
from genmill.errors import StorageUnavailable
from genmill.settings import Settings
from genmill.storage import FolderStorage
from genmill.store import Store
from scheduler.batch_round import BatchRound
from tests.api.conftest import Caller
from tests.api.pictures import bomb, data_uri, picture
from tests.conftest import SettingsFactory

MODELS = """
[[models]]
name = "sketch"
kind = "image"
source = "none"
description = "A model with extras."
defaults = { width = 64, height = 64 }
[models.adapters.ink]
source = "/weights/ink.safetensors"
[models.controlnets.canny]
source = "/weights/canny"
"""
RED = data_uri(picture())


@pytest.fixture
def settings(make_settings: SettingsFactory, tmp_path: Path) -> Settings:
    (tmp_path / "models.toml").write_text(MODELS)
    return make_settings(models=tmp_path / "models.toml", max_image_bytes=200_000, max_image_pixels=512 * 512)


def job(**fields: Any) -> dict[str, Any]:
    return {"model": "sketch", "input": {"prompt": "a cat", **fields}}


def stored_image(app: Flask, key: str) -> Image.Image:
    services: Services = app.extensions["genmill"]
    return Image.open(BytesIO(services.storage.get(key).body))


def test_mask_and_image_are_stored_at_the_jobs_size(alice: Caller, app: Flask, store: Store) -> None:
    white = data_uri(picture((200, 100), mode="L", colour="white"))
    answer = alice("POST", "/v1/jobs", json=job(init_image=RED, mask_image=white, width=96))
    assert answer.status_code == 202, answer.text
    assert (answer.json["input"]["init_image"], answer.json["input"]["mask_image"]) == ("stored", "stored")
    record = store.get(answer.json["id"])
    assert record is not None
    keys = [record.request["input"][name] for name in ("init_image", "mask_image")]
    assert keys == [f"inputs/{record.job_id}/{role}.png" for role in ("init", "mask")]
    init, mask = (stored_image(app, key) for key in keys)
    assert (init.mode, init.size, mask.mode, mask.size) == ("RGB", (96, 64), "L", (96, 64))
    assert mask.getextrema() == (255, 255)


def test_the_image_of_a_control_may_be_a_file(alice: Caller, app: Flask, store: Store) -> None:
    uploaded = alice("POST", "/v1/files", data={"content": (BytesIO(picture()), "a.png")}).json
    control = {"name": "canny", "image": f"file:{uploaded['id']}", "scale": 0.5}
    answer = alice("POST", "/v1/jobs", json=job(control=control))
    assert answer.status_code == 202, answer.text
    assert answer.json["input"]["control"] == {"name": "canny", "image": "stored", "scale": 0.5}
    record = store.get(answer.json["id"])
    assert record is not None
    key = record.request["input"]["control"]["image"]
    assert key == f"inputs/{record.job_id}/control.png"
    assert stored_image(app, key).getpixel((0, 0)) == (255, 0, 0)


def test_adapters_part_the_lanes(alice: Caller, store: Store) -> None:
    asked = [job(), job(loras=[{"name": "ink"}]), job(loras=[{"name": "ink", "weight": 1}])]
    answers = [alice("POST", "/v1/jobs", json=body).json for body in asked]
    records = [store.get(answer["id"]) for answer in answers]
    assert [record.batch_key for record in records if record] == [
        "sketch@1/auto", "sketch@1/auto+ink=1.0", "sketch@1/auto+ink=1.0",
    ]  # fmt: skip
    assert [record.model for record in records if record] == ["sketch"] * 3
    assert answers[2]["position"] == 1


CONTROL = {"name": "canny", "image": RED}

# body, code, pointer, words of the limit, words of the value
BAD: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "unknown adapter": (job(loras=[{"name": "x"}]), "invalid_request", "/input/loras/0/name", "ink", "x"),
    "weight": (job(loras=[{"name": "ink", "weight": 3}]), "invalid_request", "/input/loras/0/weight", "-2..2", "3"),
    "no name": (job(loras=[{}]), "invalid_request", "/input/loras/0/name", "", ""),
    "no list": (job(loras="ink"), "invalid_request", "/input/loras", "", "ink"),
    "unknown field": (job(loras=[{"name": "ink", "a": 1}]), "invalid_request", "/input/loras/0/a", "", "1"),
    "twice": (job(loras=[{"name": "ink"}] * 2), "invalid_request", "/input/loras/1/name", "once", "ink"),
    "mask alone": (job(mask_image=RED), "invalid_request", "/input/mask_image", "with init_image", "without"),
    "mask a bomb": (
        job(init_image=RED, mask_image=data_uri(bomb())), "invalid_image", "/input/mask_image", "pixels", "pixels",
    ),
    "mask loopback": (
        job(init_image=RED, mask_image="http://127.0.0.1/x"), "url_not_allowed", "/input/mask_image", "global", "127",
    ),
    "mask a key": (
        job(init_image=RED, mask_image="inputs/x"), "invalid_image", "/input/mask_image", "data URI", "inputs/x",
    ),
    "unknown control": (
        job(control={**CONTROL, "name": "pose"}), "invalid_request", "/input/control/name", "canny", "pose",
    ),
    "control scale": (job(control={**CONTROL, "scale": 9}), "invalid_request", "/input/control/scale", "2", "9"),
    "control no image": (job(control={"name": "canny"}), "invalid_request", "/input/control/image", "", ""),
    "control of an image": (
        job(control=CONTROL, init_image=RED), "invalid_request", "/input/control", "without init_image", "with",
    ),
    "control a key": (
        job(control={**CONTROL, "image": "x"}), "invalid_image", "/input/control/image", "data URI", "x",
    ),
    "control no file": (
        job(control={**CONTROL, "image": "file:x"}), "invalid_image", "/input/control/image", "POST /v1/files", "x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_extras_name_field_limit_and_value(name: str, alice: Caller, stored: Callable[[], set[str]]) -> None:
    body, code, pointer, limit, value = BAD[name]
    before = stored()
    answer = alice("POST", "/v1/jobs", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json["error"]["code"] == code
    (fault,) = answer.json["errors"]
    assert fault["pointer"] == pointer
    assert limit in fault.get("limit", "")
    assert value in fault.get("value", "")
    assert stored() == before


def test_a_storage_that_goes_away_between_two_images_keeps_none(
    alice: Caller, stored: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = FolderStorage.put

    def fail_at_mask(self: FolderStorage, key: str, body: bytes, content_type: str) -> None:
        if key.endswith("mask.png"):
            raise StorageUnavailable("gone")
        put(self, key, body, content_type)

    monkeypatch.setattr(FolderStorage, "put", fail_at_mask)
    before = stored()
    assert alice("POST", "/v1/jobs", json=job(init_image=RED, mask_image=RED)).status_code == 503
    assert stored() == before


def test_images_of_a_line_go_with_its_batch_and_with_one_that_resumes_it(
    alice: Caller, app: Flask, store: Store
) -> None:
    services: Services = app.extensions["genmill"]
    white, parts = data_uri(picture(mode="L", colour="white")), LineParts(services.storage)
    bodies = [job(init_image=RED, mask_image=white), job(control=CONTROL, loras=[{"name": "ink"}])]
    rows = b"\n".join(json.dumps({"custom_id": f"c{n}", **body}).encode() for n, body in enumerate(bodies))
    batch_id = alice("POST", "/v1/batches", data=rows, headers={"content-type": "application/x-ndjson"}).json["id"]
    turn = BatchRound(
        store, services.storage, services.registry, services.settings, leads=lambda: True, collect_every_s=0
    ).turn
    turn()
    assert [stored_roles(line.input) for line in parts.all(batch_id)] == [
        {"init_image": f"batches/{batch_id}/inputs/1-init.png", "mask_image": f"batches/{batch_id}/inputs/1-mask.png"},
        {"control": f"batches/{batch_id}/inputs/2-control.png"},
    ]
    records = [store.get(f"{batch_id}-{number}") for number in (1, 2)]
    assert [record.batch_key for record in records if record] == ["sketch@1/auto", "sketch@1/auto+ink=1.0"]

    alice("POST", f"/v1/batches/{batch_id}/cancel")
    while alice("GET", f"/v1/batches/{batch_id}").json["status"] != "cancelled":
        turn()
    again = alice("POST", "/v1/batches", json={"resume_of": batch_id}).json["id"]
    assert again != batch_id
    services.storage.delete_prefix(f"batches/{batch_id}")
    for line, roles in zip(parts.all(again), (("init_image", "mask_image"), ("control",)), strict=True):
        places = stored_roles(line.input)
        assert tuple(places) == roles
        assert all(stored_image(app, place).size == (64, 64) for place in places.values())


def stored_roles(given: Mapping[str, Any]) -> dict[str, str]:
    """Where the images of an input lie, by its fields."""
    control = given["control"] and given["control"]["image"]
    places = {"init_image": given["init_image"], "mask_image": given["mask_image"], "control": control}
    return {name: place for name, place in places.items() if place}


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [({"init_image": RED, "mask_image": "https://a.test/x"}, "/input/mask_image"),
     ({"control": {"name": "canny", "image": "http://a.test/x"}}, "/input/control/image")],
)  # fmt: skip
def test_urls_of_a_line_are_not_fetched(
    fields: dict[str, Any], pointer: str, alice: Caller, stored: Callable[[], set[str]]
) -> None:
    before = stored()
    row = json.dumps({"custom_id": "c", **job(**fields)}).encode()
    answer = alice("POST", "/v1/batches", data=row, headers={"content-type": "application/x-ndjson"})
    (fault,) = answer.json["errors"]
    assert (fault["line"], fault["pointer"], fault["limit"]) == (1, pointer, "data: or file:")
    assert fault["value"].endswith("://a.test/x")
    assert stored() == before


def test_the_model_tells_what_it_has_and_not_where(alice: Caller) -> None:
    view = alice("GET", "/v1/models/sketch").json
    assert (view["adapters"], view["controlnets"]) == (["ink"], ["canny"])
    assert {"loras", "control", "mask_image"} <= set(view["input_schema"]["properties"])
    assert set(view["input_schema"]["$defs"]) == {"Lora", "Control", "SchedulerName"}
    assert view["limits"]["max_loras"] == 2
    assert "/weights" not in str(view)


def test_a_version_in_replicates_terms_describes_the_extras(alice: Caller) -> None:
    (version,) = alice("GET", "/v1/models/any/sketch/versions").json["results"]
    document = version["openapi_schema"]
    OpenAPIV31SpecValidator(document).validate()
    parts = document["components"]["schemas"]
    assert set(parts) == {"Input", "Output", "Lora", "Control", "SchedulerName"}
    assert parts["Input"]["properties"]["loras"]["items"] == {"$ref": "#/components/schemas/Lora"}


def test_a_prediction_may_have_a_mask_and_extras(alice: Caller, app: Flask, store: Store) -> None:
    path, asked = "/v1/models/any/sketch/predictions", {"prompt": "a cat", "image": RED, "mask": RED}
    created = alice("POST", path, json={"input": {**asked, "loras": [{"name": "ink"}]}})
    assert created.status_code == 201, created.text
    record = store.get(created.json["id"])
    assert record is not None
    assert stored_image(app, record.request["input"]["mask_image"]).mode == "L"
    assert record.batch_key == "sketch@1/auto+ink=1.0"
    assert "inputs/" not in str(created.json["input"])
    refused = alice("POST", path, json={"input": {**asked, "mask": "x"}})
    assert (refused.status_code, refused.json["errors"][0]["pointer"]) == (422, "/input/mask")


def test_the_document_describes_the_extras(alice: Caller) -> None:
    document = alice("GET", "/openapi.json").json
    OpenAPIV31SpecValidator(document).validate()
    schemas = document["components"]["schemas"]
    assert set(schemas["ImageInput"]["properties"]) >= {"loras", "mask_image", "control"}
    assert set(schemas["Lora"]["properties"]) == {"name", "weight"}
    assert set(schemas["Control"]["properties"]) == {"name", "image", "scale"}
