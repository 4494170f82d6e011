"""Calls of shared modules that wait, which of them fit in one forward, and how a crew computes it in parts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, groupby
from math import prod
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from worker.engines.caps import RowCaps
from worker.engines.curve import ServiceCurve
from worker.engines.meter import Stopwatch
from worker.engines.overlap import SideStream
from worker.engines.rows import Arguments, RowPlan, take

if TYPE_CHECKING:
    from worker.engines.task import Task


STRETCH = 1.25
"""By what bulk may prolong the steps of an urgent job, which is to take at most 1.5 of its time alone in all."""


class Phase(IntEnum):
    """Where in a pipeline a site stands. A turn runs all preludes, then one denoiser step, then codas."""

    PRELUDE = 0
    STEP = 1
    CODA = 2


@dataclass(slots=True, eq=False)
class Site:
    """A method of a module at which calls meet. `caps` bounds the rows of its forwards, `curves` tell by shape how
    long they take. A module that was compiled for each number of rows sees only those of `sizes`; one whose graph
    `is_replayed` writes each output over the one before. `dtype`: what it takes, where pipelines may send another.
    What runs on its `side` stream does not hold up steps. One that `is_exclusive` runs one forward at a time. `dress`
    brings the module into the state that its forwards need, where sites of one module differ in it (in the adapters
    that are active): they never compute at once."""

    module: nn.Module
    method: str
    phase: Phase
    plan: RowPlan
    caps: RowCaps
    device: torch.device
    sizes: Sequence[int] = ()
    is_replayed: bool = False
    dtype: torch.dtype | None = None
    side: SideStream | None = None
    curves: dict[Hashable, ServiceCurve] = field(default_factory=dict)
    is_exclusive: bool = False
    dress: Callable[[], None] | None = None
    _forward: Callable[..., Any] = field(init=False)
    _turnstile: AbstractContextManager[Any] = field(init=False)

    def __post_init__(self) -> None:
        self._forward = self.module if self.method == "__call__" else getattr(self.module, self.method)
        self._turnstile = Lock() if self.is_exclusive else nullcontext()

    def forward(self, arguments: Arguments) -> Any:
        if self.is_replayed and self.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]  # of torch
        if self.dtype is not None:
            first = self.plan.names[0]
            arguments = {**arguments, first: arguments[first].to(self.dtype)}
        with self._turnstile:
            return self._forward(**arguments)

    def size_for(self, rows: int, shape: Hashable) -> int:
        """As many rows as the module was compiled for, where memory bears them, to which a call is padded."""
        if not (self.sizes and rows):
            return rows
        most = self.caps.of(shape)
        return next((size for size in self.sizes if rows <= size <= most), rows)

    def curve(self, shape: Hashable) -> ServiceCurve:
        return self.curves.setdefault(shape, ServiceCurve())


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
        return (id(self.site), self.signature, self.task.state.autocast, self.task if self.task.is_solitary else None)

    @property
    def shape(self) -> Hashable:
        """What a cap is learnt for: the shape of a row of the counting argument."""
        first = self.arguments.get(self.site.plan.names[0]) if self.site.plan.names else None
        return tuple(first.shape[1:]) if isinstance(first, torch.Tensor) else None


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Calls that fit in one forward."""

    calls: Sequence[ParkedCall]

    @property
    def site(self) -> Site:
        return self.calls[0].site

    @property
    def shape(self) -> Hashable:
        return self.calls[0].shape

    @property
    def rows(self) -> int:
        return sum(call.rows for call in self.calls)

    @property
    def is_solitary(self) -> bool:
        return self.calls[0].task.is_solitary

    @property
    def expected_ms(self) -> float | None:
        """None while too little is known."""
        return self.site.curve(self.shape).expected_ms(self.rows)

    @property
    def is_full(self) -> bool:
        return self.rows >= self.site.caps.of(self.shape)

    def cut(self, most: int) -> Iterator[Part]:
        """Its calls in their order, in at most so many parts of about as many rows."""
        if most == 1 or len(self.calls) == 1:
            yield Part(self, self.calls)
            return
        stops = accumulate(call.rows for call in self.calls)
        places = [(stop - call.rows) * most // self.rows for stop, call in zip(stops, self.calls, strict=True)]
        for _, part in groupby(zip(places, self.calls, strict=True), key=itemgetter(0)):
            yield Part(self, [call for _, call in part])

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.calls) // 2
        return Batch(self.calls[:middle]), Batch(self.calls[middle:])


