"""Encoding and storing outputs in threads. A storage that is down costs waiting, never the GPU work again."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from genmill.errors import JobFailure, StorageUnavailable
from genmill.jobs import Claim
from genmill.storage import Storage
from genmill.store import Outcome, Settlement
from worker.encoding import encoded
from worker.engines.base import Finished, Receipt, TextOutput, Video

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("genmill.worker")

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0


class Uploader:
    """`start` a finished job; its settlement comes out of `take_done` once every output is stored."""

    def __init__(self, storage: Storage, threads: int) -> None:
        self._storage = storage
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="upload")
        self._done: queue.SimpleQueue[Settlement] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._is_away = False
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, int], tuple[Future[None], int]] = {}

    def start(self, claim: Claim, finished: Finished) -> None:
        if not finished.images:  # nothing to store
            self._done.put(self._settlement(claim, finished))
            return
        with self._lock:
            future = self._pool.submit(self._store_outputs, claim, finished)
            self._pending[claim.job_id, claim.fence] = future, sum(map(frames_of, finished.images))

    def take_done(self) -> list[Settlement]:
        done = []
        while not self._done.empty():
            done.append(self._done.get())
        return done

    def discard(self, job_id: str, fences: Iterable[int]) -> None:
        """Delete what these attempts stored and can not commit any more. A storage that is down keeps it, unread."""
        for fence in fences:
            self._pool.submit(self._delete, f"{job_id}/{fence}")

    def is_pending(self, claim: Claim) -> bool:
        with self._lock:
            return (claim.job_id, claim.fence) in self._pending

    def pending(self) -> int:
        """Pictures, and frames of videos, that wait in memory to be stored."""
        with self._lock:
            return sum(frames for _, frames in self._pending.values())

    def finish(self) -> None:
        """Store what can be stored at once; what the storage does not take is given back by the worker."""
        self._closing.set()
        with self._lock:
            pending = [future for future, _ in self._pending.values()]
        wait(pending)

    def close(self) -> None:
        """Finish, and end the threads."""
        self._closing.set()
        self._pool.shutdown(wait=True)

    def _store_outputs(self, claim: Claim, finished: Finished) -> None:
        try:
            self._done.put(self._settlement(claim, finished))
        except StorageUnavailable:
            log.warning("job %s: its outputs are not stored, the worker leaves", claim.job_id)
        finally:
            with self._lock:
                del self._pending[claim.job_id, claim.fence]

    def _delete(self, prefix: str) -> None:
        if self._closing.is_set() and self._is_away:  # a leaving worker does not wait for what nobody reads
            return
        try:
            self._storage.delete_prefix(prefix)
        except StorageUnavailable as err:
            self._is_away = True
            log.warning("outputs under %s stay, although nobody reads them: %s", prefix, err.detail)

    def _settlement(self, claim: Claim, finished: Finished) -> Settlement:
        """Raises StorageUnavailable when the worker leaves before the storage is back."""
        try:
            outputs = [self._put(claim, number, image) for number, image in enumerate(finished.images)]
            result = result_of(finished, outputs)
        except StorageUnavailable:
            raise
        except Exception as err:  # the edge of the thread: a job that is not settled would run for ever
            log.exception("output of %s", claim.job_id)
            failure = JobFailure(f"the output could not be stored: {err}")
            return Settlement(claim.job_id, claim.fence, Outcome.FAILED, error=failure)
        return Settlement(claim.job_id, claim.fence, Outcome.FINISHED, result, gpu_ms=finished.receipt.gpu_ms)

    def _put(self, claim: Claim, number: int, output: Image | Video) -> dict[str, Any]:
        body, content_type, suffix, facts = encoded(output)
        key = f"{claim.job_id}/{claim.fence}/{number}{suffix}"
        wait_s = FIRST_RETRY_S
        while True:
            try:
                self._storage.put(key, body, content_type)
                self._is_away = False
                break
            except StorageUnavailable as err:
                self._is_away = True
                log.warning("output %s is not stored yet, trying again in %.1f s: %s", key, wait_s, err.detail)
                if self._closing.wait(wait_s):
                    raise
                wait_s = min(wait_s * 2, LONGEST_RETRY_S)
        return {"key": key, "content_type": content_type, **facts, "bytes": len(body)}


def frames_of(output: Image | Video) -> int:
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
