"""Many requests of one client at once: bounded, patient, each on its own."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from genmill.errors import FieldFault, GenmillError, InvalidRequest
from genmill.job_handle import JobHandle
from genmill.jobs import JobState, failure_of

if TYPE_CHECKING:
    from genmill.client import Client

MOST_AT_ONCE = 64
"""Each holds a connection; the client has a hundred."""
LOOK_S = 10.0
"""How long a job is waited for before it is asked whether anybody still wants to know."""
AWAY_S = 2.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Mapped:
    """What became of one request of `Client.map`, the one at `index`, counted from 0.

    `error`: why it was not submitted, or is not known to have ended (its `job` then goes on). A job that itself failed
    has none: it tells in its own `state` and `error`, as any job.
    """

    index: int
    request: Mapping[str, Any]
    job: JobHandle | None
    error: Exception | None

    @property
    def is_success(self) -> bool:
        """Whether its job has succeeded.

        >>> requests = [{"model": name, "input": {"prompt": "a red"}} for name in ("captions", "no such model")]
        >>> [one.is_success for one in client.map(requests)]
        [True, False]
        """
        return self.error is None and self.job is not None and self.job.state is JobState.SUCCEEDED

    def result(self) -> JobHandle:
        """The job that has succeeded. Raises the `error`, or the JobFailure that the job tells of.

        >>> [one.result().text for one in client.map([{"model": "captions", "input": {"prompt": "a red"}}])]
        ['...']
        """
        if self.error is not None or self.job is None:
            raise self.error or InvalidRequest()
        if self.job.state is not JobState.SUCCEEDED:
            raise failure_of(self.job.error)
        return self.job


def map_requests(
    client: Client, requests: Iterable[Mapping[str, Any]], *, concurrency: int, is_ordered: bool,
    timeout_s: float | None, patience_s: float,
) -> Iterator[Mapped]:  # fmt: skip
    """See Client.map. Raises InvalidRequest at once for a concurrency that is out of bounds."""
    if not 1 <= concurrency <= MOST_AT_ONCE:
        detail = f"concurrency must be between 1 and {MOST_AT_ONCE}, got {concurrency}"
        raise InvalidRequest(
            detail, faults=(FieldFault("/concurrency", detail, f"1..{MOST_AT_ONCE}", f"{concurrency}"),)
        )
    return _Crowd(client, timeout_s, patience_s).run(requests, concurrency, is_ordered=is_ordered)


class _Crowd:
    """Requests under way, each in a thread that nobody waits for at exit."""

    def __init__(self, client: Client, timeout_s: float | None, patience_s: float) -> None:
        self._client, self._timeout_s, self._patience_s = client, timeout_s, patience_s
        self._is_over = Event()

    def run(self, requests: Iterable[Mapping[str, Any]], concurrency: int, *, is_ordered: bool) -> Iterator[Mapped]:
        """Whoever leaves off early leaves the jobs that are submitted to the fleet; no more are."""
        source: Iterator[tuple[int, Mapping[str, Any]]] | None = enumerate(requests)
        under_way, trouble = list[Future[Mapped]](), None
        try:
            while True:
                if (ended := _first_ended(under_way, is_ordered=is_ordered)) is not None:
                    under_way.remove(ended)
                    yield ended.result()
                elif source is not None and len(under_way) < concurrency:
                    try:
                        under_way.append(self._begin(*next(source)))
                    except StopIteration:
                        source = None
                    except Exception as err:  # noqa: BLE001 - the caller's own iterator: first what is under way
                        source, trouble = None, err
                elif under_way:
                    wait(under_way[:1] if is_ordered else under_way, return_when=FIRST_COMPLETED)
                else:
                    break
            if trouble is not None:
                raise trouble
        finally:
            self._is_over.set()

    def _begin(self, index: int, request: Mapping[str, Any]) -> Future[Mapped]:
        future = Future[Mapped]()
        Thread(
            target=lambda: future.set_result(self._mapped(index, request)), name=f"map-{index}", daemon=True
        ).start()
        return future

    def _mapped(self, index: int, request: Mapping[str, Any]) -> Mapped:
        job: JobHandle | None = None
        try:
            given = {"idempotency_key": uuid.uuid4().hex, **request}
            job = self._patiently(lambda: self._client.submit(**given))
            self._await_end(job)
        except Exception as err:  # noqa: BLE001 - the edge of one request: what is wrong with it ends no other
            return Mapped(index, request, job, err)
        return Mapped(index, request, job, None)

    def _await_end(self, job: JobHandle) -> None:
        """Raises TimeoutError, whatever keeps the server away by then."""
        until = math.inf if self._timeout_s is None else time.monotonic() + self._timeout_s
        while not job.is_done and not self._is_over.is_set():
            if time.monotonic() >= until:
                raise TimeoutError(f"job {job.id} is still {job.state.value} after {self._timeout_s:g} s")
            with suppress(TimeoutError):
                self._patiently(lambda: job.wait(min(LOOK_S, until - time.monotonic())), until)

    def _patiently(self, call: Callable[[], Answer], until: float = math.inf) -> Answer:
        """A server that is away, or a quota that is used up, is waited for, as its Retry-After says, as long as
        patience lasts; after `until` on the monotonic clock `call` is made at once, and knows what to raise."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return call()
            except GenmillError as err:
                now = time.monotonic()
                if not err.is_retryable or self._is_over.is_set() or now >= deadline:
                    raise
                self._is_over.wait(min(err.retry_after_s or AWAY_S, max(0.0, min(deadline, until) - now)))


def _first_ended(under_way: list[Future[Mapped]], *, is_ordered: bool) -> Future[Mapped] | None:
    candidates = under_way[:1] if is_ordered else under_way
    return next((one for one in candidates if one.done()), None)
