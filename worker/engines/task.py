"""A pipeline call in a greenlet of its own, with its own thread state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]  # it ships no types

from worker.engines.batches import ParkedCall, Phase
from worker.engines.meter import Meter
from worker.engines.rows import Digests
from worker.engines.threadstate import ThreadState


class Evicted(GreenletExit):  # type: ignore[misc]  # greenlet has no types
    """Raised inside a pipeline call to end it: its `finally` and `with` blocks run, nothing is reported."""


class Task(greenlet):  # type: ignore[misc]  # greenlet has no types
    """One pipeline call. When it `is_over`, `result` or `error` is set, or neither after an eviction.

    While it `is_resting` it keeps its place and takes no part. Those that are `is_yielding` wait for those that are
    `is_urgent`. One that `is_solitary` shares no forward, and has deterministic kernels."""

    def __init__(
        self, work: Callable[[], Any], *, is_urgent: bool = False, is_yielding: bool = False, is_solitary: bool = False
    ) -> None:
        super().__init__(self._run)
        self.is_urgent, self.is_yielding, self.is_solitary = is_urgent, is_yielding, is_solitary
        self.is_resting = False
        self._work = work
        self.call: ParkedCall | None = None
        self.state = ThreadState.now()
        self.meter = Meter()
        self.digests = Digests()
        self.result: Any = None
        self.error: Exception | None = None
        self.is_over = False

    def _run(self) -> None:
        try:
            self.result = self._work()
        except torch.AcceleratorError:
            raise  # to whoever resumed it: the context is gone, the process must end
        except Exception as error:  # noqa: BLE001  # the edge of a job: what its pipeline raises fails it alone
            self.error = error
        except GreenletExit:
            pass

    def go_on(self, *values: Any, interruption: BaseException | None = None) -> None:
        """Run until it parks again or is over; `values`, or what interrupts it, come out of where it is parked.

        Each of the two, the caller and the task, keeps its own thread state."""
        self.parent = getcurrent()
        caller_state = ThreadState.now()
        if self.state != caller_state:
            self.state.apply()
        try:
            if interruption is not None:
                self.throw(interruption)
            else:
                self.switch(*values)
        finally:
            self.state = ThreadState.now()
            if self.state != caller_state:
                caller_state.apply()
        self.is_over = self.dead

    def end(self) -> None:
        """As if its pipeline call had been interrupted; one that swallows this gets it again where it parks next."""
        with torch.inference_mode():
            while not self.is_over:
                self.go_on(interruption=Evicted())
        self.call = None

    @property
    def phase(self) -> Phase | None:
        """The phase of the site at which it is parked; None before its first call."""
        return self.call.site.phase if self.call is not None else None
