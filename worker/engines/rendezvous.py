"""The rendezvous: many unmodified pipeline calls, each in its own greenlet, share their modules' forwards.

A call of a shared module parks its greenlet. When all live greenlets are parked, calls that fit together run
as one forward, and each greenlet goes on with its slice of the output. Tasks join at any turn and leave when
they are done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from math import inf
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]
from torch import nn

from worker.engines.caps import RowCaps
from worker.engines.devices import is_out_of_memory
from worker.engines.meter import Meter, Share, Stopwatch
from worker.engines.rows import Arguments, Digests, RowPlan, take
from worker.engines.threadstate import ThreadState

log = logging.getLogger(__name__)


class Phase(IntEnum):
    """Where in a pipeline a site stands. A turn runs all preludes, then one denoiser step, then codas."""

    PRELUDE = 0
    STEP = 1
    CODA = 2


class Evicted(GreenletExit):  # type: ignore[misc]  # greenlet has no types
    """Raised inside a pipeline call to end it: its `finally` and `with` blocks run, nothing is reported."""


@dataclass(slots=True, eq=False)
class Site:
    """A method of a module at which calls meet. `caps` bounds the rows of its forwards."""

    module: nn.Module
    method: str
    phase: Phase
    plan: RowPlan
    caps: RowCaps
    device: torch.device
    _forward: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        self._forward = self.module if self.method == "__call__" else getattr(self.module, self.method)

    def forward(self, arguments: Arguments) -> Any:
        return self._forward(**arguments)


@dataclass(slots=True, eq=False)
class ParkedCall:
    """A call that waits. Exactly one of `output` and `error` is set before its task goes on."""

    task: Task
    site: Site
    arguments: Arguments
    rows: int
    signature: Hashable
    turn: int
    ticket: int
    output: Any = None
    error: BaseException | None = None
    is_served: bool = False

    @property
    def group(self) -> Hashable:
        return (id(self.site), self.signature, self.task.state.autocast)


class Task(greenlet):  # type: ignore[misc]
    """One pipeline call. When it `is_over`, `result` or `error` is set, or neither after an eviction."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(self._run)
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
        except Exception as error:  # noqa: BLE001  # the edge of a job: what its pipeline raises fails it alone
            self.error = error
        except GreenletExit:
            pass

    @property
    def phase(self) -> Phase | None:
        """The phase of the site at which it is parked; None before its first call."""
        return self.call.site.phase if self.call is not None else None


