"""Adapters and ControlNets of a model: what its entry declares, what a job may ask for, and batch keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmill.errors import InvalidRequest, SettingsInvalid
from genmill.extras import family_of, names_in, set_of, with_loras
from genmill.inputs import ImageInput, Lora
from genmill.registry import Registry, load_registry

MODELS = """
[[models]]
name = "sketch"
kind = "image"
source = "none"
defaults = { width = 64, height = 64 }
[models.adapters.ink]
source = "ink.safetensors"
[models.adapters.neon]
source = "somebody/neon"
weight_name = "neon.safetensors"
revision = "abc"
[models.controlnets.canny]
source = "canny"

[[models]]
name = "plain"
kind = "image"
source = "none"
"""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    path = tmp_path / "models.toml"
    path.write_text(MODELS)
    (tmp_path / "ink.safetensors").touch()
    (tmp_path / "canny").mkdir()
    return load_registry(path)


def test_sources_that_are_there_are_taken_from_the_files_folder(registry: Registry, tmp_path: Path) -> None:
    sketch = registry.get("sketch")
    assert sketch.adapters["ink"].source == str(tmp_path / "ink.safetensors")
    assert sketch.adapters["neon"].source == "somebody/neon"
    assert sketch.controlnets["canny"].source == str(tmp_path / "canny")


def test_the_batch_key_tells_the_set_of_adapters(registry: Registry) -> None:
    sketch = registry.get("sketch")

    def key(*loras: tuple[str, float]) -> str:
        asked = [{"name": name, "weight": weight} for name, weight in loras]
        return sketch.batch_key_of(sketch.parse_input({"prompt": "x", "loras": asked}))

    assert key() == key(("ink", 0)) == "sketch@1/auto"
    assert key(("neon", -0.5), ("ink", 1)) == key(("ink", 1.0), ("neon", -0.5)) == "sketch@1/auto+ink=1.0+neon=-0.5"
    assert key(("ink", 0.3)) != key(("ink", 0.31))
    assert registry.by_batch_key(key(("ink", 0.3))) is sketch
    assert registry.by_batch_key("sketch@1/auto+pencil=1.0") is None
    assert registry.by_batch_key("plain@1/auto+ink=1.0") is None


NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
LORAS = st.lists(st.builds(Lora, name=NAMES, weight=st.floats(-2, 2)), max_size=3, unique_by=lambda lora: lora.name)


@given(LORAS)
def test_a_batch_key_is_the_same_for_equal_sets_alone(loras: list[Lora]) -> None:
    key = with_loras("m@1/auto", loras)
    assert key == with_loras("m@1/auto", reversed(loras))
    assert family_of(key) == "m@1/auto"
    assert names_in(key) == tuple(lora.name for lora in set_of(loras))
    assert not set(key) & set(": \n"), "they part the fields of lanes and of curves"
    told = [part.split("=") for part in key.split("+")[1:]]
    assert [(name, float(weight)) for name, weight in told] == [(lora.name, lora.weight) for lora in set_of(loras)]


def lora(name: Any, weight: Any = 1.0) -> dict[str, Any]:
    return {"name": name, "weight": weight}


CONTROL = {"name": "canny", "image": "k"}


@pytest.mark.parametrize(
    ("model", "raw", "pointer", "limit", "value"),
    [
        ("sketch", {"loras": [lora("pencil")]}, "/input/loras/0/name", "ink, neon", "pencil"),
        ("sketch", {"loras": [lora("ink"), lora("ink", 2)]}, "/input/loras/1/name", "each adapter once", "ink"),
        ("sketch", {"loras": [lora("ink"), lora("neon", 2.5)]}, "/input/loras/1/weight", "-2..2", "2.5"),
        ("sketch", {"loras": [lora("ink", float("nan"))]}, "/input/loras/0/weight", "-2..2", "nan"),
        ("sketch", {"loras": [lora("ink", float("inf"))]}, "/input/loras/0/weight", "-2..2", "inf"),
        ("plain", {"loras": [lora("ink")]}, "/input/loras", "0 adapters", "1 adapters"),
        ("sketch", {"mask_image": "k"}, "/input/mask_image", "with init_image", "without"),
        ("sketch", {"init_image": "k", "control": CONTROL}, "/input/control", "without init_image", "with"),
        ("sketch", {"control": {**CONTROL, "name": "pose"}}, "/input/control/name", "canny", "pose"),
        ("plain", {"control": CONTROL}, "/input/control/name", "none", "canny"),
    ],
)
def test_what_a_model_has_not_names_field_limit_and_value(
    model: str, raw: dict[str, Any], pointer: str, limit: str, value: str, registry: Registry
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        registry.get(model).parse_input({"prompt": "x", **raw})
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.limit, fault.value) == (pointer, limit, value)


def test_too_many_adapters_are_counted_and_not_all_listed(registry: Registry) -> None:
    with pytest.raises(InvalidRequest) as caught:
        registry.get("sketch").parse_input({"prompt": "x", "loras": [lora(f"x{n}") for n in range(1000)]})
    first, *others = caught.value.faults
    assert (first.pointer, first.limit, first.value) == ("/input/loras", "2 adapters", "1000 adapters")
    assert len(others) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('kind = "text"\n[models.adapters.a]\nsource = "x"', "a text model has no adapters"),
        ('kind = "text"\n[models.controlnets.a]\nsource = "x"', "a text model has no controlnets"),
        ('kind = "image"\noptimizations = ["fused_qkv"]\n[models.adapters.a]\nsource = "x"', "fused_qkv"),
        ('kind = "image"\n[models.adapters."A b"]\nsource = "x"', "A b"),
        ('kind = "image"\n[models.adapters.a]\nsource = ""', "source"),
        ('kind = "image"\nadapters = 3', "adapters"),
        ('kind = "image"\nadapters = { a = 3 }', "adapters"),
    ],
)
def test_an_entry_that_cannot_be_stops_the_start(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(f'[[models]]\nname = "m"\nsource = "none"\n{line}\n')
    with pytest.raises(SettingsInvalid, match=words):
        load_registry(path)


def test_images_are_named_by_what_they_are_for() -> None:
    job = ImageInput(prompt="x", init_image="a", mask_image="b")
    assert job.images() == {"init": "a", "mask": "b"}
    moved = job.with_images({"init": "c", "mask": "d"})
    assert (moved.init_image, moved.mask_image, moved.control) == ("c", "d", None)
    control = ImageInput(prompt="x", control={"name": "canny", "image": "a", "scale": 0.5})
    assert control.images() == {"control": "a"}
    moved = control.with_images({"control": "b"})
    assert moved.control is not None
    assert (moved.control.image, moved.control.scale) == ("b", 0.5)
