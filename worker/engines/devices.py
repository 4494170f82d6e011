"""Where and how models are loaded: device, dtype, revision, and quiet libraries."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from genmill.errors import ModelUnavailable
from genmill.registry import ModelSpec
from worker.engines.base import Device
from worker.engines.faults import lacks_memory

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from malloc.h
_KEPT = {_M_TRIM_THRESHOLD: 2**30, _M_TOP_PAD: 2**26, _M_MMAP_THRESHOLD: 2**25}
"""Bytes free at the heap's end before it shrinks; bytes by which it grows; the least size of a block of its own,
at the most that mallopt takes."""


HOST_SHARE = 0.5
"""Of the host's memory for models that are out of use; all workers of the host share it."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def pick_device(device: str | None) -> torch.device:
    picked = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if picked.type == "cuda":  # cuBLAS reads it when it is first used, and is not deterministic without
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return picked


@contextmanager
def deterministic() -> Iterator[None]:
    """Kernels that give the same bits each time, where there are several. An operator without such a kernel warns."""
    before = torch.are_deterministic_algorithms_enabled()
    is_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=is_warning)


def name_of_device(device: torch.device) -> str:
    """What is the same on all machines with such a device, as its place in one of them is not."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def find_device(device: str | None) -> Device:
    """The worker's device as its residents see it. Raises RuntimeError where there is none of this name."""
    where = pick_device(device)
    if where.type != "cuda":
        return Device(name_of_device(where))
    _, total = torch.cuda.mem_get_info(where)
    return Device(name_of_device(where), total, int(_host_bytes() * HOST_SHARE), _host_devices(), dtype="float16")


def _host_devices() -> int:
    """As the driver tells it: CUDA_VISIBLE_DEVICES hides the others from torch, not their workers from the host."""
    count = getattr(torch.cuda, "_raw_device_count_nvml", lambda: 0)
    try:
        return max(int(count()), torch.cuda.device_count(), 1)
    except (OSError, AttributeError):  # no NVML: not NVIDIA's, or hidden from a container
        return max(torch.cuda.device_count(), 1)


def _host_bytes() -> int:
    """Of the machine, or of the container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # none is set, or this is no Linux
        return machine


def pick_dtype(spec: ModelSpec, device: torch.device) -> torch.dtype:
    """What the spec says; "auto" is float16 on CUDA and float32 elsewhere."""
    if spec.dtype == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def source_arguments(spec: ModelSpec) -> dict[str, Any]:
    """A folder has no revisions, a hub id does; "1" is the spec's way to say none."""
    if spec.revision == "1" or Path(spec.source).is_dir():
        return {}
    return {"revision": spec.revision}


def unavailable(spec: ModelSpec, error: Exception) -> ModelUnavailable:
    """Why a model could not be loaded; a source that is no folder was taken for a hub id, whose error says little."""
    reason = " ".join(str(error).split())[:500]
    if Path(spec.source).is_dir():
        return ModelUnavailable(f"model {spec.name}: {reason}")
    return ModelUnavailable(f"model {spec.name}: there is no folder {spec.source}, and as a hub id: {reason}")


def quiet() -> None:
    """Loading bars, and notes such as that of a missing safety checker, say nothing to an operator."""
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()


def keep_freed_memory(device: torch.device) -> None:
    """On a CPU, let the C library keep what a forward frees for the next one: glibc gives large blocks back to the
    kernel at once, and each forward would fault its activations in again, page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if device.type == "cpu" and mallopt is not None:  # glibc alone has it
        for parameter, size in _KEPT.items():
            mallopt(parameter, size)


def give_back_memory() -> None:
    """To the device and to the host, what nothing holds any more. Engines have reference cycles, which only the
    collector ends."""
    if torch.cuda.is_available():
        gc.collect()
        empty_cache()
        _empty_host_cache()


def empty_cache() -> None:
    """Give back to the device what the allocator keeps for later."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _empty_host_cache() -> None:
    """Pinned memory that is free: torch keeps all that it ever had. Older versions have no public name for it."""
    empty = getattr(torch.accelerator, "empty_host_cache", None) or getattr(torch._C, "_host_emptyCache", None)
    if empty is not None:
        empty()


def is_out_of_memory(error: Exception) -> bool:
    """See `lacks_memory`."""
    return lacks_memory(error)