class Hub:
    """Runs tasks turn by turn. All methods are called from one thread.

    `coda_patience`: turns for which a coda call waits for company while others still take steps.
    """

    def __init__(self, *, coda_patience: int = 0) -> None:
        self._tasks: list[Task] = []
        self._turn = 0
        self._tickets = count()
        self._coda_patience = coda_patience

    def start(self, work: Callable[[], Any]) -> Task:
        """Take a pipeline call on board; it begins with the next turn."""
        with torch.inference_mode():  # the modes that the task begins with are the hub's, not its caller's
            task = Task(work)
        self._tasks.append(task)
        return task

    @property
    def tasks(self) -> Sequence[Task]:
        return self._tasks

    def turn(self) -> list[Task]:
        """One step for as many as fit in a forward. Returns the tasks that ended.

        Raises torch.AcceleratorError when the device is lost, and nothing else."""
        self._turn += 1
        with torch.inference_mode():
            self._advance()
            while self._serve(Phase.PRELUDE):
                self._advance()
            self._serve(Phase.STEP)
            self._advance()
            self._serve_codas()
            self._advance()
        ended = [task for task in self._tasks if task.is_over]
        self._tasks = [task for task in self._tasks if not task.is_over]
        return ended

    def evict(self, task: Task) -> None:
        """End a task between turns, as if its pipeline call had been interrupted."""
        with torch.inference_mode():
            while not task.is_over:  # a pipeline that swallows one interruption gets the next at its next call
                self._resume(task, Evicted())
        self._tasks = [other for other in self._tasks if other is not task]

    def meet(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a stand-in's method does: park the current task until a forward has served its call."""
        task = getcurrent()
        arguments = site.plan.bind(args, kwargs)
        if not isinstance(task, Task):
            return site.forward(arguments)
        rows = site.plan.rows(arguments)
        signature = site.plan.signature(arguments, rows, task.digests)
        task.call = ParkedCall(task, site, arguments, rows, signature, self._turn, next(self._tickets))
        return task.parent.switch()

    def _advance(self) -> None:
        """Let every task that is not waiting for a forward run to its next call or its end: first come, first
        served, also in who may call again."""
        ready = [task for task in self._tasks if not task.is_over and (task.call is None or task.call.is_served)]
        for task in sorted(ready, key=lambda task: task.call.ticket if task.call is not None else inf):
            self._resume(task)

    def _resume(self, task: Task, interruption: BaseException | None = None) -> None:
        call, task.call = task.call, None
        task.parent = getcurrent()
        hub_state = ThreadState.now()
        task.state.apply()
        try:
            error = interruption or (call.error if call is not None else None)
            if error is not None:
                task.throw(error)
            else:
                task.switch(*(() if call is None else (call.output,)))
        finally:
            task.state = ThreadState.now()
            hub_state.apply()
        task.is_over = task.dead

    def _waiting(self, phase: Phase) -> list[ParkedCall]:
        calls = [task.call for task in self._tasks if task.call is not None and not task.is_over]
        return sorted((call for call in calls if call.site.phase is phase), key=lambda call: call.ticket)

    def _serve(self, phase: Phase) -> bool:
        """One forward for each group of calls that fit together. False when nobody waits."""
        waiting = self._waiting(phase)
        for calls in grouped(waiting):
            self._forward(calls)
        return bool(waiting)

    def _serve_codas(self) -> None:
        """Codas run when there is nobody to wait for, their forward is full, or the first is out of patience."""
        waiting = self._waiting(Phase.CODA)
        is_last = all(task.phase is Phase.CODA for task in self._tasks if not task.is_over)
        for calls in grouped(waiting):
            site = calls[0].site
            is_full = sum(call.rows for call in calls) >= site.caps.of(shape_of(calls[0]))
            if is_last or is_full or self._turn - calls[0].turn >= self._coda_patience:
                self._forward(calls)

    def _forward(self, calls: Sequence[ParkedCall]) -> None:
        """Serve the calls; halve them when the forward raises, until a culprit is alone and fails alone."""
        error = self._try_forward(calls)
        if error is None:
            return
        shape, rows = shape_of(calls[0]), sum(call.rows for call in calls)
        if is_out_of_memory(error):
            calls[0].site.caps.ran_out(shape, rows)
            if calls[0].site.device.type == "cuda":
                torch.cuda.empty_cache()
        if len(calls) == 1:
            calls[0].error, calls[0].is_served = error, True
            return
        log.warning("forward of %d rows failed, halving it: %s", rows, type(error).__name__)
        middle = len(calls) // 2
        self._forward(calls[:middle])
        self._forward(calls[middle:])

    def _try_forward(self, calls: Sequence[ParkedCall]) -> Exception | None:
        site, counts = calls[0].site, [call.rows for call in calls]
        hub_state = ThreadState.now()
        calls[0].task.state.apply()
        watch = Stopwatch(site.device)
        try:
            output = site.forward(site.plan.join([call.arguments for call in calls], counts))
        except torch.AcceleratorError:
            raise  # the context is gone: the process must end, and leases give the jobs back
        except Exception as error:  # noqa: BLE001  # whatever a model raises: the caller finds the culprit
            return error.with_traceback(None)  # the traceback would keep this forward's tensors
        finally:
            hub_state.apply()
        watch.stop()
        self._hand_out(calls, output, watch)
        return None

    def _hand_out(self, calls: Sequence[ParkedCall], output: Any, watch: Stopwatch) -> None:
        site, total = calls[0].site, sum(call.rows for call in calls)
        site.caps.ran_clean(shape_of(calls[0]), total)
        start = 0
        for call in calls:
            stop = start + call.rows
            call.output = output if len(calls) == 1 else take(output, start, stop)
            call.is_served = True
            part = call.rows / total if total else 1.0
            call.task.meter.shares.append(Share(watch, part, len(calls), site.phase is Phase.STEP))
            start = stop


def grouped(waiting: Sequence[ParkedCall]) -> Iterator[list[ParkedCall]]:
    """For each group of joinable calls those that fit in one forward. `waiting` is sorted by arrival, so that
    who does not fit goes first in the next turn."""
    groups: dict[Hashable, list[ParkedCall]] = {}
    for call in waiting:
        groups.setdefault(call.group, []).append(call)
    for calls in groups.values():
        cap = calls[0].site.caps.of(shape_of(calls[0]))
        fitting, rows = [calls[0]], calls[0].rows
        for call in calls[1:]:
            if rows + call.rows > cap:
                break
            fitting.append(call)
            rows += call.rows
        yield fitting


def shape_of(call: ParkedCall) -> Hashable:
    """What a cap is learnt for: the shape of a row of the counting argument."""
    first = call.arguments.get(call.site.plan.names[0]) if call.site.plan.names else None
    return tuple(first.shape[1:]) if isinstance(first, torch.Tensor) else None
