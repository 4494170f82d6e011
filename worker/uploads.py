"""Making the pixels of outputs, encoding and storing them in threads, so that no step of the engines waits for it. A
storage that is down costs waiting, never the GPU work again."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from genmill.errors import JobFailure, StorageUnavailable
from genmill.jobs import Claim
from genmill.keeping import outputs_folder
from genmill.storage import Storage
from genmill.store import Outcome, Settlement
from worker.encoding import Encoded, developed, encoded
from worker.engines.base import Finished, Receipt, TextOutput, Undeveloped, Video, is_device_lost
from worker.traces import trace

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("genmill.worker")

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0


class Uploader:
    """`start` a finished job; its settlement comes out of `take_done` once every output is stored, or was none.

    One set of threads makes files of outputs, as they come, another stores them: while the storage is away only files
    wait, which are much smaller than what the engines hand over."""

    def __init__(self, storage: Storage, threads: int, shelve: Callable[[str], None]) -> None:
        """`shelve` takes the id of a job of which something is to be stored; it may raise RedisError."""
        self._storage, self._shelve = storage, shelve
        self._encoders = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="upload")
        self._done: queue.SimpleQueue[Settlement] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._is_away = False
        self._lost: Exception | None = None
        self._changed = threading.Condition()
        self._pending: dict[tuple[str, int], int] = {}

    def start(self, claim: Claim, finished: Finished) -> None:
        if not finished.images:  # nothing to store
            self._done.put(_settled(claim, finished, []))
            return
        with self._changed:
            self._pending[claim.job_id, claim.fence] = sum(map(frames_of, finished.images))
        self._encoders.submit(self._encode, claim, finished)

    def take_done(self) -> list[Settlement]:
        """Raises what told a thread that the device is lost: then the process must end."""
        if self._lost is not None:
            raise self._lost
        done = []
        while not self._done.empty():
            done.append(self._done.get())
        return done

    def discard(self, job_id: str, fences: Iterable[int]) -> None:
        """Delete what these attempts stored and can not commit any more. A storage that is down keeps it, unread."""
        for fence in fences:
            self._pool.submit(self._delete, f"{outputs_folder(job_id)}/{fence}")

    def is_pending(self, claim: Claim) -> bool:
        with self._changed:
            return (claim.job_id, claim.fence) in self._pending

    def pending(self) -> int:
        """Pictures, and frames of videos, that wait in memory to be stored."""
        with self._changed:
            return sum(self._pending.values())

    def finish(self) -> None:
        """Store what can be stored at once; what the storage does not take is given back by the worker."""
        self._closing.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def close(self) -> None:
        """Finish, and end the threads."""
        self._closing.set()
        self._encoders.shutdown(wait=True)
        self._pool.shutdown(wait=True)

    def _encode(self, claim: Claim, finished: Finished) -> None:
        try:
            files = [encoded(developed(output)) for output in finished.images]
        except Exception as err:  # noqa: BLE001  # the edge of the thread: a job that is not settled would run for ever
            if is_device_lost(err):
                self._lost = err
                self._end(claim)
            else:
                self._end(claim, _failed(claim, finished, err, "written as a file"))
        else:
            self._pool.submit(self._store, claim, finished, files)

    def _store(self, claim: Claim, finished: Finished, files: Sequence[Encoded]) -> None:
        try:
            self._persist(f"the shelf of job {claim.job_id}", lambda: self._shelve(claim.job_id))
            outputs = [self._put(claim, number, file) for number, file in enumerate(files)]
            self._end(claim, _settled(claim, finished, outputs))
        except StorageUnavailable:
            log.warning("job %s: its outputs are not stored, the worker leaves", claim.job_id)
            self._end(claim)
        except Exception as err:  # noqa: BLE001  # the edge of the thread, as above
            try:
                self._delete(f"{outputs_folder(claim.job_id)}/{claim.fence}")
            finally:  # whatever is wrong with the storage
                self._end(claim, _failed(claim, finished, err, "stored"))

    def _end(self, claim: Claim, settlement: Settlement | None = None) -> None:
        """It waits for nothing any more; without a settlement the worker gives the job back."""
        if settlement is not None:
            self._done.put(settlement)
        with self._changed:
            del self._pending[claim.job_id, claim.fence]
            self._changed.notify_all()

    def _delete(self, prefix: str) -> None:
        if self._closing.is_set() and self._is_away:  # a leaving worker does not wait for what nobody reads
            return
        try:
            self._storage.delete_prefix(prefix)
        except StorageUnavailable as err:
            self._is_away = True
            log.warning("outputs under %s stay, although nobody reads them: %s", prefix, err.detail)

    def _put(self, claim: Claim, number: int, file: Encoded) -> dict[str, Any]:
        """The output as results tell of it. Raises StorageUnavailable when the worker leaves before the storage is
        back."""
        key = f"{outputs_folder(claim.job_id)}/{claim.fence}/{number}{file.suffix}"
        self._persist(f"output {key}", lambda: self._storage.put(key, file.body, file.content_type))
        return {"key": key, "content_type": file.content_type, **file.facts, "bytes": len(file.body)}

    def _persist(self, what: str, store: Callable[[], None]) -> None:
        """Again until it is done. Raises StorageUnavailable when the worker leaves before that."""
        wait_s = FIRST_RETRY_S
        while True:
            try:
                store()
            except (StorageUnavailable, RedisError) as err:
                self._is_away = True
                log.warning("%s is not stored yet, trying again in %.1f s: %s", what, wait_s, err)
                if self._closing.wait(wait_s):
                    raise StorageUnavailable(f"{what} is not stored") from err
                wait_s = min(wait_s * 2, LONGEST_RETRY_S)
            else:
                self._is_away = False
                return


def _settled(claim: Claim, finished: Finished, outputs: list[dict[str, Any]]) -> Settlement:
    result = result_of(finished, outputs)
    return Settlement(claim.job_id, claim.fence, Outcome.FINISHED, result, gpu_ms=finished.receipt.gpu_ms)


def _failed(claim: Claim, finished: Finished, fault: Exception, done: str) -> Settlement:
    """`done`: what could not be done with the output. Its GPU time is spent all the same."""
    error = fault
    if not isinstance(error, JobFailure):
        log.error("output of %s", claim.job_id, exc_info=fault)
        error = JobFailure(f"the output could not be {done}; the cause is logged")
        error.__cause__ = fault
    gpu_ms = finished.receipt.gpu_ms
    return Settlement(claim.job_id, claim.fence, Outcome.FAILED, error=error, exc=trace(error), gpu_ms=gpu_ms)


def frames_of(output: Image | Video | Undeveloped) -> int:
    if isinstance(output, Undeveloped):
        return output.frames
    return len(output.frames) if isinstance(output, Video) else 1


def result_of(finished: Finished, outputs: list[dict[str, Any]]) -> Mapping[str, Any]:
    """The job's result as it is stored: outputs by storage key, text, receipt."""
    result: dict[str, Any] = {"outputs": outputs, "receipt": _fields(finished.receipt)}
    if finished.text is not None:
        result["text"] = {name: value for name, value in _fields(finished.text).items() if value is not None}
    return result


def _fields(record: Receipt | TextOutput) -> dict[str, Any]:
    """Of a flat record; dataclasses.asdict copies each value deeply, which takes longer than all else here."""
    return {name: getattr(record, name) for name in record.__slots__}
