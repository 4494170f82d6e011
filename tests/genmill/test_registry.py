"""Models and their inputs: defaults, limits, and what a wrong input is told."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmill.errors import InvalidRequest, SettingsInvalid, UnknownModel
from genmill.input_limits import Limits
from genmill.inputs import ImageInput, TextInput
from genmill.registry import BUILTIN_MODELS, ModelSpec, Registry, load_registry

REGISTRY = load_registry()


def test_names_and_aliases_find_a_model_and_others_name_what_there_is() -> None:
    assert REGISTRY.get("shapes-64") is REGISTRY.get("shapes")
    with pytest.raises(UnknownModel, match="known: shapes, captions"):
        REGISTRY.get("sdxl")


def test_defaults_of_the_model_fill_what_is_not_given() -> None:
    image = REGISTRY.get("shapes").parse_input({"prompt": "x"})
    assert isinstance(image, ImageInput)
    assert (image.width, image.steps, image.guidance) == (64, 20, 4.0)
    text = REGISTRY.get("captions").parse_input({"messages": [{"role": "user", "content": "a red"}]})
    assert isinstance(text, TextInput)
    assert (text.prompt, text.max_tokens) == (None, 16)


def test_a_seed_is_drawn_once_and_kept() -> None:
    image = REGISTRY.get("shapes").parse_input({"prompt": "x"})
    assert ImageInput.model_validate(image.model_dump(mode="json")) == image


@pytest.mark.parametrize(
    ("raw", "pointer", "limit", "value"),
    [
        ({"steps": 0}, "/input/steps", "1..100", "0"),
        ({"steps": 10_000}, "/input/steps", "1..100", "10000"),
        ({"width": 65}, "/input/width", "multiple of 8", "65"),
        ({"height": 4096}, "/input/height", "64..128", "4096"),
        ({"guidance": 31.0}, "/input/guidance", "0..20.0", "31.0"),
        ({"num_images": 5}, "/input/num_images", "1..4", "5"),
        ({"prompt": "x" * 2001}, "/input/prompt", "2000 characters", "2001 characters"),
        ({"seed": -1}, "/input/seed", "0", "-1"),
        ({"init_image": "k", "strength": 0.01}, "/input/strength", ">= 1/20", "0.01"),
    ],
)
def test_a_wrong_image_input_names_field_limit_and_value(
    raw: dict[str, Any], pointer: str, limit: str, value: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        REGISTRY.get("shapes").parse_input({"prompt": "x", **raw})
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.limit, fault.value) == (pointer, limit, value)


def test_a_field_that_is_none_is_told_with_those_that_are() -> None:
    with pytest.raises(InvalidRequest) as caught:
        REGISTRY.get("captions").parse_input({"prompt": "x", "steps": 4})
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.value) == ("/input/steps", "4")
    assert fault.detail == f"steps: there is no such field; there are {fault.limit}"
    assert {"prompt", "max_tokens"} < set(str(fault.limit).split(", "))


def test_text_wants_one_source() -> None:
    for raw in ({}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, {"messages": []}):
        with pytest.raises(InvalidRequest):
            REGISTRY.get("captions").parse_input(raw)


@given(st.dictionaries(st.sampled_from([*ImageInput.model_fields, "other"]), st.none() | st.integers() | st.text()))
def test_no_input_raises_anything_but_invalid_request(raw: dict[str, Any]) -> None:
    for model in ("shapes", "captions"):
        with suppress(InvalidRequest):
            assert REGISTRY.get(model).cost_ms(REGISTRY.get(model).parse_input(raw)) > 0


def test_every_number_is_finite() -> None:
    for name in ("guidance", "strength"):
        with pytest.raises(InvalidRequest):
            REGISTRY.get("shapes").parse_input({"prompt": "x", name: float("nan")})


def test_a_broken_models_file_stops_the_start_with_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[[models]]\nname = "A b"\nkind = "video"\nsource = "x"\n')
    with pytest.raises(SettingsInvalid) as caught:
        load_registry(path)
    assert "name" in caught.value.detail
    assert "kind" in caught.value.detail
    with pytest.raises(SettingsInvalid, match="nowhere"):
        load_registry(tmp_path / "nowhere.toml")


def test_a_copy_of_the_shipped_file_serves_the_shipped_models(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(BUILTIN_MODELS.read_text())
    assert load_registry(path) == REGISTRY
    assert all(Path(spec.source).is_dir() for spec in load_registry(path).models)


def test_a_folder_beside_the_file_goes_before_a_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(BUILTIN_MODELS.read_text())
    (tmp_path / "captions").mkdir()
    assert load_registry(path).get("captions").source == str(tmp_path / "captions")
    assert load_registry(path).get("shapes").source == REGISTRY.get("shapes").source


def test_sources_that_are_nowhere_are_refused_at_once_with_every_other_fault(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    sources = {"one": "captionz", "two": "", "three": "somebody/captions", "four": "./later", "five": "none"}
    entries = [f'[[models]]\nname = "{name}"\nkind = "text"\nsource = "{at}"\n' for name, at in sources.items()]
    path.write_text("".join(entries))
    with pytest.raises(SettingsInvalid) as caught:
        load_registry(path)
    detail = caught.value.detail
    assert detail.startswith(f"models file {path}: model one: source must be a folder in {tmp_path} or ")
    assert re.findall(r"model (\w+): .*?got ('\w*')", detail) == [("one", "'captionz'"), ("two", "''")]

    path.write_text("".join(entries) + "max_batch = 0\n")
    with pytest.raises(SettingsInvalid, match=r"max_batch.*captionz"):
        load_registry(path)


def test_names_used_twice_are_refused() -> None:
    entry = {"name": "a", "kind": "image", "source": "x"}
    with pytest.raises(ValueError, match="used twice: a"):
        Registry.model_validate({"models": [entry, {**entry, "name": "b", "aliases": ["a"]}]})


FILM = ModelSpec(
    name="film", kind="image", source="x", defaults={"num_frames": 9, "width": 64, "height": 64},
    limits=Limits(max_frames=33, frame_factor=8, max_fps=30), cost_per_step_ms=10.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "pointer", "limit", "value"),
    [
        ({"num_frames": 41}, "/input/num_frames", "1..33", "41"),
        ({"num_frames": 0}, "/input/num_frames", "1..33", "0"),
        ({"num_frames": 10}, "/input/num_frames", "1 + multiple of 8", "10"),
        ({"fps": 31}, "/input/fps", "1..30", "31"),
        ({"fps": 0}, "/input/fps", "1..30", "0"),
    ],
)
def test_a_wrong_video_is_told_what_fits(raw: dict[str, Any], pointer: str, limit: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        FILM.parse_input({"prompt": "x", **raw})
    assert (pointer, limit, value) in [(fault.pointer, fault.limit, fault.value) for fault in caught.value.faults]


def test_a_video_has_a_speed_and_costs_by_its_frames() -> None:
    usual, long = FILM.parse_input({"prompt": "x"}), FILM.parse_input({"prompt": "x", "num_frames": 33, "fps": 24})
    assert isinstance(usual, ImageInput)
    assert isinstance(long, ImageInput)
    assert (usual.num_frames, usual.fps, long.fps) == (9, 16, 24)
    assert FILM.cost_ms(usual) == 10.0 * usual.steps
    assert FILM.cost_ms(long) == pytest.approx(33 / 9 * FILM.cost_ms(usual))


def test_a_single_frame_has_no_speed() -> None:
    image = FILM.parse_input({"prompt": "x", "num_frames": 1})
    assert isinstance(image, ImageInput)
    assert image.fps is None


def test_a_model_of_single_images_takes_no_speed() -> None:
    with pytest.raises(InvalidRequest, match="fps is for videos, the model makes single images, got 24"):
        REGISTRY.get("shapes").parse_input({"prompt": "x", "fps": 24})


def test_what_comes_from_the_job_is_no_argument_of_the_model() -> None:
    with pytest.raises(ValueError, match="these come from the job: guidance_scale, prompt"):
        ModelSpec(name="m", kind="image", source="x", arguments={"prompt": "x", "guidance_scale": 1.0, "eta": 0.5})
