"""Moves a model's weights between the device and pinned host memory: copies to and from it need no other buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


def modules_of(pipe: DiffusionPipeline) -> list[nn.Module]:
    return [part for part in pipe.components.values() if isinstance(part, nn.Module)]


def shelve(modules: Iterable[nn.Module], device: torch.device) -> None:
    """From the device to the host; what lies there already stays. Returns when all has arrived.

    Raises RuntimeError where the host has no memory to pin; then some lie here and some there, and only `fetch` or
    dropping the model helps."""
    _move(modules, pinned)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fetch(modules: Iterable[nn.Module], device: torch.device) -> None:
    """Back to the device. Returns when all has arrived, so that what a switch costs is known.

    Raises torch.OutOfMemoryError where there is no room."""
    _move(modules, lambda tensor: tensor.to(device, non_blocking=True))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pinned(tensor: Tensor) -> Tensor:
    """A copy of the same layout in pinned host memory, still on its way; a tensor of the host is its own."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _move(modules: Iterable[nn.Module], moved: Callable[[Tensor], Tensor]) -> None:
    """Replace the data of all parameters and buffers, as `Module.to` does: the parameters stay the same objects, which
    stand-ins and compiled blocks hold. Tensors that lie in the same place before do so afterwards."""
    places: dict[tuple[object, ...], Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        place = (tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride())
        if place not in places:
            places[place] = moved(tensor)
        return places[place]

    with torch.no_grad():
        for module in modules:
            module._apply(once)  # type: ignore[no-untyped-call]  # of torch
