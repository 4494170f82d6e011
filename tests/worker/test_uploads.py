"""Uploads outlive a storage outage and give up only when the worker leaves."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from PIL import Image

from genmill.jobs import Claim
from genmill.store import Outcome
from tests.fleet import eventually
from tests.worker.doubles import FlakyStorage, receipt
from worker.encoding import durations_ms
from worker.engines.base import Finished, Video
from worker.uploads import Uploader

CLAIM = Claim("j1", 3, "p1", "a", "shapes@1/auto", 0, 0, 1, 1, None, False, None, ("f", [], {}))
FINISHED = Finished("j1", receipt(), images=(Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")))


def test_outputs_go_under_job_and_fence_and_outages_are_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.uploads.FIRST_RETRY_S", 0.001)
    storage = FlakyStorage(failures=3)
    uploader = Uploader(storage, threads=2)
    uploader.start(CLAIM, FINISHED)
    (done,) = eventually(uploader.take_done)
    assert (done.outcome, done.fence) == (Outcome.FINISHED, 3)
    assert sorted(storage.objects) == ["j1/3/0.png", "j1/3/1.png"]
    assert [output["key"] for output in done.result["outputs"]] == ["j1/3/0.png", "j1/3/1.png"]
    uploader.close()


def test_a_leaving_worker_does_not_wait_for_a_dead_storage() -> None:
    uploader = Uploader(FlakyStorage(failures=10**9), threads=1)
    uploader.start(CLAIM, FINISHED)
    assert uploader.is_pending(CLAIM)
    assert uploader.pending() == 2
    uploader.start(replace(CLAIM, job_id="j2"), Finished("j2", receipt(), images=(film(8, count=12),)))
    assert uploader.pending() == 14
    uploader.close()
    assert uploader.take_done() == []
    assert uploader.pending() == 0


def test_any_fault_of_an_upload_ends_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_image: Image.Image) -> bytes:
        raise RuntimeError("no encoder")

    monkeypatch.setattr("worker.uploads.encoded", broken)
    uploader = Uploader(FlakyStorage(), threads=1)
    uploader.start(CLAIM, FINISHED)
    (done,) = eventually(uploader.take_done)
    assert done.outcome is Outcome.FAILED
    assert "no encoder" in str(done.error)
    uploader.close()


def test_what_can_no_longer_be_committed_is_deleted_and_no_neighbour() -> None:
    storage = FlakyStorage()
    for key in ("j1/1/0.png", "j1/2/0.png", "j1/22/0.png", "j2/1/0.png"):
        storage.put(key, b"", "image/png")
    uploader = Uploader(storage, threads=1)
    uploader.discard("j1", range(1, 3))
    uploader.close()
    assert sorted(storage.objects) == ["j1/22/0.png", "j2/1/0.png"]


def film(fps: int, count: int = 12) -> Video:
    return Video(tuple(Image.new("RGB", (16, 8), (20 * number, 0, 200)) for number in range(count)), fps)


def test_a_video_is_stored_as_one_animated_file() -> None:
    storage = FlakyStorage()
    uploader = Uploader(storage, threads=1)
    uploader.start(CLAIM, Finished("j1", receipt(), images=(film(24), film(8, count=2))))
    (done,) = eventually(uploader.take_done)
    uploader.close()
    first, second = done.result["outputs"]
    assert sorted(storage.objects) == ["j1/3/0.webp", "j1/3/1.webp"]
    stored = storage.objects["j1/3/0.webp"]
    facts = {"width": 16, "height": 8, "frames": 12, "fps": 24, "bytes": len(stored.body)}
    assert first == {"key": "j1/3/0.webp", "content_type": "image/webp", **facts}
    assert stored.content_type == "image/webp"
    assert (second["frames"], second["fps"]) == (2, 8)
    with Image.open(io.BytesIO(stored.body)) as video:
        assert (video.format, video.n_frames, video.size) == ("WEBP", 12, (16, 8))
        video.seek(11)
        shown = video.convert("RGB").getpixel((4, 4))
    assert max(abs(one - other) for one, other in zip(shown, (220, 0, 200), strict=True)) < 12


@pytest.mark.parametrize("fps", [1, 7, 16, 24, 30, 60, 1000])
def test_no_rounding_of_a_frames_time_adds_up(fps: int) -> None:
    durations = durations_ms(film(fps, count=97))
    assert sum(durations) == round(97 * 1000 / fps)
    assert max(durations) - min(durations) <= 1
