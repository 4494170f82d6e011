"""What makes a denoiser faster changes no picture."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from genmill.errors import ModelUnavailable
from genmill.registry import Optimization
from tests.worker.engines import tiny
from tests.worker.engines.runs import image_job, pictures, together
from worker.engines.base import EngineJob
from worker.engines.diffusion import DiffusionEngine
from worker.engines.optimizations import optimize
from worker.engines.pipelines import denoiser_of
from worker.engines.sites import sizes_up_to

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


@pytest.mark.parametrize("build", [tiny.stable_diffusion, tiny.stable_diffusion_xl, tiny.flux])
@pytest.mark.parametrize("way", [Optimization.COMPILED, Optimization.CUDA_GRAPHS])
def test_a_compiled_denoiser_sees_few_numbers_of_rows_and_no_picture_changes(build: Any, way: Optimization) -> None:
    plain, padded, seen = build(), build(), set()
    spec = tiny.spec().model_copy(update={"optimizations": (way,)})
    denoiser_of(padded).register_forward_pre_hook(
        lambda _, __, given: seen.add(len(given.get("hidden_states", given.get("sample")))), with_kwargs=True
    )
    engine = DiffusionEngine.from_pipeline(spec, padded)  # padded as for a compiler, which would take minutes here
    jobs = [image_job(f"job{n}", seed=n, steps=2 + n % 5, guidance=2.0 + n) for n in range(7)]
    events = together(engine, jobs)
    expected = together(DiffusionEngine.from_pipeline(tiny.spec(), plain), jobs)
    for job in jobs:
        (one,), (other,) = pictures(events[job.job_id]), pictures(expected[job.job_id])
        assert float((one - other).abs().max()) < 1e-4
    assert seen <= set(sizes_up_to(2 * spec.max_batch))


def test_a_graph_writes_each_output_over_the_one_before() -> None:
    pipe = tiny.stable_diffusion()
    plain = together(DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion()), sized())
    replay(pipe.unet)
    spec = tiny.spec().model_copy(update={"optimizations": (Optimization.CUDA_GRAPHS,)})
    events = together(DiffusionEngine.from_pipeline(spec, pipe), sized())
    for job in sized():
        (one,), (other,) = pictures(events[job.job_id]), pictures(plain[job.job_id])
        assert float((one - other).abs().max()) < 1e-4


def sized() -> list[EngineJob]:
    """Two sizes: two forwards in a turn, before any of their tasks goes on."""
    return [image_job(f"job{n}", seed=n, width=32 + 16 * (n % 2), steps=3) for n in range(4)]


def replay(unet: nn.Module) -> None:
    """Outputs of all forwards lie in one place, as after the replay of a graph."""
    place = torch.empty(2**16)

    def move(_: nn.Module, __: object, output: Any) -> Any:
        (sample,) = output if isinstance(output, tuple) else (output.sample,)
        moved = place[: sample.numel()].view(sample.shape).copy_(sample)
        return (moved,) if isinstance(output, tuple) else type(output)(sample=moved)

    unet.register_forward_hook(move)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 31])
def test_sizes_waste_at_most_half(rows: int) -> None:
    sizes = sizes_up_to(rows)
    assert (sizes[0], sizes[-1]) == (1, rows)
    for wanted in range(1, rows + 1):
        assert next(size for size in sizes if size >= wanted) <= 1.5 * wanted


def test_ways_of_compiling_exclude_each_other_and_tell_what_is_missing() -> None:
    with pytest.raises(ModelUnavailable, match="take one of compiled, cuda_graphs, tensorrt"):
        optimize(tiny.stable_diffusion(), [Optimization.COMPILED, Optimization.CUDA_GRAPHS])
    with pytest.raises(ModelUnavailable, match="torch_tensorrt is not installed"):
        optimize(tiny.stable_diffusion(), [Optimization.TENSORRT])


def test_the_attention_backend_is_diffusers_own_and_a_wrong_one_is_named() -> None:
    plain, other = tiny.stable_diffusion_xl(), tiny.stable_diffusion_xl()
    optimize(other, [], attention="native")
    assert max(float((a - b).abs().max()) for a, b in zip(made(plain), made(other), strict=True)) < 1e-4
    with pytest.raises(ModelUnavailable, match="attention 'magic'"):
        optimize(other, [], attention="magic")
