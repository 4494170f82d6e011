"""Who computes forwards: the device, or on a CPU several threads, each some rows of the batch.

Cutting a batch over its rows lets each core work on its share alone. Cutting each operator over the cores, as torch
does by itself, makes them wait for each other hundreds of times in a forward: slower for all but single calls, and
much slower still when another process needs a core. `bench/rendezvous.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier
from typing import Self

import torch

from worker.engines.batches import Part
from worker.engines.threadstate import ThreadState

CUT_FROM_MS = 30.0
"""A forward that takes less is not cut: each thread would run through the whole module, which takes Python's lock for
several milliseconds. `whole_and_cut_ms` in bench/results/rendezvous.json: below this whole forwards are faster, up to
half as much again both are about as fast."""


class Crew:
    """`size` threads that compute at once. A crew of one is the calling thread itself. A batch is cut over them from
    `cut_from_ms` on."""

    def __init__(self, size: int = 1, cut_from_ms: float = 0.0) -> None:
        self.size, self.cut_from_ms = size, cut_from_ms
        self._pool = single_threads(size) if size > 1 else None

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """As many threads as torch would use on a CPU; one elsewhere."""
        return cls(torch.get_num_threads(), CUT_FROM_MS) if device.type == "cpu" else cls()

    def compute(self, parts: Sequence[Part]) -> list[Exception | None]:
        """Compute all, the largest first; what each raised, in their order.

        Raises torch.AcceleratorError when the device is lost."""
        if self._pool is None or len(parts) == 1:  # a single part has all of torch's own threads for itself
            state = ThreadState.now()
            try:
                return [part.compute() for part in parts]
            finally:
                state.apply()
        started = {part: self._pool.submit(part.compute) for part in sorted(parts, key=lambda part: -part.weight)}
        wait(started.values())
        return [started[part].result() for part in parts]

    def share(self, parts: int) -> float:
        """How much of the device one of so many parts occupied while it was computed."""
        return 1 / self.size if parts > 1 else 1.0

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def single_threads(size: int) -> ThreadPoolExecutor:
    """Threads whose operators use no further ones. What torch grants to other threads stays as it was."""
    granted = torch.get_num_threads()
    pool = ThreadPoolExecutor(size, "genmill-forward", initializer=_take_one_thread)
    all_started = Barrier(size)
    wait([pool.submit(all_started.wait) for _ in range(size)])
    torch.set_num_threads(granted)  # the initializers set it for threads to come, too
    return pool


def _take_one_thread() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread that first asks later would then take what is granted to all
