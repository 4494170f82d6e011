"""Where and how models are loaded: device, dtype, revision, and quiet libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from genmill.registry import ModelSpec


def pick_device(device: str | None) -> torch.device:
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


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


def quiet() -> None:
    """Loading bars, and notes such as that of a missing safety checker, say nothing to an operator."""
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()


def is_out_of_memory(error: Exception) -> bool:
    """CUDA has a class for it; the CPU allocator only has words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
