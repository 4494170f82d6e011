"""Whose call is next where one runs at a time: who waits, who shares a call, who rests for an urgent one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from genmill.errors import InvalidJob
from genmill.inputs import SchedulerName
from genmill.registry import ModelSpec
from worker.engines.caps import RowCaps
from worker.engines.devices import empty_cache, is_out_of_memory
from worker.engines.pipelines import inner_pipelines, parameters_of
from worker.engines.prototypes import Prototypes
from worker.engines.schedulers import make_scheduler
from worker.engines.shared_calls import Entry, Miscounted, SharedCall, joined


class CallQueue:
    """Of one model. Calls begin by urgency and virtual deadline; the last one runs, one before it rests."""

    def __init__(self, spec: ModelSpec, pipe: Any, prototypes: Prototypes) -> None:
        self._spec, self._prototypes = spec, prototypes
        self._has_inner = bool(inner_pipelines(pipe))
        self._takes_lists = {"prompt", "generator"} <= parameters_of(pipe)
        self._caps = RowCaps(spec.max_batch)
        self._waiting: list[Entry] = []
        self._calls: list[SharedCall] = []

    def add(self, entries: Collection[Entry]) -> None:
        self._waiting += entries

    def free_slots(self) -> int:
        """None while a call runs: what it cannot take in is better off in the queue, for whoever is free first."""
        return 0 if self._calls else max(0, self._spec.max_batch - len(self._waiting))

    def urgent_slots(self) -> int:
        if not self._calls or not self._may_rest(self._calls[-1]):
            return 0
        return max(0, self._spec.max_batch - sum(entry.job.is_urgent for entry in self._waiting))

    def next(self) -> SharedCall | None:
        """The call to go on with, begun if need be; None where nobody waits."""
        running = self._calls[-1] if self._calls else None
        if running is None:
            if self._waiting:
                self._start(self._waiting)
        elif self._may_rest(running) and (urgent := [entry for entry in self._waiting if entry.job.is_urgent]):
            running.has_rested = True
            self._start(urgent)
        return self._calls[-1] if self._calls else None

    def ended(self, call: SharedCall) -> bool:
        """It is over. False where it failed: then its entries have their error, or wait once more."""
        self._calls.remove(call)
        if call.error is not None:
            self._divide(call, call.error)
            return False
        self._caps.ran_clean(call.entries[0].shape, len(call.entries))
        return True

    def leave(self, entries: Collection[Entry]) -> None:
        """A call goes on for those who stay in it, and ends with the last of them."""
        self._waiting = [entry for entry in self._waiting if entry not in entries]
        for call in list(self._calls):
            call.left.update(entry for entry in entries if entry in call.entries)
            if not call.staying:
                call.end()
                self._calls.remove(call)

    def scheduler_of(self, entry: Entry) -> Any:
        """A new one, None for that of the pipeline. Raises InvalidJob where it can have no other, or there is no
        pipeline for such a job."""
        own, name = getattr(self._prototypes.of(entry.job), "scheduler", None), entry.input.scheduler
        if name is SchedulerName.DEFAULT:
            return None
        if own is None or self._has_inner:
            raise InvalidJob(f"model {self._spec.name} has its own scheduler alone, the job asks for {name}")
        return make_scheduler(own, name, from_image=entry.job.init_image is not None)

    def _may_rest(self, call: SharedCall) -> bool:
        """Whether an urgent call may go before it. Pipelines that hold others share their schedulers between calls."""
        is_yielding = all(entry.job.is_yielding for entry in call.staying)
        return is_yielding and not call.has_rested and not self._has_inner

    def _start(self, able: Sequence[Entry]) -> None:
        """A call for the first of these by urgency and virtual deadline, and for those that may share it."""
        queue = sorted(able, key=lambda entry: (not entry.job.is_urgent, entry.job.vd_ms))
        first = queue[0]
        alike = [entry for entry in queue if entry.key == first.key]
        if first.job.is_urgent:  # bulk would only prolong its steps
            alike = [entry for entry in alike if not entry.job.is_yielding]
        taken = alike[: self._caps.of(first.shape) if self._takes_lists else 1]
        self._waiting = [entry for entry in self._waiting if entry not in taken]
        arguments = [self._prototypes.arguments(entry.job, entry.index) for entry in taken]
        pipe = self._prototypes.of(first.job)
        self._calls.append(SharedCall(pipe, joined(arguments), taken, self.scheduler_of(first)))

    def _divide(self, call: SharedCall, error: Exception) -> None:
        """Who was alone in a call fails with its error; of others each half begins anew, by itself. A pipeline that
        cannot count prompts gets one at a time from now on."""
        self._takes_lists &= not isinstance(error, Miscounted)
        if is_out_of_memory(error):
            self._caps.ran_out(call.entries[0].shape, len(call.entries))
            empty_cache()
        staying, middle = call.staying, len(call.staying) // 2
        if len(call.entries) == 1:
            staying[0].error = error
            return
        for half in (staying[:middle], staying[middle:]):
            own_key = object()
            for entry in half:
                entry.key, entry.step = own_key, 0
            self._waiting += half