@dataclass(slots=True, eq=False)
class Part:
    """What one member of a crew computes of a batch."""

    batch: Batch
    calls: Sequence[ParkedCall]
    watch: Stopwatch = field(init=False)

    @property
    def rows(self) -> int:
        return sum(call.rows for call in self.calls)

    @property
    def weight(self) -> int:
        """About how long it takes, next to other parts: its rows by the numbers in each."""
        shape = self.batch.shape
        return self.rows * (prod(shape) if isinstance(shape, tuple) else 1)

    def compute(self) -> Exception | None:
        """Serve the calls, in the modes of their tasks; or tell what the module raised.

        Raises torch.AcceleratorError: the context is gone."""
        site, counts = self.batch.site, [call.rows for call in self.calls]
        read = [value for call in self.calls for value in call.arguments.values()]
        with torch.inference_mode(), site.side.after(read) if site.side else nullcontext():
            self.calls[0].task.state.apply()
            self.watch = Stopwatch(site.device)
            try:
                size = site.size_for(self.rows, self.batch.shape)
                with site.caps.watched(self.batch.shape, size):
                    joined = site.plan.join([call.arguments for call in self.calls], counts)
                    sent = joined if size == self.rows else site.plan.pad(joined, self.rows, size)
                    output = site.forward(sent)
            except torch.AcceleratorError:
                raise  # the process must end, and leases give the jobs back
            except Exception as error:  # noqa: BLE001  # whatever a model raises: the hub finds the culprit
                return error.with_traceback(None)  # the traceback would keep this forward's tensors
            self.watch.stop()
            stops = list(accumulate(counts))
            for call, stop in zip(self.calls, stops, strict=True):
                is_whole = len(counts) == 1 and sent is joined and not site.is_replayed
                call.output = output if is_whole else take(output, stop - call.rows, stop, is_copy=site.is_replayed)
                call.is_served = True
        return None


def batches_of(waiting: Sequence[ParkedCall]) -> Iterator[Batch]:
    """For each group of joinable calls those that fit in one forward. `waiting` is sorted by arrival, so that
    who does not fit goes first in the next turn."""
    groups: dict[Hashable, list[ParkedCall]] = {}
    for call in waiting:
        groups.setdefault(call.group, []).append(call)
    for calls in groups.values():
        yield Batch(fitting(calls, calls[0].site.caps.of(calls[0].shape)))


def fitting(calls: Sequence[ParkedCall], most_rows: int) -> list[ParkedCall]:
    """The first, and as many after it as have room."""
    taken, rows = [calls[0]], calls[0].rows
    for call in calls[1:]:
        if rows + call.rows > most_rows:
            break
        taken.append(call)
        rows += call.rows
    return taken


def batches_beside_urgent(waiting: Sequence[ParkedCall], impatient: frozenset[Hashable]) -> Iterator[Batch]:
    """The same while urgent calls are among them: calls that yield, unless their group is `impatient`, come along only
    as company of others, and only as many as prolong a forward by STRETCH. While that is not known, none."""
    held = [call for call in waiting if call.task.is_yielding and call.group not in impatient]
    for batch in batches_of([call for call in waiting if call not in held]):
        company = [call for call in held if call.group == batch.calls[0].group]
        yield Batch(fitting([*batch.calls, *company], max(batch.rows, _room_beside(batch))))


def _room_beside(batch: Batch) -> int:
    alone_ms = batch.expected_ms
    if alone_ms is None:
        return 0
    return batch.site.curve(batch.shape).most_rows(alone_ms * STRETCH, batch.site.caps.of(batch.shape)) or 0
