"""Memory that is known: the fit over what forwards took, the caps that follow from it, and weights that move."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from genmill.inputs import TextInput
from genmill.registry import Optimization
from tests.worker.engines import tiny, tiny_text
from tests.worker.engines.meeting import Meeting, value
from tests.worker.engines.runs import end_of, finish, image_job, pictures, together
from worker.engines.base import EngineJob, Finished, ModelMemory
from worker.engines.caps import RowCaps
from worker.engines.diffusion import DiffusionEngine
from worker.engines.memory import Footprint, MemoryModel, SiteMemory, bytes_of
from worker.engines.shelf import _move, modules_of
from worker.engines.text import TextEngine


class SmallDevice:
    """A meter of a device of `total` bytes on which `held` lie; a forward adds `taken` at its peak."""

    def __init__(self, total: int, held: int = 0) -> None:
        self.total, self.held, self.taken = total, held, 0
        self.watched = 0

    def available_bytes(self) -> int:
        return self.total

    def held_bytes(self) -> int:
        return self.held

    def start_peak(self) -> None:
        self.taken = 0
        self.watched += 1

    def peak_bytes(self) -> int:
        return self.held + self.taken


def metered(meeting: Meeting, device: SmallDevice, fixed: int = 50, row: int = 100) -> MemoryModel:
    """The meeting's module takes so much of the device; more than there is raises out of memory."""

    def take(sample: torch.Tensor) -> Exception | None:
        device.taken = fixed + row * len(sample)
        return torch.OutOfMemoryError("no room") if device.held + device.taken > device.total else None

    meeting.module.fault = take
    model = MemoryModel(device)
    meeting.caps.memory = SiteMemory("unet", model)
    return model


def test_the_fit_is_a_line_over_the_rows_that_were_seen() -> None:
    footprint = Footprint()
    assert footprint.most_rows(1000) is None
    footprint.saw(2, 250)
    assert footprint.line() == (0, 125)  # one size: too much rather than too little
    for rows in (1, 4):
        footprint.saw(rows, 50 + 100 * rows)
    assert footprint.line() == pytest.approx((50, 100))
    assert (footprint.most_rows(1049), footprint.most_rows(1050), footprint.most_rows(0)) == (9, 10, 1)


def test_peaks_that_do_not_grow_with_the_rows_bound_nothing() -> None:
    footprint = Footprint({1: 100, 4: 90})
    assert footprint.most_rows(10) is None
    assert Footprint({1: 0}).most_rows(10) is None


def test_a_size_is_measured_twice_and_the_last_holds() -> None:
    footprint = Footprint({4: 7})  # of another process
    assert footprint.is_new(4)
    footprint.saw(4, 100)
    assert footprint.is_new(4)
    footprint.saw(4, 90)
    assert not footprint.is_new(4)
    assert footprint.peaks == {4: 90}


def test_forwards_are_bounded_by_what_fits_before_any_runs_out() -> None:
    meeting, device = Meeting(cap=16), SmallDevice(total=1500, held=200)
    model = metered(meeting, device)
    for count in (1, 2):
        tasks = [meeting.doublings(1.0, times=2) for _ in range(count)]
        meeting.run()
    assert meeting.caps.of((3,)) == 11  # (1500 * 0.95 - 200 - 50) / 100
    assert model.peaks() == {"unet 3": {1: 150, 2: 250}}
    tasks = [meeting.doublings(1.0, times=3) for _ in range(16)]
    meeting.run()
    assert [value(task) for task in tasks] == [8.0] * 16
    assert max(meeting.module.sizes) == 11
    assert meeting.caps.learnt == {}


def test_a_fresh_process_starts_with_what_others_have_measured() -> None:
    first, second = Meeting(cap=16), Meeting(cap=16)
    known = metered(first, SmallDevice(total=1000))
    for count in (1, 2):
        _ = [first.doublings(1.0, times=1) for _ in range(count)]
        first.run()
    metered(second, SmallDevice(total=1000)).recall(known.peaks())
    assert second.caps.of((3,)) == first.caps.of((3,)) == 9
    tasks = [second.doublings(1.0, times=1) for _ in range(16)]
    second.run()
    assert [value(task) for task in tasks] == [2.0] * 16
    assert max(second.module.sizes) == 9


def test_what_others_measured_wrongly_is_replaced_and_hurts_nobody() -> None:
    meeting = Meeting(cap=16)
    model = metered(meeting, SmallDevice(total=1000))
    model.recall({"unet 3": {1: 1, 2: 2}})  # as if a row took a byte
    assert meeting.caps.of((3,)) == 16
    tasks = [meeting.doublings(1.0, times=4) for _ in range(16)]
    meeting.run()
    assert [value(task) for task in tasks] == [16.0] * 16
    model.recall({"unet 3": {8: 1}})
    assert model.peaks()["unet 3"][8] > 1  # its own measurement stays


