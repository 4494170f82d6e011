"""Uploads outlive a storage outage and give up only when the worker leaves."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from functools import partial

import pytest
from PIL import Image
from redis.exceptions import ConnectionError as RedisConnectionError

from genmill.batches.records import job_id_of
from genmill.errors import OutputInvalid
from genmill.jobs import Claim, new_job_id
from genmill.store import Outcome, Settlement
from tests.fleet import eventually
from tests.worker.doubles import FlakyStorage, receipt
from worker.encoding import durations_ms
from worker.engines.base import Finished, Undeveloped, Video
from worker.uploads import Uploader

SHELF: list[str] = []
CLAIM = Claim("j1", 3, "p1", "a", "shapes@1/auto", 0, 0, 1, 1, None, False, None, ("f", [], {}))
FINISHED = Finished("j1", receipt(), images=(Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")))


def test_outputs_go_under_job_and_fence_and_outages_are_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.uploads.FIRST_RETRY_S", 0.001)
    SHELF.clear()
    storage = FlakyStorage(failures=3)
    uploader = Uploader(storage, threads=2, shelve=SHELF.append)
    uploader.start(CLAIM, FINISHED)
    (done,) = eventually(uploader.take_done)
    assert (done.outcome, done.fence) == (Outcome.FINISHED, 3)
    assert SHELF == ["j1"]
    assert sorted(storage.objects) == ["outputs/j1/3/0.png", "outputs/j1/3/1.png"]
    assert [output["key"] for output in done.result["outputs"]] == ["outputs/j1/3/0.png", "outputs/j1/3/1.png"]
    uploader.close()


def test_nothing_is_stored_of_a_job_that_is_on_no_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.uploads.FIRST_RETRY_S", 0.001)
    storage, tries = FlakyStorage(), []

    def shelve(job_id: str) -> None:
        tries.append((job_id, sorted(storage.objects)))
        if len(tries) < 3:
            raise RedisConnectionError

    uploader = Uploader(storage, threads=1, shelve=shelve)
    uploader.start(CLAIM, FINISHED)
    (done,) = eventually(uploader.take_done)
    assert (done.outcome, tries) == (Outcome.FINISHED, [("j1", [])] * 3)
    uploader.close()


def test_outputs_of_a_line_lie_with_its_batch() -> None:
    storage, batch = FlakyStorage(), f"batch_{new_job_id()}"
    uploader = Uploader(storage, threads=1, shelve=SHELF.append)
    uploader.start(replace(CLAIM, job_id=job_id_of(batch, 7)), FINISHED)
    eventually(uploader.take_done)
    assert sorted(storage.objects) == [f"batches/{batch}/outputs/7/3/{number}.png" for number in (0, 1)]
    uploader.discard(job_id_of(batch, 7), [3])
    uploader.close()
    assert not storage.objects


def test_a_leaving_worker_does_not_wait_for_a_dead_storage() -> None:
    uploader = Uploader(FlakyStorage(failures=10**9), threads=1, shelve=SHELF.append)
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
    uploader = Uploader(FlakyStorage(), threads=1, shelve=SHELF.append)
    uploader.start(CLAIM, FINISHED)
    (done,) = eventually(uploader.take_done)
    assert done.outcome is Outcome.FAILED
    assert "could not be written as a file" in str(done.error)
    assert "no encoder" not in str(done.error), "the cause is for the operator"
    assert "no encoder" in done.exc
    uploader.close()


def test_a_storage_that_can_neither_keep_nor_delete_ends_the_job_all_the_same() -> None:
    class Broken(FlakyStorage):
        def put(self, *_: object) -> None:
            raise OSError("no space left")

        def delete_prefix(self, *_: object) -> None:
            raise PermissionError("read only")

    uploader = Uploader(Broken(), threads=1, shelve=SHELF.append)
    uploader.start(CLAIM, FINISHED)
    (done,) = eventually(uploader.take_done)
    assert (done.outcome, uploader.pending()) == (Outcome.FAILED, 0)
    assert "could not be stored" in str(done.error)
    uploader.close()


def test_what_can_no_longer_be_committed_is_deleted_and_no_neighbour() -> None:
    storage = FlakyStorage()
    for key in ("outputs/j1/1/0.png", "outputs/j1/2/0.png", "outputs/j1/22/0.png", "outputs/j2/1/0.png"):
        storage.put(key, b"", "image/png")
    uploader = Uploader(storage, threads=1, shelve=SHELF.append)
    uploader.discard("j1", range(1, 3))
    uploader.close()
    assert sorted(storage.objects) == ["outputs/j1/22/0.png", "outputs/j2/1/0.png"]


def film(fps: int, count: int = 12) -> Video:
    return Video(tuple(Image.new("RGB", (16, 8), (20 * number, 0, 200)) for number in range(count)), fps)


def test_a_video_is_stored_as_one_animated_file() -> None:
    storage = FlakyStorage()
    uploader = Uploader(storage, threads=1, shelve=SHELF.append)
    uploader.start(CLAIM, Finished("j1", receipt(), images=(film(24), film(8, count=2))))
    (done,) = eventually(uploader.take_done)
    uploader.close()
    first, second = done.result["outputs"]
    assert sorted(storage.objects) == ["outputs/j1/3/0.webp", "outputs/j1/3/1.webp"]
    stored = storage.objects["outputs/j1/3/0.webp"]
    facts = {"width": 16, "height": 8, "frames": 12, "fps": 24, "bytes": len(stored.body)}
    assert first == {"key": "outputs/j1/3/0.webp", "content_type": "image/webp", **facts}
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


def fails(error: Exception) -> Undeveloped:
    def develop() -> Image.Image:
        raise error

    return Undeveloped(develop)


def test_pixels_are_made_by_threads_of_their_own() -> None:
    makers: list[str] = []

    def develop() -> Image.Image:
        makers.append(threading.current_thread().name)
        return Image.new("RGB", (8, 8), "red")

    storage, given = FlakyStorage(), (Undeveloped(develop), Undeveloped(lambda: film(8), 12))
    uploader = Uploader(storage, threads=1, shelve=SHELF.append)
    uploader.start(CLAIM, Finished("j1", receipt(), images=given))
    (done,) = eventually(uploader.take_done)
    uploader.close()
    assert [output["content_type"] for output in done.result["outputs"]] == ["image/png", "image/webp"]
    assert [name.startswith("encode") for name in makers] == [True]


def test_frames_that_are_not_made_yet_count_as_waiting() -> None:
    uploader = Uploader(FlakyStorage(failures=10**9), threads=1, shelve=SHELF.append)
    uploader.start(CLAIM, Finished("j1", receipt(), images=(Undeveloped(lambda: film(8), 12),)))
    assert uploader.pending() == 12
    uploader.close()


def test_while_the_storage_is_away_no_pixels_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """More jobs than threads: those that find none to store them are files already."""
    monkeypatch.setattr("worker.uploads.FIRST_RETRY_S", 0.001)
    storage, made = FlakyStorage(failures=10**9), list[int]()

    def develop(number: int) -> Image.Image:
        made.append(number)
        return Image.new("RGB", (8, 8), "red")

    uploader = Uploader(storage, threads=1, shelve=SHELF.append)
    for number in range(5):
        claim = replace(CLAIM, job_id=f"j{number}")
        uploader.start(claim, Finished(claim.job_id, receipt(), images=(Undeveloped(partial(develop, number)),)))
    eventually(lambda: len(made) == 5)
    assert made == list(range(5))
    assert uploader.pending() == 5
    storage.failures = 0
    done = list[Settlement]()
    eventually(lambda: (done.extend(uploader.take_done()), len(done) == 5)[1])
    assert [one.outcome for one in done] == [Outcome.FINISHED] * 5
    uploader.close()


def test_an_output_that_is_none_fails_its_job_costs_its_time_and_leaves_nothing() -> None:
    storage = FlakyStorage()
    uploader = Uploader(storage, threads=1, shelve=SHELF.append)
    good = Image.new("RGB", (8, 8), "red")
    uploader.start(CLAIM, Finished("j1", receipt(gpu_ms=7.0), images=(good, fails(OutputInvalid()))))
    (done,) = eventually(uploader.take_done)
    assert (done.outcome, done.gpu_ms, type(done.error)) == (Outcome.FAILED, 7.0, OutputInvalid)
    assert "OutputInvalid" in done.exc
    uploader.start(CLAIM, Finished("j1", receipt(), images=(good, fails(ValueError("no such colours")))))
    (done,) = eventually(uploader.take_done)
    assert (done.outcome, done.gpu_ms) == (Outcome.FAILED, 5.0)
    assert "no such colours" in done.exc
    uploader.close()
    assert storage.objects == {}


def test_a_device_that_is_lost_meanwhile_is_told_to_the_loop() -> None:
    class AcceleratorError(RuntimeError):
        """As torch names it."""

    uploader = Uploader(FlakyStorage(), threads=1, shelve=SHELF.append)
    uploader.start(CLAIM, Finished("j1", receipt(), images=(fails(AcceleratorError("gone")),)))
    eventually(lambda: not uploader.is_pending(CLAIM))
    with pytest.raises(AcceleratorError):
        uploader.take_done()
    uploader.close()
