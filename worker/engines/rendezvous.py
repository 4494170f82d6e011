"""The rendezvous: many unmodified pipeline calls, each in its own greenlet, share their modules' forwards.

A call of a shared module parks its greenlet. When all live greenlets are parked, calls that fit together run
as one forward, and each greenlet goes on with its slice of the output. Tasks join at any turn and leave when
they are done.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import torch
from greenlet import getcurrent  # type: ignore[import-untyped]  # it ships no types

from worker.engines.batches import Batch, ParkedCall, Part, Phase, Site, batches_beside_urgent, batches_of, fitting
from worker.engines.crew import Crew
from worker.engines.curve import ServiceCurve
from worker.engines.devices import deterministic, is_out_of_memory
from worker.engines.meter import Share, Stopwatch
from worker.engines.task import Task

log = logging.getLogger(__name__)

STEP_PATIENCE = 30
"""Turns after which a step that urgent tasks held up is taken, by all who can share it: nobody starves."""
AHEAD = 2
"""Forwards that a device has been given and not ended, at most."""
CODA_PATIENCE = 50
"""Turns for which a finished picture waits to be decoded while urgent tasks take steps."""


class Launch(NamedTuple):
    """A forward on its way: the curve that its time belongs to, if it ran by itself."""

    watches: Sequence[Stopwatch]
    curve: ServiceCurve | None
    rows: int


class Hub:
    """Runs tasks turn by turn. All methods are called from one thread.

    `forwards` counts those of the denoiser, `forward_s` is the time that all took. `coda_patience`: turns for which
    a coda call waits for company while others still take steps.
    """

    def __init__(self, crew: Crew | None = None, *, coda_patience: int = 0) -> None:
        self._crew = crew or Crew()
        self._tasks: list[Task] = []
        self._turn = 0
        self._tickets = count()
        self._coda_patience = coda_patience
        self._launches: deque[Launch] = deque()
        self._worn: Callable[[], None] | None = None
        self.forwards = 0
        self.forward_s = 0.0

    def start(
        self, work: Callable[[], Any], *, is_urgent: bool = False, is_yielding: bool = False, is_solitary: bool = False
    ) -> Task:
        """Take a pipeline call on board; it begins with the next turn."""
        with torch.inference_mode():  # the modes that the task begins with are the hub's, not its caller's
            task = Task(work, is_urgent=is_urgent, is_yielding=is_yielding, is_solitary=is_solitary)
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
            self._serve_steps()
            self._advance()
            self._serve_codas()
            self._advance()
        ended = [task for task in self._tasks if task.is_over]
        self._tasks = [task for task in self._tasks if not task.is_over]
        return ended

    def evict(self, task: Task) -> None:
        """End a task between turns, as if its pipeline call had been interrupted."""
        task.end()
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
        ready = [task for task in self._at_work() if task.call is None or task.call.is_served]
        for task in sorted(ready, key=lambda task: task.call.ticket if task.call is not None else inf):
            self._resume(task)

    def _resume(self, task: Task) -> None:
        call, task.call = task.call, None
        side = call.site.side if call is not None and call.is_served else None
        with side.on() if side else nullcontext():
            if call is None:
                task.go_on()
            else:
                task.go_on(call.output, interruption=call.error)
        if side and not task.is_over:  # a pipeline that goes on after its coda
            side.rejoin()

    def _waiting(self, phase: Phase) -> list[ParkedCall]:
        calls = [task.call for task in self._at_work() if task.call is not None]
        calls = [call for call in calls if not call.is_served]
        return sorted((call for call in calls if call.site.phase is phase), key=lambda call: call.ticket)

    def _at_work(self) -> list[Task]:
        return [task for task in self._tasks if not task.is_over and not task.is_resting]

    def _serve_steps(self) -> None:
        """A step for all that fit. While there are urgent ones the yielding wait, but for the company that those bear
        and for groups of which somebody is out of patience."""
        waiting = self._waiting(Phase.STEP)
        if any(call.task.is_urgent for call in waiting):
            impatient = frozenset(call.group for call in waiting if self._turn - call.turn >= STEP_PATIENCE)
            self._forward(list(batches_beside_urgent(waiting, impatient)))
        else:
            self._forward(list(batches_of(waiting)))

    def _serve(self, phase: Phase) -> bool:
        """One forward for each group of calls that fit together. False when nobody waits."""
        waiting = self._waiting(phase)
        self._forward(list(batches_of(waiting)))
        return bool(waiting)

    def _serve_codas(self) -> None:
        """Codas run when there is nobody to wait for, their forward is full, or the first is out of patience. Those of
        urgent tasks run at once, and by themselves; those of yielding tasks wait longer while an urgent one takes
        steps."""
        if urgent := [call for call in self._waiting(Phase.CODA) if call.task.is_urgent]:
            self._forward(list(batches_of(urgent)))
            return
        at_work = self._at_work()
        is_last = all(task.phase is Phase.CODA for task in at_work)
        is_urgent = any(task.is_urgent and task.phase is not Phase.CODA for task in at_work)

        def is_due(batch: Batch) -> bool:
            waited = self._turn - batch.calls[0].turn
            if is_urgent and all(call.task.is_yielding for call in batch.calls):
                return waited >= CODA_PATIENCE
            return is_last or batch.is_full or waited >= self._coda_patience

        while due := [batch for batch in batches_of(self._waiting(Phase.CODA)) if is_due(batch)]:
            self._forward(due)
            if not any(batch.is_full for batch in due):  # what full ones left behind is due as well
                break

    def _forward(self, batches: Sequence[Batch]) -> None:
        """Serve the calls of all batches: those that need their modules in the same state one after another, first
        those that find them in it."""
        dresses = dict.fromkeys(batch.site.dress for batch in batches)
        for dress in sorted(dresses, key=lambda dress: dress is not self._worn):
            if dress is not None:
                dress()
                self._worn = dress
            self._serve_alike([batch for batch in batches if batch.site.dress is dress])

    def _serve_alike(self, batches: Sequence[Batch]) -> None:
        """A solitary one by itself, with the whole crew, the others at once."""
        for batch in batches:
            if batch.is_solitary:
                with deterministic():
                    self._compute([batch])
        self._compute([batch for batch in batches if not batch.is_solitary])

    def _compute(self, batches: Sequence[Batch]) -> None:
        """Serve the calls of all batches at once, as far as the crew reaches."""
        parts = [part for batch in batches for part in batch.cut(self._parts_of(batches))]
        if not parts:
            return
        self._keep_pace()
        start = perf_counter()
        errors = self._crew.compute(parts)
        self.forward_s += perf_counter() - start
        if parts[0].batch.site.phase is Phase.STEP and not any(errors):
            alone = batches[0] if len(batches) == 1 else None  # several at once hold each other up
            curve = alone.site.curve(alone.shape) if alone else None
            self._launches.append(Launch([part.watch for part in parts], curve, parts[0].batch.rows))
        for batch in batches:
            own = [(part, error) for part, error in zip(parts, errors, strict=True) if part.batch is batch]
            if all(error is None for _, error in own):
                batch.site.caps.ran_clean(batch.shape, batch.rows, batch.calls[-1].rows)
            self._charge([part for part, error in own if error is None], self._crew.share(len(parts)))
            for part, error in own:
                if error is not None:
                    self._divide(part, error, was_alone=len(parts) == 1)

    def _parts_of(self, batches: Sequence[Batch]) -> int:
        """In how many parts to compute each. One by itself that is soon done is computed whole."""
        is_small = len(batches) == 1 and (batches[0].expected_ms or inf) < self._crew.cut_from_ms
        return 1 if is_small else self._crew.size

    def _keep_pace(self) -> None:
        """The host gives the device work before the last is done, so that it never waits, but not so far ahead that
        who comes or goes would wait for it. What a forward took is learnt once it has ended."""
        while len(self._launches) >= AHEAD:
            launch = self._launches.popleft()
            took_ms = max(watch.ms() for watch in launch.watches)
            if launch.curve is not None:
                launch.curve.saw(launch.rows, took_ms)

    def _divide(self, part: Part, error: Exception, *, was_alone: bool) -> None:
        """Halve the calls of a forward that raised, until a culprit is alone and fails alone. Who ran out of memory
        beside others is tried alone first."""
        batch = part.batch
        if is_out_of_memory(error):
            batch.site.caps.ran_out(batch.shape, batch.rows)
            if batch.site.device.type == "cuda":
                torch.cuda.empty_cache()
        if len(part.calls) == 1 and is_out_of_memory(error) and not was_alone:
            self._forward([Batch(part.calls)])
            return
        if len(part.calls) == 1:
            part.calls[0].error, part.calls[0].is_served = error, True
            return
        log.warning("forward of %d rows failed, halving it: %s", part.rows, type(error).__name__)
        if is_out_of_memory(error):
            self._forward_within_cap(part.calls, part.rows // 2)
            return
        for half in Batch(part.calls).halves():
            self._forward([half])

    def _forward_within_cap(self, calls: Sequence[ParkedCall], most_rows: int) -> None:
        """One after another, as many at once as the cap allows by then: what has just been learnt need not be learnt
        again by each half."""
        while calls:
            fit = fitting(calls, min(most_rows, calls[0].site.caps.of(calls[0].shape)))
            self._forward([Batch(fit)])
            calls = calls[len(fit) :]

    def _charge(self, parts: Sequence[Part], share: float) -> None:
        """Write the time of a batch to its calls, by their rows."""
        forward = object()
        self.forwards += any(part.batch.site.phase is Phase.STEP for part in parts)
        for part in parts:
            is_step, images = part.batch.site.phase is Phase.STEP, len(part.batch.calls)
            for call in part.calls:
                fraction = share * (call.rows / part.rows if part.rows else 1.0)
                call.task.meter.shares.append(Share(part.watch, fraction, images, is_step, forward))
