"""Engines load from folders, lazily."""

import subprocess
import sys
from pathlib import Path

import pytest

from genmill.errors import ModelUnavailable
from genmill.model_sources import NO_FILES
from genmill.registry import ModelKind, ModelSpec
from tests.worker.engines import tiny, tiny_text
from tests.worker.engines.runs import end_of, image_job, together
from worker.engines.base import Finished
from worker.engines.diffusion import DiffusionEngine
from worker.engines.loader import load_engine
from worker.engines.text import TextEngine


def test_an_image_model_loads_from_its_folder(tmp_path: Path) -> None:
    tiny.stable_diffusion().save_pretrained(tmp_path)
    spec = tiny.spec().model_copy(update={"source": str(tmp_path)})
    engine = load_engine(spec, device="cpu")
    assert isinstance(engine, DiffusionEngine)
    assert isinstance(end_of(together(engine, [image_job("a")])["a"]), Finished)


def test_a_text_model_loads_from_its_folder(tmp_path: Path) -> None:
    tiny_text.model().save_pretrained(tmp_path)
    tiny_text.tokenizer().save_pretrained(tmp_path)
    spec = tiny_text.spec().model_copy(update={"source": str(tmp_path)})
    assert isinstance(load_engine(spec, device="cpu"), TextEngine)


@pytest.mark.parametrize("kind", list(ModelKind))
def test_a_model_that_is_not_there_is_unavailable(kind: ModelKind, tmp_path: Path) -> None:
    spec = ModelSpec(name="gone", kind=kind, source=str(tmp_path))
    with pytest.raises(ModelUnavailable, match="gone"):
        load_engine(spec, device="cpu")


def test_the_loader_imports_nothing_heavy() -> None:
    code = "import sys, worker.engines.loader; sys.exit(int('torch' in sys.modules or 'diffusers' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", list(ModelKind))
def test_a_model_without_files_is_for_a_worker_with_an_engine_of_its_own(kind: ModelKind) -> None:
    with pytest.raises(ModelUnavailable, match="model bare: source is 'none'"):
        load_engine(ModelSpec(name="bare", kind=kind, source=NO_FILES), device="cpu")
