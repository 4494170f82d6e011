"""What makes a denoiser faster changes no picture."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch import nn

from genmill.errors import ModelUnavailable
from genmill.registry import Optimization
from tests.worker.engines import tiny
from tests.worker.engines.runs import image_job, pictures, together
from worker.engines.diffusion import DiffusionEngine
from worker.engines.optimizations import optimize

FREE = (Optimization.CHANNELS_LAST, Optimization.FUSED_QKV)


def made(pipe: Any) -> list[Any]:
    jobs = [image_job(f"job{n}", seed=n, steps=3 + n, guidance=2.0 + n) for n in range(4)]
    events = together(DiffusionEngine.from_pipeline(tiny.spec(), pipe), jobs)
    return [picture for job in jobs for picture in pictures(events[job.job_id])]


@pytest.mark.parametrize("build", [tiny.stable_diffusion, tiny.stable_diffusion_xl, tiny.stable_diffusion_3])
@pytest.mark.parametrize(
    "wanted", [(FREE[0],), (FREE[1],), FREE], ids=["+".join(w) for w in ((FREE[0],), (FREE[1],), FREE)]
)
def test_no_picture_changes(build: Any, wanted: tuple[Optimization, ...]) -> None:
    plain, faster = build(), build()
    optimize(faster, wanted)
    differences = [float((a - b).abs().max()) for a, b in zip(made(plain), made(faster), strict=True)]
    assert max(differences) < 1e-4


def test_a_denoiser_that_lacks_what_is_asked_for_is_refused_by_name() -> None:
    pipe = copy.copy(tiny.stable_diffusion())
    pipe.__dict__["unet"] = nn.Linear(1, 1)
    with pytest.raises(ModelUnavailable, match="Linear cannot fuse its projections"):
        optimize(pipe, [Optimization.FUSED_QKV])
    with pytest.raises(ModelUnavailable, match="names no blocks that repeat"):
        optimize(pipe, [Optimization.COMPILED])
