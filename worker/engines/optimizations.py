"""Ways to make a pipeline's denoiser faster that change no result, each of which a model's entry may name."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from genmill.errors import ModelUnavailable
from genmill.registry import Optimization
from worker.engines.pipelines import denoiser_of

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

log = logging.getLogger(__name__)


def optimize(pipe: DiffusionPipeline, wanted: Iterable[Optimization]) -> None:
    """Apply all, before the first forward. Raises ModelUnavailable where the denoiser lacks what one needs."""
    for one in wanted:
        log.info("%s: %s", type(pipe).__name__, one)
        _APPLY[one](denoiser_of(pipe))


def _channels_last(denoiser: Any) -> None:
    """Convolutions read their channels side by side: what tensor cores, and oneDNN on a CPU, want."""
    denoiser.to(memory_format=torch.channels_last)


def _fused_qkv(denoiser: Any) -> None:
    """One product for query, key and value instead of three."""
    fuse = getattr(denoiser, "fuse_qkv_projections", None)
    if fuse is None:
        raise ModelUnavailable(f"{type(denoiser).__name__} cannot fuse its projections: take fused_qkv out")
    fuse()


def _compiled(denoiser: Any) -> None:
    """The blocks that repeat are compiled once each; a new size compiles anew."""
    if not getattr(denoiser, "_repeated_blocks", None):
        raise ModelUnavailable(f"{type(denoiser).__name__} names no blocks that repeat: take compiled out")
    denoiser.compile_repeated_blocks(dynamic=False)


_APPLY = {
    Optimization.CHANNELS_LAST: _channels_last,
    Optimization.FUSED_QKV: _fused_qkv,
    Optimization.COMPILED: _compiled,
}
