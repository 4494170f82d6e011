"""Previews of pictures on their way: a linear map from latents to colours, learnt from pictures that are finished.

Decoding a latent takes an autoencoder's pass; its colours, one for each latent, are nearly linear in its channels. The
map is fitted by least squares to the last latents of finished pictures and those pictures, averaged over the area of a
latent. So it knows nothing of the autoencoder, its scale or its shift, and every pipeline has one whose scheduler
steps latents of [1, C, h, w], or packed ones that the pipeline itself can unpack (Flux). Others (video) have none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from worker.engines.overlap import HostCopy

if TYPE_CHECKING:
    from worker.engines.base import Sketch

EVERY_S = 0.5
"""At most so often a job's preview is drawn."""
MOST_PICTURES = 8
"""Finished pictures that the map learns from; each has hundreds of latents, so that more would change little."""
RIDGE = 1e-4
"""Of the equations' diagonal, for channels that do not vary."""


@dataclass(slots=True, eq=False)
class Glimpse:
    """The latents of one picture: as the last step left them, and, with `has_guess`, what it is taken for."""

    unpack: Callable[[Tensor], Tensor]
    has_guess: bool = False
    latents: Tensor | None = None
    guess: Tensor | None = None

    @classmethod
    def of(cls, pipe: Any, width: int, height: int, *, has_guess: bool) -> Self:
        """Watches a pipeline copy's own scheduler."""
        unpack = _unpacking_of(pipe)
        scale = getattr(pipe, "vae_scale_factor", 8)
        if unpack is None:
            glimpse = cls(lambda latents: latents, has_guess)
        else:
            glimpse = cls(partial(unpack, height=height, width=width, vae_scale_factor=scale), has_guess)
        scheduler = pipe.scheduler
        scheduler.step = glimpse._watched(scheduler, scheduler.step)
        return glimpse

    def _watched(self, scheduler: Any, step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)  # pipelines look at its parameters
        def watched(model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **options: Any) -> Any:
            sigma = _sigma_of(scheduler, timestep) if self.has_guess else None
            output = step(model_output, timestep, sample, *args, **options)
            parts = output if isinstance(output, tuple) else tuple(output.values())
            self.latents = parts[0]
            if self.has_guess:
                self.guess = _guess(scheduler, parts, model_output, timestep, sample, sigma)
            return output

        return watched

    def image_of(self, latents: Tensor | None) -> Tensor | None:
        """[C, h, w], or None where there is none of this form."""
        if latents is not None and latents.dim() == 3:
            latents = self.unpack(latents)
        return latents[0] if latents is not None and latents.dim() == 4 and len(latents) == 1 else None


class LatentMap:
    """Normal equations of the colours of pictures in their latents, with a constant. Any thread may learn."""

    def __init__(self) -> None:
        self.pictures = 0
        self._lock = Lock()
        self._products: Tensor | None = None
        self._weights: Tensor | None = None

    @property
    def is_done(self) -> bool:
        return self.pictures >= MOST_PICTURES

    def learn(self, latents: Tensor, picture: Tensor) -> None:
        """[C, h, w] and the picture [3, H, W] in 0..1 that was decoded from them."""
        inputs = _with_constant(latents).cpu()
        colours = adaptive_avg_pool2d(picture.float(), (latents.shape[1], latents.shape[2])).flatten(1).double().cpu()
        rows = torch.cat([inputs, colours])
        products = rows @ inputs.T / inputs.shape[1]
        with self._lock:
            if self._products is None:
                self._products = torch.zeros_like(products)
            if self._products.shape != products.shape:
                return
            self._products = self._products + products
            self._weights = _solved(self._products)
            self.pictures += 1

    def colours(self, latents: Tensor) -> Tensor:
        """[3, h, w] in 0..1, on the latents' device."""
        flat = self.weights().to(latents.device, torch.float32) @ _with_constant(latents).float()
        return flat.reshape(3, *latents.shape[1:]).clamp(0, 1)

    def weights(self) -> Tensor:
        """[3, C + 1]. Needs a picture to have been learnt."""
        assert self._weights is not None  # noqa: S101 - tells mypy what the caller has made sure of
        return self._weights


