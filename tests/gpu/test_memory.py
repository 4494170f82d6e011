"""Memory on a CUDA device: the meter is right, forwards are bounded before they fail, weights leave and return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from genmill.inputs import TextInput
from tests.worker.engines import tiny, tiny_text
from tests.worker.engines.runs import end_of, finish, image_job, pictures, together
from worker.engines.base import EngineJob, Finished
from worker.engines.devices import find_device, give_back_memory
from worker.engines.diffusion import DiffusionEngine
from worker.engines.memory import KEPT_FREE, CudaMeter, bytes_of
from worker.engines.shelf import Weights, fetch, modules_of, shelve
from worker.engines.text import TextEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CUDA = torch.device("cuda")
MIB = 2**20


def test_the_meter_counts_what_a_block_holds_at_once() -> None:
    meter = CudaMeter(CUDA)
    held = meter.held_bytes()
    meter.start_peak()
    first = torch.empty(64 * MIB, dtype=torch.uint8, device=CUDA)
    del first
    second = torch.empty(32 * MIB, dtype=torch.uint8, device=CUDA)
    assert meter.peak_bytes() - held == 64 * MIB
    assert meter.held_bytes() - held == 32 * MIB
    del second
    assert meter.held_bytes() == held


def test_what_is_available_is_bounded_by_what_the_process_may_have() -> None:
    meter = CudaMeter(CUDA)
    total = torch.cuda.get_device_properties(0).total_memory
    assert 0 < meter.available_bytes() <= total
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        assert meter.available_bytes() <= 0.01 * total + 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_device_tells_its_memory_and_the_hosts() -> None:
    device = find_device("cuda")
    assert device.name == torch.cuda.get_device_name()
    assert device.memory_bytes is not None
    assert min(device.memory_bytes, device.host_bytes) > 2**30
    assert device.dtype == "float16"


def test_a_row_takes_what_was_measured_and_the_cap_follows() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=64), tiny.stable_diffusion().to(CUDA))
    for count in (1, 2, 4):
        for _ in range(2):
            together(engine, [image_job(f"job{n}", seed=n, steps=2, width=256, height=256) for n in range(count)])
    peaks = {name: sizes for name, sizes in engine.memory().peaks.items() if name.startswith("unet")}
    ((name, sizes),) = peaks.items()
    assert name == "unet.__call__ 4x128x128"
    assert set(sizes) == {2, 4, 8}
    line = engine._memory.footprint(name).line()
    assert line is not None
    assert line[0] + 8 * line[1] == pytest.approx(sizes[8], rel=0.25)

    total = torch.cuda.get_device_properties(0).total_memory
    held = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((held + line[0] + 20 * line[1]) / (1 - KEPT_FREE) / total)
    try:
        engine.admit([])
        assert 18 <= engine.learnt_caps()["4x128x128"] <= 20
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def pinned_bytes() -> int:
    """What torch's allocator holds of the host, in use or not."""
    return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])


def test_weights_go_to_pinned_memory_and_come_back_the_same() -> None:
    pipe = tiny.stable_diffusion().to(CUDA)
    modules = modules_of(pipe)
    before = [parameter.detach().clone() for module in modules for parameter in module.parameters()]
    give_back_memory()
    held, weights, pinned = torch.cuda.memory_allocated(), bytes_of(*modules), pinned_bytes()
    shelve(modules, CUDA)
    assert held - torch.cuda.memory_allocated() >= weights
    assert all(parameter.is_pinned() for module in modules for parameter in module.parameters())
    assert pinned_bytes() - pinned == Weights(modules, CUDA).parked_bytes() < 1.1 * weights + 2 * MIB
    fetch(modules, CUDA)
    give_back_memory()
    assert pinned_bytes() <= pinned
    after = [parameter for module in modules for parameter in module.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_tied_weights_are_moved_once() -> None:
    first, second = nn.Linear(512, 512, device=CUDA), nn.Linear(512, 512, device=CUDA)
    second.weight = first.weight
    shelve([first, second], CUDA)
    assert first.weight.data_ptr() == second.weight.data_ptr()
    fetch([first, second], CUDA)
    assert first.weight.data_ptr() == second.weight.data_ptr()
    assert first.weight.is_cuda


def test_a_parked_image_model_frees_the_device_and_makes_the_same_pictures() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion().to(CUDA))
    jobs = [image_job(f"job{n}", seed=n) for n in range(4)]
    expected = together(engine, jobs)
    held = torch.cuda.memory_allocated()
    engine.park()
    assert held - torch.cuda.memory_allocated() >= engine.memory().model_bytes
    engine.unpark()
    for job_id, events in together(engine, jobs).items():
        assert torch.allclose(pictures(events)[0], pictures(expected[job_id])[0], atol=1e-3)


def test_a_parked_text_model_gives_its_cache_back_and_writes_the_same() -> None:
    engine = TextEngine.from_model(tiny_text.spec(), tiny_text.model().to(CUDA), tiny_text.tokenizer())

    def write() -> Any:
        engine.admit([EngineJob("a", TextInput(prompt="a red circle", max_tokens=8, temperature=0.0, seed=3))])
        end = end_of(finish(engine)["a"])
        assert isinstance(end, Finished)
        return end.text

    expected = write()
    held = torch.cuda.memory_allocated()
    engine.park()
    assert torch.cuda.memory_allocated() < held
    engine.unpark()
    assert write() == expected