def test_out_of_memory_still_halves_where_the_model_was_too_hopeful() -> None:
    meeting, device = Meeting(cap=16), SmallDevice(total=1000)
    metered(meeting, device)
    device.total = 500  # what a neighbour took since
    meeting.caps.memory.model.room_bytes = 5000  # type: ignore[union-attr]  # it has one
    tasks = [meeting.doublings(1.0, times=3) for _ in range(16)]
    meeting.run()
    assert [value(task) for task in tasks] == [8.0] * 16
    assert meeting.caps.of((3,)) <= 4
    assert meeting.caps.memory.model.room_bytes == 475  # type: ignore[union-attr]


def test_measuring_stops_when_a_size_is_known() -> None:
    meeting, device = Meeting(cap=16), SmallDevice(total=10_000)
    metered(meeting, device)
    task = meeting.doublings(1.0, times=9)
    meeting.run()
    assert value(task) == 2.0**9
    assert device.watched == 2


def test_a_cpu_bounds_nothing() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    together(engine, [image_job("a"), image_job("b")])
    memory = engine.memory()
    assert (memory.device, memory.peaks, engine.learnt_caps()) == ("cpu", {}, {})
    assert memory.model_bytes > 0


def test_an_engine_learns_its_parts_and_their_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, device = tiny.stable_diffusion(), SmallDevice(total=3000)
    monkeypatch.setattr("worker.engines.diffusion.meter_of", lambda _: device)

    def take(_: Any, args: Any, kwargs: Any) -> None:
        device.taken = 100 * len(kwargs["sample"])

    pipe.unet.register_forward_pre_hook(take, with_kwargs=True)
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    together(engine, [image_job("a", steps=2)])
    together(engine, [image_job("a", steps=2), image_job("b", steps=2)])
    assert engine.memory().peaks == {"unet.__call__ 4x16x16": {2: 200, 4: 400}} | {
        name: peaks for name, peaks in engine.memory().peaks.items() if not name.startswith("unet")
    }
    assert engine.learnt_caps() == {"4x16x16": 28}  # 3000 * 0.95 / 100, of 32 rows

    fresh = DiffusionEngine.from_pipeline(tiny.spec(), pipe)
    fresh.recall(engine.memory())
    assert fresh.memory().peaks == engine.memory().peaks
    assert all(isinstance(end_of(events), Finished) for events in together(fresh, [image_job("a")]).values())


def test_shared_weights_count_once() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    assert bytes_of(first, second) == bytes_of(first) == 64


def test_weights_that_move_stay_the_same_parameters_and_stay_tied() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = nn.Parameter(first.weight.data)  # another parameter of the same memory
    first.register_buffer("mean", torch.ones(3))
    before, names = list(first.parameters()), [first.weight.clone(), first.get_buffer("mean").clone()]
    moved: list[torch.Tensor] = []

    def away(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor)
        return tensor.detach().clone()

    _move([first, second], away)
    assert all(one is other for one, other in zip(before, first.parameters(), strict=True))
    assert torch.equal(first.weight, names[0])
    assert torch.equal(first.get_buffer("mean"), names[1])
    assert len(moved) == 4  # weight once, two biases, the buffer
    assert first.weight.data_ptr() == second.weight.data_ptr()


def test_an_image_model_that_was_out_of_use_makes_the_same_pictures() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    expected = pictures(together(engine, [image_job("a")])["a"])
    engine.park()
    engine.unpark()
    assert torch.equal(pictures(together(engine, [image_job("a")])["a"])[0], expected[0])
    engine.park()
    engine.close()


def test_a_text_model_that_was_out_of_use_writes_the_same() -> None:
    engine = TextEngine.from_model(tiny_text.spec(), tiny_text.model(), tiny_text.tokenizer())

    def write() -> object:
        engine.admit([EngineJob("a", TextInput(prompt="a red circle", max_tokens=8, temperature=1.0, seed=3))])
        end = end_of(finish(engine)["a"])
        assert isinstance(end, Finished)
        return end.text

    expected = write()
    engine.park()
    engine.unpark()
    assert write() == expected
    assert engine.memory() == ModelMemory("cpu", engine.memory().model_bytes)
    assert engine.parked_bytes() < engine.memory().model_bytes, "the cache is not kept"
    engine.park()
    engine.close()


def test_a_denoiser_whose_graphs_were_recorded_is_not_moved_and_not_measured() -> None:
    spec = tiny.spec().model_copy(update={"optimizations": (Optimization.CUDA_GRAPHS,)})
    engine = DiffusionEngine.from_pipeline(spec, tiny.stable_diffusion())
    assert engine._denoiser.caps.memory is None
    with pytest.raises(RuntimeError, match="hold"):
        engine.park()
    engine.close()


def test_a_closed_engine_holds_no_weights() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    parts = [weakref.ref(part) for part in modules_of(engine._pipe)]
    together(engine, [image_job("a"), image_job("b")])
    engine.close()
    gc.collect()
    assert [part() for part in parts] == [None] * len(parts)

    writer = TextEngine.from_model(tiny_text.spec(), tiny_text.model(), tiny_text.tokenizer())
    model = weakref.ref(writer._model)
    writer.close()
    gc.collect()
    assert model() is None


def test_caps_without_a_memory_model_are_the_settings() -> None:
    caps = RowCaps(8)
    with caps.watched((3,), 2):
        assert caps.of((3,)) == 8
