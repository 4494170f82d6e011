"""What the worker tells of running jobs: in few writes, in order, also over an outage."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from PIL import Image
from redis import Redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis's own

from genmill import keys
from genmill.events import Delta, Preview
from genmill.jobs import Claim
from genmill.store import Store, scripts
from genmill.store.events import EventLog
from tests.fleet import eventually
from worker import publisher
from worker.engines.base import TextDelta
from worker.publisher import MAX_PREVIEW_BYTES, Publisher, encode_preview

CLAIM = Claim("j1", 3, "p1", "a", "captions@1/auto", 0.0, 0, 1, 1.0, None, False, None, ("", [], {}))


class CountingLog(EventLog):
    """Notes each write; the first `failures` do not reach Redis."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis, scripts.register(redis)["progress"])
        self.writes: list[list[tuple[str, Delta]]] = []
        self.failures = 0

    def write(self, deltas: Sequence[tuple[str, Delta]], previews: Sequence[tuple[str, Preview]]) -> None:
        self.writes.append(list(deltas))
        if len(self.writes) <= self.failures:
            raise ConnectionError("down for the test")
        super().write(deltas, previews)


@pytest.fixture
def log(redis: Redis) -> CountingLog:
    return CountingLog(redis)


@pytest.fixture
def told(log: CountingLog) -> Iterator[Publisher]:
    told = Publisher(log)
    yield told
    told.close()


def kept(log: EventLog, job_id: str = "j1") -> tuple[Delta, ...]:
    return log.first_look({job_id: True})[job_id].deltas


def test_texts_of_all_jobs_go_out_together(log: CountingLog, told: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "PAUSE_S", 0.2)
    others = [replace(CLAIM, job_id=f"j{number}") for number in range(2, 6)]
    told.note_text(CLAIM, TextDelta(0, "a"))
    eventually(lambda: kept(log), every_s=0.005)  # the first goes out at once, the others wait for each other
    for number in range(10):
        told.note_text(CLAIM, TextDelta(1 + number, "b"))
        for other in others:
            told.note_text(other, TextDelta(number, "c"))
    eventually(lambda: len(kept(log)) == 2, every_s=0.005)
    assert kept(log) == (Delta(3, 0, "a"), Delta(3, 1, "b" * 10))
    assert kept(log, "j5") == (Delta(3, 0, "c" * 10),)
    assert [len(write) for write in log.writes] == [1, 5]


def test_an_outage_loses_nothing(log: CountingLog, told: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "AWAY_S", 0.05)
    log.failures = 2
    for offset, text in enumerate("abcdef"):
        told.note_text(CLAIM, TextDelta(offset, text))
    eventually(lambda: "".join(delta.text for delta in kept(log)) == "abcdef", every_s=0.005)
    assert len(log.writes) >= 3


def test_what_is_kept_is_bounded_and_ends(redis: Redis, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_DELTAS", 5)
    store.events.write([("j1", Delta(1, n, "x")) for n in range(900)], [("j1", Preview(1, 2, b"webp"))])
    assert 5 <= redis.xlen(keys.tokens("j1")) <= 105  # Redis lets whole nodes of a hundred go
    assert 0 < redis.ttl(keys.tokens("j1")) <= keys.TOKENS_TTL_S
    assert 0 < redis.ttl(keys.preview("j1")) <= keys.PREVIEW_TTL_S


def test_a_preview_is_drawn_elsewhere_and_one_at_a_time(log: CountingLog, told: Publisher) -> None:
    may_go, drawn = threading.Event(), []

    def sketch_of(colour: str) -> Callable[[], Image.Image]:
        def draw() -> Image.Image:
            drawn.append(threading.current_thread().name)
            may_go.wait(10)
            return Image.new("RGB", (8, 6), colour)

        return draw

    told.note_sketch(CLAIM, 1, sketch_of("red"))
    told.note_sketch(CLAIM, 2, sketch_of("blue"))
    may_go.set()
    preview = eventually(lambda: log.preview("j1"), every_s=0.005)
    assert preview[:2] == (3, 1)
    assert [name.startswith("preview") for name in drawn] == [True]
    picture = Image.open(io.BytesIO(preview.image))
    assert (picture.format, picture.size) == ("WEBP", (128, 96))


def test_a_sketch_that_fails_harms_nothing(log: CountingLog, told: Publisher) -> None:
    def fail() -> Image.Image:
        raise ValueError("no picture")

    told.note_sketch(CLAIM, 1, fail)
    eventually(lambda: not told._drawing, every_s=0.005)
    told.note_sketch(CLAIM, 2, lambda: Image.new("RGB", (600, 300)))
    preview = eventually(lambda: log.preview("j1"), every_s=0.005)
    assert Image.open(io.BytesIO(preview.image)).size == (256, 128)


def test_previews_are_bounded() -> None:
    noise = Image.effect_noise((256, 256), 200).convert("RGB")
    image = encode_preview(noise)
    assert image is not None
    assert len(image) <= MAX_PREVIEW_BYTES


def test_closing_writes_what_is_left(log: CountingLog, told: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "PAUSE_S", 0.1)
    for offset in range(3):
        told.note_text(CLAIM, TextDelta(offset, "x"))
    told.close()
    assert "".join(delta.text for delta in kept(log)) == "xxx"
