"""Steps do not wait for decoding, nor for pictures on their way to the host. Streams are doubles that take notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.worker.engines import tiny
from tests.worker.engines.runs import end_of, finish, image_job, together
from worker.engines import diffusion, sites
from worker.engines.base import Event, Finished, Progress
from worker.engines.diffusion import DiffusionEngine
from worker.engines.overlap import HostCopy, SideStream


class NotingStream(SideStream):
    """Notes which blocks ran in it, and whether what they read was recorded."""

    notes: list[str]
    is_current = False

    @contextmanager
    def after(self, read: Iterable[object]) -> Iterator[None]:
        assert any(isinstance(value, torch.Tensor) for value in read)
        with self._noted("decode"):
            yield

    @contextmanager
    def on(self) -> Iterator[None]:
        with self._noted("go on"):
            yield

    def rejoin(self) -> None:
        type(self).notes.append("rejoin")

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        type(self).notes.append(what)
        type(self).is_current = True
        try:
            yield
        finally:
            type(self).is_current = False


class LateCopy(HostCopy):
    """There when it was asked for the third time."""

    asked = 0

    def is_there(self) -> bool:
        self.asked += 1
        return self.asked > 2


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> type[NotingStream]:
    monkeypatch.setattr(sites, "SideStream", NotingStream)
    NotingStream.notes = []
    return NotingStream


def test_decoding_and_what_follows_it_run_beside_the_steps(stream: type[NotingStream]) -> None:
    pipe, during = tiny.stable_diffusion(), dict[str, set[bool]]()
    for name, module in (("step", pipe.unet), ("decode", pipe.vae.decoder)):
        module.register_forward_hook(lambda *_, name=name: during.setdefault(name, set()).add(stream.is_current))
    together(DiffusionEngine.from_pipeline(tiny.spec(), pipe), [image_job("a", steps=3), image_job("b", steps=3)])
    assert during == {"step": {False}, "decode": {True}}
    assert stream.notes == ["decode", "go on", "go on"]


def test_a_pipeline_that_calls_on_after_decoding_joins_the_main_stream_again(stream: type[NotingStream]) -> None:
    pipe = tiny.stable_diffusion()
    engine = DiffusionEngine.from_pipeline(tiny.spec(), pipe)

    def twice(copied: Any, arguments: dict[str, Any]) -> Any:
        copied(**arguments)
        return HostCopy(copied(**arguments).images[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diffusion, "_first_output", twice)
        together(engine, [image_job("a", steps=2)])
    assert stream.notes == ["decode", "go on", "rejoin", "decode", "go on"]


def test_a_picture_on_its_way_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusion, "HostCopy", LateCopy)
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    engine.admit([image_job("short", steps=2), image_job("long", steps=8)])
    order: list[Event] = []
    while not engine.is_idle():
        order += engine.step()
    ends = [event.job_id for event in order if isinstance(event, Finished)]
    steps_before = [event for event in order[: order.index(next(e for e in order if isinstance(e, Finished)))]
                    if isinstance(event, Progress) and event.job_id == "long"]  # fmt: skip
    assert ends == ["short", "long"]
    assert 4 <= len(steps_before) < 8


def test_with_nothing_else_to_do_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusion, "HostCopy", LateCopy)
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion())
    engine.admit([image_job("only", steps=2)])
    assert isinstance(end_of(finish(engine)["only"]), Finished)


def test_on_a_cpu_all_is_there_at_once() -> None:
    tensor = torch.ones(3)
    copy = HostCopy(tensor)
    assert copy.is_there()
    assert copy.tensor() is tensor
