"""Where a pipeline's calls meet: its denoiser, and around it text encoders, ControlNet and the autoencoder."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import nn

from genmill.registry import Optimization
from worker.engines.batches import Phase, Site
from worker.engines.caps import RowCaps
from worker.engines.memory import MemoryModel, SiteMemory
from worker.engines.optimizations import COMPILING
from worker.engines.overlap import SideStream
from worker.engines.pipelines import DENOISERS
from worker.engines.rendezvous import Hub
from worker.engines.rows import ROW_ARGUMENTS, RowPlan
from worker.engines.standin import Intercept, stand_in

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

log = logging.getLogger(__name__)

ROWS_PER_IMAGE = 2
"""With classifier-free guidance an image sends a row with and one without its prompt."""
VAE_IMAGES = 8
"""Most images in one decode or encode: per image an autoencoder needs far more memory than a denoiser."""

_PHASES = {("AutoencoderKL", "decode"): Phase.CODA}


def build_stand_ins(
    pipe: DiffusionPipeline,
    hub: Hub,
    max_images: int,
    optimizations: Collection[Optimization] = (),
    memory: MemoryModel | None = None,
) -> tuple[dict[str, nn.Module], Site]:
    """Component name -> its double for pipeline copies: the denoiser and each component whose calls can join; and the
    site of the denoiser. `memory` learns what their forwards take."""
    doubles, steps = {}, []
    for name, module in pipe.components.items():
        if not isinstance(module, nn.Module):
            continue
        sites = _sites_of(name, module, max_images)
        if sites:
            intercepts = {site.method: _intercept(hub, site) for site in sites}
            doubles[name] = stand_in(module, intercepts)
            steps += [site for site in sites if site.phase is Phase.STEP]
            for site in sites:
                site.caps.memory = None if memory is None else SiteMemory(f"{name}.{site.method}", memory)
    if COMPILING.intersection(optimizations):
        steps[0].sizes = sizes_up_to(steps[0].caps.ceiling)
        steps[0].is_replayed = Optimization.CUDA_GRAPHS in optimizations and bool(steps[0].plan.names)
    if steps[0].is_replayed:
        steps[0].caps.memory = None  # a graph keeps its memory for good, and takes none when it is replayed
    return doubles, steps[0]


def sizes_up_to(rows: int) -> tuple[int, ...]:
    """Few sizes, of which one is at most half as much again as any number of rows."""
    sizes = sorted({part << power for power in range(rows.bit_length()) for part in (2, 3)} | {1})
    return (*(size for size in sizes if size < rows), rows)


def _sites_of(name: str, module: nn.Module, max_images: int) -> list[Site]:
    class_name = type(getattr(module, "_orig_mod", module)).__name__  # torch.compile wraps
    methods = [method for known, method in ROW_ARGUMENTS if known == class_name]
    if name in DENOISERS and not methods:
        log.warning("row arguments of %s are not declared: its calls run one by one", class_name)
        methods = ["__call__"]
    return [_site(name, module, class_name, method, max_images) for method in methods]


def _site(name: str, module: nn.Module, class_name: str, method: str, max_images: int) -> Site:
    function = module.forward if method == "__call__" else getattr(module, method)
    plan = RowPlan.of(class_name, method, tuple(inspect.signature(function).parameters))
    phase = Phase.STEP if name in DENOISERS else _PHASES.get((class_name, method), Phase.PRELUDE)
    ceiling = min(max_images, VAE_IMAGES) if name == "vae" else max_images * ROWS_PER_IMAGE
    first = next(module.parameters())
    dtype = first.dtype if name == "vae" else None  # a pipeline casts its latents by what it has made of the module
    side = SideStream(first.device) if phase is Phase.CODA else None
    return Site(module, method, phase, plan, RowCaps(ceiling), first.device, dtype=dtype, side=side)


def _intercept(hub: Hub, site: Site) -> Intercept:
    return lambda args, kwargs: hub.meet(site, args, kwargs)
