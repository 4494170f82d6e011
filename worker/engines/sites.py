"""Where a pipeline's calls meet: its denoiser, and around it text encoders, ControlNet and the autoencoder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from torch import nn

from genmill.registry import Optimization
from worker.engines.batches import Phase, Site
from worker.engines.caps import RowCaps
from worker.engines.memory import MemoryModel, SiteMemory
from worker.engines.optimizations import COMPILING
from worker.engines.overlap import SideStream
from worker.engines.pipelines import STEPPING, inner_pipelines
from worker.engines.rendezvous import Hub
from worker.engines.rows import ROW_ARGUMENTS, RowPlan
from worker.engines.standin import Intercept, stand_in

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

Dress = Callable[[], None]

ROWS_PER_IMAGE = 2
"""With classifier-free guidance an image sends a row with and one without its prompt."""
VAE_IMAGES = 8
"""Most images in one decode or encode: per image an autoencoder needs far more memory than a denoiser."""

EXCLUSIVE = frozenset({"AutoencoderKLWan", "AutoencoderKLLTXVideo"})
"""Decoders of videos: one takes all the memory that there is to give, and Wan's keeps state while it works."""


def can_park(pipe: DiffusionPipeline) -> bool:
    """Whether calls can meet at the pipeline's denoiser: it has one by a known name, calls it itself, and which of its
    arguments are rows is declared. A denoiser that nobody declared could only be run call by call."""
    if inner_pipelines(pipe):
        return False
    modules = [module for name in STEPPING if isinstance(module := getattr(pipe, name, None), nn.Module)]
    return bool(modules) and all((_class_name(module), "__call__") in ROW_ARGUMENTS for module in modules)


def build_stand_ins(
    pipe: DiffusionPipeline,
    hub: Hub,
    max_images: int,
    optimizations: Collection[Optimization] = (),
    memory: MemoryModel | None = None,
    dress_of: Callable[[str], Dress | None] = lambda _: None,
    caps: dict[str, RowCaps] | None = None,
) -> tuple[dict[str, nn.Module], Site]:
    """Component name -> its double for pipeline copies: the denoiser and each component whose calls can join; and the
    site of the denoiser. `memory` learns what their forwards take; `dress_of` tells how a component is brought into
    the state that its forwards need; `caps`: see `build_double`."""
    doubles: dict[str, nn.Module] = {}
    steps: list[Site] = []
    for name, module in pipe.components.items():
        if not isinstance(module, nn.Module):
            continue
        double, sites = build_double(name, module, hub, max_images, memory, dress_of(name), caps)
        doubles |= {name: double} if sites else {}
        steps += [site for site in sites if site.phase is Phase.STEP]
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


def build_double(
    name: str,
    module: nn.Module,
    hub: Hub,
    max_images: int,
    memory: MemoryModel | None = None,
    dress: Dress | None = None,
    caps: dict[str, RowCaps] | None = None,
) -> tuple[nn.Module, list[Site]]:
    """A component's double and the sites where its calls meet; the component itself, and none, where they cannot join
    and need nothing. `dress`: see Site. `caps`, by site, are what all doubles of a component learn together."""
    sites = _sites_of(name, module, max_images)
    if dress is not None and not sites:
        sites = [_site(name, module, _class_name(module), "__call__", max_images)]
    for site in sites:
        name_of_site = f"{name}.{site.method}"
        site.dress = dress
        site.caps = site.caps if caps is None else caps.setdefault(name_of_site, site.caps)
        site.caps.memory = None if memory is None else SiteMemory(name_of_site, memory)
    intercepts = {site.method: _intercept(hub, site) for site in sites}
    return (stand_in(module, intercepts) if sites else module), sites


def _sites_of(name: str, module: nn.Module, max_images: int) -> list[Site]:
    class_name = _class_name(module)
    methods = [method for known, method in ROW_ARGUMENTS if known == class_name]
    return [_site(name, module, class_name, method, max_images) for method in methods]


def _class_name(module: nn.Module) -> str:
    return type(getattr(module, "_orig_mod", module)).__name__  # torch.compile wraps


def _site(name: str, module: nn.Module, class_name: str, method: str, max_images: int) -> Site:
    function = module.forward if method == "__call__" else getattr(module, method)
    plan = RowPlan.of(class_name, method, tuple(inspect.signature(function).parameters))
    is_exclusive = class_name in EXCLUSIVE
    caps = RowCaps(1 if is_exclusive else _ceiling(name, max_images))
    first, phase = next(module.parameters()), _phase(name, method)
    dtype = first.dtype if name == "vae" else None  # a pipeline casts its latents by what it has made of the module
    side = SideStream(first.device) if phase is Phase.CODA else None
    return Site(module, method, phase, plan, caps, first.device, dtype=dtype, side=side, is_exclusive=is_exclusive)


def _phase(name: str, method: str) -> Phase:
    if name in STEPPING:
        return Phase.STEP
    return Phase.CODA if method == "decode" else Phase.PRELUDE


def _ceiling(name: str, max_images: int) -> int:
    return min(max_images, VAE_IMAGES) if name == "vae" else max_images * ROWS_PER_IMAGE


def _intercept(hub: Hub, site: Site) -> Intercept:
    return lambda args, kwargs: hub.meet(site, args, kwargs)
