"""What a device does beside the denoiser's steps: decoding on a stream of its own, pictures on their way to the host.

On a CPU there is one stream of work, and everything is there at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A queue of work that follows what the device was given before, and that later steps do not wait for."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # of torch

    @contextmanager
    def after(self, read: Iterable[object]) -> Iterator[None]:
        """The block's work comes after all that was queued so far. Tensors of `read` are not given to others before
        it has ended, although nobody may hold them by then."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for value in read:
            if isinstance(value, torch.Tensor):
                value.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def on(self) -> Iterator[None]:
        """The block's work comes after what is in this stream, and after nothing else."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def rejoin(self) -> None:
        """Later steps wait for what is in this stream by now."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class HostCopy:
    """A tensor on its way from the device into pinned memory, behind the work that is queued in the current stream."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._there = tensor
        if tensor.device.type == "cuda":
            self._there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._there.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # of torch
            self._event.record()

    @property
    def shape(self) -> torch.Size:
        return self._there.shape

    def is_there(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]  # of torch

    def tensor(self) -> torch.Tensor:
        """On the host; waits for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._there
