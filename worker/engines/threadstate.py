"""Torch's per-thread modes, which greenlets of one thread would otherwise leave behind in each other."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch

_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


class ThreadState(NamedTuple):
    """Grad mode and autocast of the thread. Inference mode is not part of it: the hub always holds it."""

    has_grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    has_autocast_cache: bool

    @classmethod
    def now(cls) -> Self:
        autocast = tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES
        )
        return cls(torch.is_grad_enabled(), autocast, torch.is_autocast_cache_enabled())

    def apply(self) -> None:
        torch.set_grad_enabled(self.has_grad)
        for device, is_enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, is_enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.has_autocast_cache)
