"""Stage 1 of the shapes model: an autoencoder of factor 8, held to the checker before anything is built on it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import AutoencoderKL

from genmill.shapes.checker import inspect
from genmill.shapes.grammar import draw_captions
from genmill.shapes.render import coverage, draw_placements, paint, render
from training.course import Course, Plan

PLAN: Final = Plan(steps=3000, budget_s=1080, learning_rate=1e-3, average_decay=0.995)

LEAST_KEPT: Final = 0.97
"""Share of reconstructions in which the checker must find the colour, the ground and the shape again."""

BATCH: Final = {64: 32, 96: 16}
SHARE_OF_96: Final = 0.15
FIGURE_WEIGHT: Final = 2.0
KL_WEIGHT: Final = 2e-4


@dataclass(frozen=True, slots=True)
class Kept:
    """Shares of reconstructions that kept each part of their caption, and all of them."""

    colour: float
    shape: float
    ground: float
    whole: float

    @property
    def worst(self) -> float:
        """The least of the parts."""
        return min(self.colour, self.shape, self.ground)


def build_autoencoder() -> AutoencoderKL:
    """0.98 M parameters, 4 latent channels; widths are powers of two, for which CPU convolutions are fast."""
    return AutoencoderKL(
        block_out_channels=(16, 32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=64,
    )


def to_tensor(images: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    """[N, height, width, 3] of uint8 to [N, 3, height, width] in -1 to 1."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_images(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The inverse of `to_tensor`, clipped and rounded."""
    scaled = ((tensor.float() + 1) * 127.5).round().clamp(0, 255)
    return scaled.to(torch.uint8).permute(0, 2, 3, 1).numpy()


def reconstruction_loss(vae: AutoencoderKL, rng: np.random.Generator) -> torch.Tensor:
    """L1 and squared error of one rendered batch, weighted on figures, with a light pull to unit latents."""
    size = 96 if rng.random() < SHARE_OF_96 else 64
    captions = draw_captions(BATCH[size], rng)
    covered = coverage([caption.shape for caption in captions], draw_placements(BATCH[size], rng), size, size)
    images = to_tensor(paint(captions, covered))
    weight = 1 + FIGURE_WEIGHT * torch.from_numpy(covered)[:, None]
    with torch.autocast("cpu", torch.bfloat16):
        posterior = vae.encode(images).latent_dist
        difference = (vae.decode(posterior.sample()).sample - images).float()
    error = ((difference.abs() + difference.square()) * weight).mean()
    mean, logvar = posterior.mean.float(), posterior.logvar.float()
    divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    loss: torch.Tensor = error + KL_WEIGHT * divergence
    return loss


@torch.no_grad()
def measure_kept(vae: AutoencoderKL, count: int, size: int, seed: int) -> Kept:
    """What the checker finds in reconstructions by the weights rounded to half precision."""
    rounded = copy.deepcopy(vae).half().float()
    rng = np.random.default_rng(seed)
    captions = draw_captions(count, rng)
    images = to_tensor(render(captions, size, rng))
    decoded = [rounded.decode(rounded.encode(part).latent_dist.mode()).sample for part in torch.split(images, 32)]
    findings = [inspect(image) for image in to_images(torch.cat(decoded))]
    pairs = [(finding.caption, caption) for finding, caption in zip(findings, captions, strict=True)]
    return Kept(
        colour=float(np.mean([found.colour == asked.colour for found, asked in pairs])),
        shape=float(np.mean([found.shape == asked.shape for found, asked in pairs])),
        ground=float(np.mean([found.ground == asked.ground for found, asked in pairs])),
        whole=float(np.mean([found == asked for found, asked in pairs])),
    )


def train_autoencoder(plan: Plan, seed: int, folder: Path) -> tuple[AutoencoderKL, float]:
    """The averaged autoencoder, checked, and the seconds it took; raises where it loses too much."""
    torch.manual_seed(seed)
    course = Course("autoencoder", build_autoencoder(), plan, seed, folder)
    course.run(
        lambda rng: reconstruction_loss(course.model, rng),
        lambda running: str(measure_kept(running.average, 200, 64, seed=1)),
    )
    vae: AutoencoderKL = course.average
    for size in BATCH:
        kept = measure_kept(vae, 1000, size, seed=2)
        print(f"autoencoder at {size}: {kept}", flush=True)
        if kept.worst < LEAST_KEPT:
            raise RuntimeError(f"the autoencoder keeps too little at {size}: {kept}")
    return vae, course.elapsed_s
