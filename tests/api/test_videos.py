"""A model of videos over HTTP: no previews, and answers that say what they hold."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from api.services import Services
from genmill.settings import Settings
from genmill.store import Store
from tests.api.conftest import Caller, finish_one
from tests.api.pictures import picture
from tests.conftest import SettingsFactory
from tests.fleet import eventually

MODELS = """
[[models]]
name = "film"
kind = "image"
source = "none"
description = "A model of videos."
defaults = { width = 64, height = 64 }
limits = { max_frames = 17, frame_factor = 4, max_fps = 30 }
"""


@pytest.fixture
def settings(make_settings: SettingsFactory, tmp_path: Path) -> Settings:
    (tmp_path / "models.toml").write_text(MODELS)
    return make_settings(models=tmp_path / "models.toml")


def film(**fields: Any) -> dict[str, Any]:
    return {"model": "film", "input": {"prompt": "a cat", **fields}, "preview": True}


def test_a_video_has_no_preview_and_says_so(alice: Caller) -> None:
    refused = alice("POST", "/v1/jobs", json=film(num_frames=9))
    assert refused.status_code == 422
    assert refused.json["errors"] == [
        {
            "pointer": "/preview", "detail": "preview is of pictures, not of a video of 9 frames", "limit": "1 frame",
            "value": "true",
        }
    ]  # fmt: skip
    assert alice("POST", "/v1/jobs", json=film(num_frames=1)).status_code == 202


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_openais_answer_names_the_type_that_it_holds(kind: str, alice: Caller, app: Flask, store: Store) -> None:
    found: Services = app.extensions["genmill"]
    key = f"outputs/x/0.{kind}"
    found.storage.put(key, picture(kind=kind.upper()), f"image/{kind}")
    result = {"outputs": [{"key": key, "content_type": f"image/{kind}", "bytes": 9}], "receipt": {}}
    batch_key = found.registry.get("film").batch_key
    worker = threading.Thread(target=lambda: finish_one(store, batch_key, result))
    threading.Thread(target=lambda: eventually(lambda: store.list_ids("alice", None, 9)) and worker.start()).start()
    answer = alice("POST", "/v1/images/generations", json={"prompt": "a cat"})
    worker.join(5)
    assert (answer.status_code, answer.json["output_format"]) == (200, kind)
