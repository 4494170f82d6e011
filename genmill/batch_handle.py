"""Batches, as the Python client holds them."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from genmill.batch_calls import BatchCalls
from genmill.batches import BatchState
from genmill.sendable_images import with_images

PAGE = 500
"""Results that are asked for at once."""
LOOK_S = 1.0
"""Between two looks at a batch that is waited for."""
FINALIZING = "finalizing"
"""What a batch of OpenAI's client is called while it expires."""


class BatchHandle:
    """A batch as it was when last read; `data` is the whole view of `GET /v1/batches/{id}`."""

    def __init__(self, calls: BatchCalls, data: dict[str, Any]) -> None:
        self._calls = calls
        self.data = data

    def __repr__(self) -> str:
        return f"BatchHandle({self.id!r}, {self.state.value})"

    @property
    def id(self) -> str:
        """
        >>> client.batches.get(batch.id).id == batch.id
        True
        """
        return str(self.data["id"])

    @property
    def state(self) -> BatchState:
        """
        >>> batch.state.value
        'completed'
        """
        status = self.data["status"]
        return BatchState.EXPIRING if status == FINALIZING else BatchState(status)

    @property
    def is_done(self) -> bool:
        """
        >>> batch.is_done
        True
        """
        return self.state.is_terminal

    @property
    def counts(self) -> dict[str, int]:
        """Lines: total, waiting, running, succeeded, failed, canceled, skipped.

        >>> batch.counts["total"], batch.counts["succeeded"]
        (2, 2)
        """
        return dict(self.data["counts"])

    def refresh(self) -> Self:
        """Read the batch anew.

        >>> batch.refresh().counts["running"]
        0
        """
        self.data = self._calls.read(self.id)
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Return at the batch's end, whichever it is. Raises TimeoutError after `timeout` seconds.

        >>> batch.wait(60).state.value
        'completed'
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"batch {self.id} is still {self.state.value} after {timeout} s")
            time.sleep(LOOK_S if deadline is None else max(0.0, min(LOOK_S, deadline - time.monotonic())))
            self.refresh()
        return self

    def results(self, after: int = 0, *, follow: bool = False) -> Iterator[dict[str, Any]]:
        """What lines have made, each once, in a lasting order: `seq` (to go on `after` the last one), custom_id,
        state, outputs, text, error. As far as they have ended by now, or with `follow` to the end of the batch.

        >>> sorted(result["custom_id"] for result in batch.results())
        ['one', 'two']
        """
        while True:
            is_whole = self.is_done
            rows = self._calls.results(self.id, after, PAGE)
            yield from rows
            after = rows[-1]["seq"] if rows else after
            if not rows and (is_whole or not follow):
                return
            if not rows:
                time.sleep(LOOK_S)
                self.refresh()

    def cancel(self) -> Self:
        """Cancel what waits; what runs may end. `data["cancel"]` tells what that did.

        >>> batch.cancel().data["cancel"]
        'too_late'
        """
        self.data = self._calls.cancel(self.id)
        return self

    def resume(self) -> BatchHandle:
        """A batch of the lines that did not succeed here; this one while it runs, or when none are left.

        >>> batch.resume().id == batch.id
        True
        """
        return BatchHandle(self._calls, self._calls.resume(self.id))

    def deliveries(self) -> list[dict[str, Any]]:
        """What became of the batch's webhook: id, event, state, attempts.

        >>> [(delivery["event"], delivery["state"]) for delivery in batch.deliveries()]
        [('completed', 'delivered')]
        """
        return self._calls.deliveries(self.id)

    def redeliver(self, delivery_id: str | None = None) -> dict[str, Any]:
        """Send the batch's webhook once more, as `JobHandle.redeliver` does.

        >>> batch.redeliver()["event"]
        'completed'
        """
        return self._calls.redeliver(self.id, delivery_id)


class Batches:
    """`client.batches`. Every call is safe to repeat, and is repeated: the same lines are one batch.

    >>> lines = [{"custom_id": name, "model": "captions", "input": {"prompt": "a red"}} for name in ("one", "two")]
    >>> client.batches.create(lines, webhook=webhook).wait(60).counts["succeeded"]
    2
    """

    def __init__(self, calls: BatchCalls) -> None:
        self._calls = calls

    def create(
        self, lines: Path | str | Iterable[Mapping[str, Any]], *, priority: str = "p3",
        expires_in_s: int | None = None, webhook: str | None = None,
    ) -> BatchHandle:  # fmt: skip
        """A batch of these lines, each {custom_id, model, input, ...}, or of a file (its path) with one on each line.
        Images of an input may be paths, as for `Client.submit`, but not in a file. The `webhook` is called once it has
        ended.

        Of the same lines that run, or ran without a failure, there is one batch; where they ended otherwise, the batch
        has the rest of them. Raises BatchInvalid with numbered faults, and nothing is kept.

        >>> line = {"custom_id": "three", "model": "captions", "input": {"prompt": "a blue"}}
        >>> client.batches.create([line], expires_in_s=3600).counts["total"]
        1
        """
        if isinstance(lines, Path | str):
            return BatchHandle(self._calls, self._calls.create(Path(lines), priority, expires_in_s, webhook))
        with tempfile.TemporaryDirectory(prefix="genmill-") as folder:  # read once, and sent as often as it takes
            path = Path(folder) / "lines.jsonl"
            with path.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(_sendable(line)) + "\n" for line in lines)
            return BatchHandle(self._calls, self._calls.create(path, priority, expires_in_s, webhook))

    def get(self, batch_id: str) -> BatchHandle:
        """Raises BatchNotFound.

        >>> client.batches.get(batch.id).state.value
        'completed'
        """
        return BatchHandle(self._calls, self._calls.read(batch_id))

    def list(self, *, limit: int = 20) -> Sequence[BatchHandle]:
        """Your batches, newest first, over as many pages as `limit` needs.

        >>> batch.id in [one.id for one in client.batches.list(limit=100)]
        True
        """
        return [BatchHandle(self._calls, data) for data in self._calls.list_newest(limit)]

    def cancel(self, batch_id: str) -> BatchHandle:
        """As `BatchHandle.cancel`.

        >>> client.batches.cancel(batch.id).data["cancel"]
        'too_late'
        """
        return BatchHandle(self._calls, self._calls.cancel(batch_id))

    def results(self, batch_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """As `BatchHandle.results`, as far as lines have ended by now.

        >>> {result["state"] for result in client.batches.results(batch.id)}
        {'succeeded'}
        """
        yield from self.get(batch_id).results(after)


def _sendable(line: Mapping[str, Any]) -> dict[str, Any]:
    given = line.get("input")
    return {**line, "input": with_images(given)} if isinstance(given, Mapping) else dict(line)
