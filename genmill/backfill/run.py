"""One run of a backfill: hand the lines in, then write what ends, page by page, until the batch has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from genmill.backfill.files import write_outputs
from genmill.backfill.manifest import Manifest
from genmill.batch_calls import BatchCalls
from genmill.batches import BatchState
from genmill.durable_files import sync_folder
from genmill.errors import GenmillError, NotFound
from genmill.jobs import JobState

PAGE = 500
"""Results that are written together: one append to the manifest each."""
POLL_S = 0.5
AWAY_S = 2.0

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Watcher(Protocol):
    """Who is told how the run goes."""

    def progress(self, batch: dict[str, Any], manifest: Manifest) -> None: ...
    def failure(self, result: dict[str, Any]) -> None: ...
    def away(self, error: GenmillError) -> None: ...


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """`patience_s`: how long a server that is away is waited for. `is_again`: run what failed once more."""

    priority: str = "p3"
    expires_in_s: int | None = None
    downloads: int = 8
    patience_s: float = 300.0
    is_again: bool = False
    webhook: str | None = None


class Backfill:
    """Safe to end at any moment and to start again: the server keeps the lines and runs each once, the manifest keeps
    what is written."""

    def __init__(
        self, batches: BatchCalls, manifest: Manifest, folder: Path, options: BackfillOptions, watcher: Watcher
    ) -> None:
        self._batches, self._manifest, self._folder = batches, manifest, folder
        self._options, self._watcher = options, watcher

    def run(self, source: Path) -> dict[str, Any]:
        """Returns the batch as it ended. Raises the client's errors."""
        batch = self._take_up(source)
        with ThreadPoolExecutor(self._options.downloads, thread_name_prefix="download") as pool:
            for earlier in self._earlier(batch):
                self._follow(earlier, pool, is_last=False)
            return self._follow(batch, pool, is_last=True)

    def _take_up(self, source: Path) -> dict[str, Any]:
        """The batch of the manifest, or a new one. After a kill before it stands there, the next run gets the same."""
        known = self._manifest.batch_id
        if known is None:
            asked = self._options
            batch = self._patiently(self._batches.create, source, asked.priority, asked.expires_in_s, asked.webhook)
        elif self._options.is_again:
            batch = self._patiently(self._batches.resume, known)
        else:
            return self._patiently(self._batches.read, known)
        if batch["id"] != known:
            self._manifest.begin(batch["id"])
        return batch

    def _earlier(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        """Batches that this one resumes, first to last, as far as the server still knows them."""
        found: list[dict[str, Any]] = []
        while (resumed := batch["resume_of"]) is not None:
            try:
                batch = self._patiently(self._batches.read, resumed)
            except NotFound:
                break
            found.insert(0, batch)
        return found

    def _follow(self, batch: dict[str, Any], pool: ThreadPoolExecutor, *, is_last: bool) -> dict[str, Any]:
        """Until all its results are written. Of a batch that was resumed, what did not succeed is another's by now."""
        batch_id = batch["id"]
        while True:
            after = self._manifest.seen(batch_id)
            results = self._patiently(self._batches.results, batch_id, after, PAGE)
            if results:
                self._write(batch_id, results, pool, is_last=is_last)
            else:
                batch = self._patiently(self._batches.read, batch_id)
                if BatchState(batch["status"]).is_terminal and batch["results"] <= after:
                    return batch
                time.sleep(POLL_S)
            if is_last:
                self._watcher.progress(batch, self._manifest)

    def _write(self, batch_id: str, results: list[dict[str, Any]], pool: ThreadPoolExecutor, *, is_last: bool) -> None:
        entries = list(pool.map(lambda result: self._entry(batch_id, result, is_last=is_last), results))
        sync_folder(self._folder)
        self._manifest.enter(batch_id, entries)
        for result in results if is_last else ():
            if result["state"] != JobState.SUCCEEDED:
                self._watcher.failure(result)

    def _entry(self, batch_id: str, result: dict[str, Any], *, is_last: bool) -> dict[str, Any]:
        entry = {"seq": result["seq"], "custom_id": result["custom_id"]}
        if result["state"] == JobState.SUCCEEDED:
            files = self._patiently(self._outputs, batch_id, result)
            return {**entry, "state": result["state"], "files": files}
        if not is_last:
            return entry
        return {**entry, "state": result["state"], "files": [], "error": result["error"]}

    def _outputs(self, batch_id: str, result: dict[str, Any]) -> list[str]:
        """With links of their own where those of the page have expired meanwhile."""
        try:
            return write_outputs(result, self._folder, self._batches.fetch)
        except GenmillError as err:
            if err.status != 410:
                raise
            (fresh,) = self._batches.results(batch_id, result["seq"] - 1, 1)
            return write_outputs(fresh, self._folder, self._batches.fetch)

    def _patiently(self, call: Callable[Arguments, Answer], *args: Arguments.args, **more: Arguments.kwargs) -> Answer:
        """Waits for a server that restarts."""
        deadline = time.monotonic() + self._options.patience_s
        while True:
            try:
                return call(*args, **more)
            except GenmillError as err:
                if not err.is_retryable or time.monotonic() >= deadline:
                    raise
                self._watcher.away(err)
                time.sleep(AWAY_S)
