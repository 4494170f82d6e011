"""The size of a model before it is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from genmill.extras import ControlnetSpec
from genmill.registry import ModelSpec, load_registry
from tests.worker.engines import tiny, tiny_text
from tests.worker.engines.tiny_loras import controlnet
from worker.engines.base import Device
from worker.engines.kv_cache import cache_bytes
from worker.engines.memory import bytes_of
from worker.engines.shelf import modules_of
from worker.engines.text import TextEngine
from worker.engines.weights import weights_bytes


def spec_of(folder: Path, kind: str = "image", dtype: str = "auto") -> ModelSpec:
    return ModelSpec(name="tiny", kind=kind, source=str(folder), dtype=dtype)


def test_a_pipeline_takes_what_its_parts_hold(tmp_path: Path) -> None:
    pipe = tiny.stable_diffusion()
    pipe.save_pretrained(tmp_path)
    expected = bytes_of(*modules_of(pipe))
    assert weights_bytes(spec_of(tmp_path), "float32") == pytest.approx(expected, rel=0.01)
    assert weights_bytes(spec_of(tmp_path), "float16") == pytest.approx(expected / 2, rel=0.01)
    assert weights_bytes(spec_of(tmp_path, dtype="float32"), "float16") == pytest.approx(expected, rel=0.01)


def test_its_controlnets_count(tmp_path: Path) -> None:
    pipe = tiny.stable_diffusion()
    control = controlnet(pipe.unet)
    pipe.save_pretrained(tmp_path / "model")
    control.save_pretrained(tmp_path / "canny")
    canny = {"canny": ControlnetSpec(source=str(tmp_path / "canny"))}
    spec = spec_of(tmp_path / "model").model_copy(update={"controlnets": canny})
    expected = bytes_of(*modules_of(pipe), control)
    assert weights_bytes(spec, "float32") == pytest.approx(expected, rel=0.01)
    gone = {"canny": ControlnetSpec(source=str(tmp_path / "gone"))}
    assert weights_bytes(spec.model_copy(update={"controlnets": gone}), "float32") is None


def test_variants_and_whole_checkpoints_beside_it_do_not_count(tmp_path: Path) -> None:
    tiny.stable_diffusion().save_pretrained(tmp_path)
    before = weights_bytes(spec_of(tmp_path), "float32")
    unet = tmp_path / "unet" / "diffusion_pytorch_model.safetensors"
    for other in ("diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.non_ema.safetensors"):
        shutil.copy(unet, unet.parent / other)
    shutil.copy(unet, unet.parent / "diffusion_pytorch_model.bin")
    shutil.copy(unet, tmp_path / "sd_xl_base_1.0.safetensors")
    assert weights_bytes(spec_of(tmp_path), "float32") == before


def test_a_language_model_in_one_file_in_shards_or_pickled(tmp_path: Path) -> None:
    model = tiny_text.model()
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    expected = sum(tensor.nbytes for tensor in model.state_dict().values())
    for name in ("one", "shards"):
        taken = weights_bytes(spec_of(tmp_path / name, "text"), "float32")
        assert taken == pytest.approx(expected, rel=0.3)  # tied weights are saved once
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    assert weights_bytes(spec_of(pickled, "text"), "float32") == (pickled / "pytorch_model.bin").stat().st_size


def test_a_language_models_cache_is_known_from_its_configuration(tmp_path: Path) -> None:
    model = tiny_text.model()
    model.save_pretrained(tmp_path)
    spec, here = spec_of(tmp_path, "text"), Device("cpu")
    engine = TextEngine.from_model(spec, model, tiny_text.tokenizer())
    taken = engine.memory().model_bytes
    assert (weights_bytes(spec, "float32") or 0) + cache_bytes(spec, here) == pytest.approx(taken, rel=0.02)
    assert taken > 10 * bytes_of(model)
    assert cache_bytes(spec_of(tmp_path, "image"), here) == 0
    (tmp_path / "config.json").write_text('{"text_config": {"hidden_size": 3}}')
    assert cache_bytes(spec, here) == 0
    engine.close()


def test_the_shipped_models_are_known_beforehand() -> None:
    sizes = [weights_bytes(spec, "float32") for spec in load_registry().models]
    assert all(size and size > 500_000 for size in sizes)


@pytest.mark.parametrize(
    "body", [b"", b"\x00" * 4, b"\xff" * 8, b"\x02\x00\x00\x00\x00\x00\x00\x00{]",
             b'\x0c\x00\x00\x00\x00\x00\x00\x00{"a": "bad"}', b"\x02\x00\x00\x00\x00\x00\x00\x00[]"],
)  # fmt: skip
def test_files_that_are_broken_tell_nothing(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(body)
    assert weights_bytes(spec_of(tmp_path, "text"), "float32") is None


def test_what_is_not_here_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert weights_bytes(ModelSpec(name="x", kind="image", source="nobody/nothing"), "float32") is None
    assert weights_bytes(ModelSpec(name="x", kind="image", source="no such/folder/at all"), "float32") is None
    (tmp_path / "model_index.json").write_text("{")
    assert weights_bytes(spec_of(tmp_path), "float32") is None
