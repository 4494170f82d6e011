"""Ways to make a pipeline's denoiser faster that change no result, each of which a model's entry may name."""

from __future__ import annotations

import logging
from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from genmill.errors import ModelUnavailable
from genmill.registry import Optimization
from worker.engines.pipelines import denoiser_of

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

log = logging.getLogger(__name__)


COMPILING = frozenset({Optimization.COMPILED, Optimization.CUDA_GRAPHS, Optimization.TENSORRT})
"""Each number of rows costs a compilation, or a capture, of its own."""
MOST_SIZES = 128
"""Of numbers of rows, sizes of pictures and widths of blocks, for each of which a block's code is compiled."""


def optimize(pipe: DiffusionPipeline, wanted: Collection[Optimization], attention: str | None = None) -> None:
    """Apply all, before the first forward. Raises ModelUnavailable where the denoiser lacks what one needs."""
    if len(COMPILING.intersection(wanted)) > 1:
        raise ModelUnavailable(f"take one of {', '.join(sorted(COMPILING))}: each compiles the denoiser in its way")
    if attention is not None:
        _attend_by(denoiser_of(pipe), attention)
    if COMPILING.intersection(wanted):
        _allow_many_sizes()
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


def _allow_many_sizes() -> None:
    """Beyond its limit torch runs what it would compile as it is, and says nothing."""
    dynamo: Any = import_module("torch._dynamo.config")
    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_SIZES)


def _cuda_graphs(denoiser: Any) -> None:
    """A forward is recorded once for each size and replayed: its launches no longer wait for the host."""
    denoiser.compile(mode="reduce-overhead", dynamic=False)


def _tensorrt(denoiser: Any) -> None:
    if find_spec("torch_tensorrt") is None:
        raise ModelUnavailable("the package torch_tensorrt is not installed: install it, or take tensorrt out")
    denoiser.compile(backend="torch_tensorrt", dynamic=False)


def _attend_by(denoiser: Any, backend: str) -> None:
    """Raises ModelUnavailable with the names that there are."""
    choose = getattr(denoiser, "set_attention_backend", None)
    if choose is None:
        raise ModelUnavailable(f"{type(denoiser).__name__} has one way to attend: take `attention` out")
    try:
        choose(backend)
    except (ValueError, RuntimeError, ImportError) as error:
        raise ModelUnavailable(f"attention {backend!r}: {error}") from error


_APPLY = {
    Optimization.CHANNELS_LAST: _channels_last,
    Optimization.FUSED_QKV: _fused_qkv,
    Optimization.COMPILED: _compiled,
    Optimization.CUDA_GRAPHS: _cuda_graphs,
    Optimization.TENSORRT: _tensorrt,
}
