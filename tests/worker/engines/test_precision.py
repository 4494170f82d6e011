"""Half precision: pictures near those of single precision, and no job in the way of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.worker.engines import tiny
from tests.worker.engines.runs import image_job, pictures, together, worst_difference
from worker.engines.base import EngineJob
from worker.engines.diffusion import DiffusionEngine

START = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8))


def jobs() -> list[EngineJob]:
    return [image_job(f"job{n}", seed=n, steps=3 + n % 3, guidance=3.0 + n % 2) for n in range(6)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("build", [tiny.stable_diffusion, tiny.stable_diffusion_xl, tiny.flux])
def test_half_precision_stays_near_single(build: Any, dtype: torch.dtype) -> None:
    expected = together(DiffusionEngine.from_pipeline(tiny.spec(), build()), jobs())
    got = together(DiffusionEngine.from_pipeline(tiny.spec(), build().to(dtype)), jobs())
    for job in jobs():
        (one,), (other,) = pictures(expected[job.job_id]), pictures(got[job.job_id])
        assert float((one.float() - other.float()).abs().mean()) < 0.03


def half_that_overflows() -> Any:
    pipe = tiny.stable_diffusion_xl().to(torch.float16)
    pipe.vae.register_to_config(force_upcast=True)
    return pipe


@pytest.mark.filterwarnings("ignore:.upcast_vae. is deprecated:FutureWarning")  # the plain pipeline's own
def test_an_autoencoder_that_overflows_in_half_precision_decodes_many_at_once_in_single() -> None:
    """Each pipeline call would cast the shared module, and cast it back under the others."""
    engine = DiffusionEngine.from_pipeline(tiny.spec(), half_that_overflows())
    alike = [image_job(f"job{n}", seed=n, steps=3) for n in range(5)]
    started = [image_job(f"from{n}", START, seed=n, steps=4, strength=0.8) for n in range(3)]
    events = together(engine, [*alike, *started])
    assert worst_difference(half_that_overflows(), alike, events) < 0.02
    assert worst_difference(half_that_overflows(), started, events) < 0.02
