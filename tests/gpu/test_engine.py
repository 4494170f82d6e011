"""The image engine on a CUDA device: the same pictures, true receipts, memory that runs out for real."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from genmill.registry import Optimization
from tests.worker.engines import tiny
from tests.worker.engines.runs import end_of, image_job, pictures, together, worst_difference
from worker.engines.base import EngineJob, Finished
from worker.engines.diffusion import DiffusionEngine
from worker.engines.optimizations import optimize

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def jobs(count: int) -> list[EngineJob]:
    return [
        image_job(f"job{n}", seed=n, steps=3 + n % 4, guidance=3.0 + n % 5, width=48 if n % 4 == 3 else 32)
        for n in range(count)
    ]


@pytest.mark.parametrize(
    "build", [tiny.stable_diffusion, tiny.stable_diffusion_xl, tiny.stable_diffusion_3, tiny.flux]
)
def test_a_mixed_batch_gives_each_the_picture_that_it_has_alone(build: Any) -> None:
    pipe = build().to("cuda")
    events = together(DiffusionEngine.from_pipeline(tiny.spec(), pipe), jobs(12))
    assert worst_difference(pipe, jobs(12), events) < 1e-3


def test_half_precision_stays_near_single() -> None:
    single = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion().to("cuda"))
    half = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion().to("cuda", torch.float16))
    expected, got = together(single, jobs(4)), together(half, jobs(4))
    for job in jobs(4):
        for one, other in zip(pictures(expected[job.job_id]), pictures(got[job.job_id]), strict=True):
            assert float((one - other).abs().mean()) < 0.02


def test_receipts_tell_what_the_device_did() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion().to("cuda"))
    for events in together(engine, jobs(4)).values():
        end = end_of(events)
        assert isinstance(end, Finished)
        assert end.receipt.gpu_ms > 0
        assert end.receipt.device != "cpu"


def test_memory_that_runs_out_halves_forwards_and_fails_nobody() -> None:
    pipe = tiny.stable_diffusion().to("cuda")
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=64), pipe)
    large = [image_job(f"job{n}", seed=n, steps=2, width=512, height=512) for n in range(64)]
    for count in (2, 2, 4, 4):  # each size is measured twice, for which the peak is set back
        together(engine, large[:count])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    together(engine, large[:4])
    for_four = torch.cuda.max_memory_allocated() - held
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((held + 4 * for_four) / total)
    try:
        events = together(engine, large)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(isinstance(end_of(one), Finished) for one in events.values())
    assert engine.learnt_caps()


def test_decoding_runs_beside_steps() -> None:
    pipe = tiny.stable_diffusion().to("cuda")
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    many = [image_job(f"job{n}", seed=n, steps=2 + 3 * n, width=256, height=256) for n in range(8)]
    together(engine, many)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        together(engine, many)
    spans: dict[int, list[tuple[int, int]]] = {}
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            spans.setdefault(event.device_resource_id(), []).append((event.start_ns(), event.end_ns()))
    assert len(spans) >= 2
    main, *sides = sorted(spans.values(), key=len, reverse=True)
    assert any(a < d and c < b for side in sides for a, b in side for c, d in main)


def test_a_graph_of_the_denoiser_changes_no_picture() -> None:
    plain, graphed = tiny.stable_diffusion().to("cuda"), tiny.stable_diffusion().to("cuda")
    optimize(graphed, [Optimization.CUDA_GRAPHS])
    spec = tiny.spec().model_copy(update={"optimizations": (Optimization.CUDA_GRAPHS,)})
    expected = together(DiffusionEngine.from_pipeline(tiny.spec(), plain), jobs(6))
    engine = DiffusionEngine.from_pipeline(spec, graphed)
    for _ in range(3):  # warm-up, recording, replay
        got = together(engine, jobs(6))
    for job in jobs(6):
        for one, other in zip(pictures(expected[job.job_id]), pictures(got[job.job_id]), strict=True):
            assert float((one - other).abs().max()) < 1e-3


def test_a_reproducible_job_gives_the_same_bits() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion().to("cuda", torch.float16))
    mine = replace(image_job("mine", steps=5), is_reproducible=True)
    (alone,) = pictures(together(engine, [mine])["mine"])
    (among,) = pictures(together(engine, [*jobs(6), mine])["mine"])
    assert torch.equal(alone, among)
