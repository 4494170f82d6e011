"""What a forward takes of a device's memory, measured while it runs, and how many rows therefore fit.

`M_total = M_model + B * M_sample(shape)`: the peak of a forward over what was held before it is a line over its rows,
`B_max = floor((M_available * 0.95 - M_model - fixed) / M_sample)`. On CUDA the allocator tells the peak, and nobody
waits for the device: allocations are made when a forward is launched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

KEPT_FREE = 0.05
"""Of what the process may have: for fragments, and for what libraries take past the allocator."""
WATCHES = 2
"""How often a size is measured in a process: the first forward of a size also brings libraries' own buffers, the last
measurement holds."""


class MemoryMeter(Protocol):
    """The memory of one device as this process sees it, in bytes. Called from one thread."""

    def available_bytes(self) -> int | None:
        """What this process may hold in all, now; None where there is no bound to know."""
        ...

    def held_bytes(self) -> int:
        """What its tensors hold now."""
        ...

    def start_peak(self) -> None:
        """From here on `peak_bytes` counts."""
        ...

    def peak_bytes(self) -> int:
        """The most that was held at once since `start_peak`."""
        ...


class CudaMeter:
    """Of torch's caching allocator. Reading costs some 0.1 ms, so nobody should ask at each forward."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)

    def available_bytes(self) -> int:
        """What others on the device leave: what is free there, and what the allocator has taken already."""
        free, total = torch.cuda.mem_get_info(self._device)
        granted = int(total * torch.cuda.get_per_process_memory_fraction(self._device))
        return min(free + torch.cuda.memory_reserved(self._device), granted)

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)


class UnboundedMeter:
    """Of a CPU, where the cap is a setting: nobody tells what a forward takes, and the machine is not ours alone."""

    def available_bytes(self) -> None:
        return None

    def held_bytes(self) -> int:
        return 0

    def start_peak(self) -> None:
        pass

    def peak_bytes(self) -> int:
        return 0


def meter_of(device: torch.device) -> MemoryMeter:
    return CudaMeter(device) if device.type == "cuda" else UnboundedMeter()


def bytes_of(*modules: nn.Module) -> int:
    """What parameters and buffers hold; those that modules share count once."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


@dataclass(slots=True)
class Footprint:
    """Of forwards of one shape: bytes at the peak, over what was held before, by rows."""

    peaks: dict[int, int] = field(default_factory=dict)
    _watched: dict[int, int] = field(default_factory=dict)

    def is_new(self, rows: int) -> bool:
        """It is still to be measured, here and now; what another process has measured only serves until then."""
        return self._watched.get(rows, 0) < WATCHES

    def saw(self, rows: int, peak_bytes: int) -> None:
        self.peaks[rows] = peak_bytes
        self._watched[rows] = self._watched.get(rows, 0) + 1

    def line(self) -> tuple[float, float] | None:
        """(fixed bytes, bytes of a row) by least squares; of one size alone through zero, which expects too much
        rather than too little. None while nothing is known, or what is known does not grow with the rows."""
        count = len(self.peaks)
        if count == 0:
            return None
        if count == 1:
            ((rows, peak),) = self.peaks.items()
            return (0.0, peak / rows) if peak > 0 else None
        mean_rows, mean_peak = sum(self.peaks) / count, sum(self.peaks.values()) / count
        spread = sum((rows - mean_rows) ** 2 for rows in self.peaks)
        slope = sum((rows - mean_rows) * (peak - mean_peak) for rows, peak in self.peaks.items()) / spread
        return (mean_peak - slope * mean_rows, slope) if slope > 0 else None

    def most_rows(self, room_bytes: float) -> int | None:
        """How many rows fit in so many bytes; None while that is not known. At least one, which is always tried."""
        line = self.line()
        return None if line is None else max(1, int((room_bytes - line[0]) // line[1]))


class MemoryModel:
    """Of one engine: what its forwards take, by site and shape, and what there is for them."""

    def __init__(self, meter: MemoryMeter) -> None:
        self._meter = meter
        self._footprints: dict[str, Footprint] = {}
        self.room_bytes: float | None = None
        self.refresh()

    def refresh(self) -> None:
        """Ask anew what is free; to be called between forwards, when nothing but weights and latents is held."""
        available = self._meter.available_bytes()
        self.room_bytes = None if available is None else available * (1 - KEPT_FREE) - self._meter.held_bytes()

    def footprint(self, name: str) -> Footprint:
        return self._footprints.setdefault(name, Footprint())

    @contextmanager
    def watched(self, footprint: Footprint, rows: int) -> Iterator[None]:
        """Measures what the block takes at its peak. A block that raises tells nothing."""
        held = self._meter.held_bytes()
        self._meter.start_peak()
        yield
        footprint.saw(rows, self._meter.peak_bytes() - held)

    def peaks(self) -> dict[str, dict[int, int]]:
        return {name: dict(one.peaks) for name, one in self._footprints.items() if one.peaks}

    def recall(self, peaks: Mapping[str, Mapping[int, int]]) -> None:
        """What other processes have measured, where this one has measured nothing itself."""
        for name, sizes in peaks.items():
            self._footprints.setdefault(name, Footprint(dict(sizes)))


@dataclass(frozen=True, slots=True)
class SiteMemory:
    """The part of an engine's memory model that is one site's."""

    name: str
    model: MemoryModel

    def of(self, shape: Hashable) -> Footprint:
        return self.model.footprint(f"{self.name} {name_of(shape)}")

    def most_rows(self, shape: Hashable) -> int | None:
        """None where nothing bounds them, or nothing is known."""
        room_bytes = self.model.room_bytes
        return None if room_bytes is None else self.of(shape).most_rows(room_bytes)


def name_of(shape: Hashable) -> str:
    """The shape of a row as curves and memory are published by: `4x64x64`."""
    return "x".join(map(str, shape)) if isinstance(shape, tuple) else "any"
