"""Moves a model's weights between the device and pinned host memory: copies to and from it need no other buffer.

Pinned memory is dear, and torch's allocator rounds each piece up to a power of two and keeps it when it is free. So
all of a model lies in a few slabs that are such powers themselves, full but for a few per cent, and goes back to the
host when the model leaves. On a CPU the slabs are ordinary memory, and all else is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from worker.engines.devices import give_back_memory
from worker.engines.memory import bytes_of

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

ALIGNMENT = 64
"""Bytes; of every number's type, and of the lines of a CPU's cache."""
LEAST_SLAB = 2**20
"""What is left at the end, rounded up, wastes no more."""


class Weights:
    """Of one model, on its device or parked in the host's memory."""

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self.device = device
        self._modules = list(modules)
        self.bytes = bytes_of(*self._modules)

    def parked_bytes(self) -> int:
        """What they hold of the host's memory while they are parked."""
        return sum(slab.size for slab in _planned(self._modules))

    def park(self) -> None:
        """See `shelve`."""
        shelve(self._modules, self.device)
        give_back_memory()

    def unpark(self) -> None:
        """See `fetch`."""
        fetch(self._modules, self.device)
        give_back_memory()

    def drop(self) -> None:
        """Let go of the modules, and give back what they held, if nobody else holds them."""
        self._modules.clear()
        give_back_memory()


class Slab(NamedTuple):
    """One piece of the host's memory, at which byte in it things lie, by their numbers, and where they end."""

    size: int
    places: dict[int, int]
    end: int

    @property
    def fullness(self) -> float:
        return self.end / self.size


def slabs_of(sizes: Sequence[int]) -> list[Slab]:
    """For things of so many bytes: the largest first, into a power of two a little smaller than all of them, or the
    next one, whichever will be fuller; what then finds no place, the same way."""
    needs = [max(1, -(-size // ALIGNMENT)) * ALIGNMENT for size in sizes]
    left, slabs = sorted(range(len(needs)), key=lambda number: -needs[number]), list[Slab]()
    while left:
        total = sum(needs[number] for number in left)
        above = 1 << (total - 1).bit_length()
        tried = [_filled(left, needs, size) for size in (above // 2, above)]
        slab = tried[-1] if above <= LEAST_SLAB else max(tried, key=lambda one: one.fullness)
        left = [number for number in left if number not in slab.places]
        slabs.append(slab)
    return slabs


def _filled(numbers: Sequence[int], needs: Sequence[int], size: int) -> Slab:
    """With those that have room, one after another."""
    places: dict[int, int] = {}
    end = 0
    for number in numbers:
        if end + needs[number] <= size:
            places[number] = end
            end += needs[number]
    return Slab(size, places, end)


def modules_of(pipe: DiffusionPipeline) -> list[nn.Module]:
    return [part for part in pipe.components.values() if isinstance(part, nn.Module)]


def shelve(modules: Sequence[nn.Module], device: torch.device) -> None:
    """From the device to the host. Returns when all has arrived.

    Raises RuntimeError where the host has no memory to pin; then all lies where it was."""
    tensors = _tensors_of(modules)
    copies: dict[Place, Tensor] = {}
    for slab in _planned(modules):
        memory = torch.empty(slab.size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        for number, begin in slab.places.items():
            copies[_place_of(tensors[number])] = _view_like(tensors[number], memory[begin:])
    _move(modules, lambda tensor: copies[_place_of(tensor)].copy_(tensor, non_blocking=True))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fetch(modules: Iterable[nn.Module], device: torch.device) -> None:
    """Back to the device. Returns when all has arrived, so that what a switch costs is known.

    Raises torch.OutOfMemoryError where there is no room; then some lie here and some there, and only dropping the
    model helps."""
    _move(modules, lambda tensor: torch.empty_like(tensor, device=device).copy_(tensor, non_blocking=True))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


Place = tuple[object, ...]


def _place_of(tensor: Tensor) -> Place:
    return (tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride())


def _tensors_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Of parameters and buffers; those that lie in the same place once."""
    tensors = [one.detach() for module in modules for one in (*module.parameters(), *module.buffers())]
    return list({_place_of(tensor): tensor for tensor in tensors}.values())


def _planned(modules: Iterable[nn.Module]) -> list[Slab]:
    """Where the tensors of `_tensors_of` will lie, by their numbers."""
    return slabs_of([tensor.numel() * tensor.itemsize for tensor in _tensors_of(modules)])


def _view_like(tensor: Tensor, memory: Tensor) -> Tensor:
    """The first bytes as a tensor of the same layout, without gaps."""
    numbers = memory[: tensor.numel() * tensor.itemsize].view(tensor.dtype)
    return numbers.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())


def _move(modules: Iterable[nn.Module], moved: Callable[[Tensor], Tensor]) -> None:
    """Replace the data of all parameters and buffers, as `Module.to` does: the parameters stay the same objects, which
    stand-ins and compiled blocks hold. Tensors that lie in the same place before do so afterwards."""
    places: dict[Place, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        place = _place_of(tensor)
        if place not in places:
            places[place] = moved(tensor)
        return places[place]

    with torch.no_grad():
        for module in modules:
            module._apply(once)  # type: ignore[no-untyped-call]  # of torch