class Sketcher:
    """The previews of one engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.map = LatentMap()
        self._clock = clock

    def watch(self, pipe: Any, width: int, height: int, *, is_wanted: bool) -> Glimpse | None:
        """A pipeline copy before its call; None where nobody needs to see its latents."""
        if not is_wanted and self.map.is_done:
            return None
        return Glimpse.of(pipe, width, height, has_guess=is_wanted)

    def learn(self, glimpse: Glimpse | None, picture: Tensor) -> None:
        """From a picture that is finished; in any thread."""
        latents = glimpse.image_of(glimpse.latents) if glimpse is not None else None
        if latents is not None and not self.map.is_done and bool(latents.isfinite().all()):
            self.map.learn(latents, picture)

    def sketch(self, glimpses: Sequence[Glimpse | None], drawn_s: float) -> tuple[Sketch | None, float]:
        """What draws the pictures of a job beside each other, and when that was; None where it is too early."""
        now_s = self._clock()
        if not self.map.pictures or now_s - drawn_s < EVERY_S:
            return None, drawn_s
        seen = [glimpse.image_of(glimpse.guess) for glimpse in glimpses if glimpse is not None]
        latents = [one for one in seen if one is not None]
        if not latents or len(latents) < len(glimpses):
            return None, drawn_s
        with torch.inference_mode():
            colours = torch.cat([self.map.colours(one) for one in latents], dim=-1).nan_to_num(0.5)
            pixels = HostCopy((colours * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous())
        return partial(_draw, pixels), now_s


def _solved(products: Tensor) -> Tensor:
    """The weights [3, C + 1] of the equations [C + 1 + 3, C + 1]."""
    size = products.shape[1]
    square, mixed = products[:size], products[size:]
    ridge = torch.eye(size, dtype=square.dtype) * square.diagonal().mean() * RIDGE
    weights: Tensor = torch.linalg.solve(square + ridge, mixed.T).T
    return weights


def _unpacking_of(pipe: Any) -> Callable[..., Tensor] | None:
    """Of a pipeline that packs latents as Flux does; those of videos are packed by frames as well."""
    unpack = getattr(pipe, "_unpack_latents", None)
    if unpack is None or set(signature(unpack).parameters) != {"latents", "height", "width", "vae_scale_factor"}:
        return None
    known: Callable[..., Tensor] = unpack
    return known


def _draw(pixels: HostCopy) -> Image.Image:
    return Image.fromarray(pixels.tensor().numpy())


def _with_constant(latents: Tensor) -> Tensor:
    flat = latents.flatten(1).double()
    return torch.cat([flat, torch.ones_like(flat[:1])])


def _sigma_of(scheduler: Any, timestep: Any) -> Any:
    """Of a flow-matching scheduler, before its step moves on; None of others."""
    if "FlowMatch" not in type(scheduler).__name__:
        return None
    if scheduler.step_index is None:
        scheduler._init_step_index(timestep)
    return scheduler.sigmas[scheduler.step_index]


def _guess(
    scheduler: Any, parts: tuple[Any, ...], model_output: Tensor, timestep: Any, sample: Tensor, sigma: Any
) -> Any:
    """What the picture would be if the denoiser were right: as the scheduler says it, or keeps it, by the line of flow
    matching, or by the noise's share; else the noisy latents, which become the picture as well."""
    if len(parts) > 1 and isinstance(parts[1], Tensor):
        return parts[1]
    if sigma is not None:
        return sample - sigma.to(sample.device) * model_output
    config = scheduler.config
    has_guesses = config.get("predict_x0", False) or str(config.get("algorithm_type", "")).startswith("dpmsolver++")
    kept = [one for one in getattr(scheduler, "model_outputs", None) or () if isinstance(one, Tensor)]
    if has_guesses and kept:
        return kept[-1]
    if type(scheduler).__name__ == "PNDMScheduler":
        share = scheduler.alphas_cumprod.to(sample.device)[int(timestep)]
        if config.get("prediction_type") == "v_prediction":
            return share.sqrt() * sample - (1 - share).sqrt() * model_output
        return (sample - (1 - share).sqrt() * model_output) / share.sqrt()
    return parts[0]
