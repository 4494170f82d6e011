"""Stage 2 of the shapes model: the denoiser and its text encoder, trained together on stored latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from genmill.shapes.grammar import draw_captions, every_caption
from genmill.shapes.render import render
from training.autoencoder import to_tensor
from training.course import Plan
from training.words import build_text_encoder, tokenise

PLAN: Final = Plan(
    steps=6000,
    budget_s=2550,
    learning_rate=8e-4,
    warm_up_steps=200,
    average_decay=0.999,
    checkpoint_every=300,
)

STORED: Final = {64: 32_000, 96: 6_400}
BATCH: Final = {64: 64, 96: 28}
SHARE_OF_96: Final = 0.15
SHARE_WITHOUT_PROMPT: Final = 0.1

UNPROMPTED: Final = len(list(every_caption()))
"""Row of the empty prompt in a table of the grammar's captions."""


@dataclass(frozen=True, slots=True)
class Latents:
    """Encoded images of one size: `values` [N, 4, h, w], already scaled, and their captions' row numbers [N]."""

    values: torch.Tensor
    rows: torch.Tensor


class Painter(torch.nn.Module):
    """The two networks that are trained together."""

    def __init__(self, tokenizer: CLIPTokenizer) -> None:
        super().__init__()
        self.text_encoder: CLIPTextModel = build_text_encoder(tokenizer)
        self.unet = build_unet()

    def forward(self, noisy: torch.Tensor, times: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Predicted velocity, of `noisy`'s shape."""
        words = self.text_encoder(tokens).last_hidden_state
        predicted: torch.Tensor = self.unet(noisy, times, words).sample
        return predicted


def build_unet() -> UNet2DConditionModel:
    """Two levels, 8x8 with attention and 4x4 with most of the weights: few rows wait for memory, many do not."""
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(64, 160),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        mid_block_type="UNetMidBlock2DCrossAttn",
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        attention_head_dim=4,
        cross_attention_dim=64,
        norm_num_groups=16,
    )


def build_scheduler() -> DDIMScheduler:
    """Velocity prediction; ends in noise stronger than Stable Diffusion's, since flat grounds shine through it."""
    scheduler = DDIMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.02,
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    scheduler.register_to_config(skip_prk_steps=True)  # for PNDM, which takes over this configuration
    return scheduler


def prompts() -> list[str]:
    """Every caption in the grammar's order, then the empty prompt."""
    return [*(str(caption) for caption in every_caption()), ""]


@torch.no_grad()
def measure_scale(vae: AutoencoderKL, seed: int) -> float:
    """One over the standard deviation of latents, which makes them unit-sized for the denoiser."""
    rng = np.random.default_rng([seed, 1])
    images = to_tensor(render(draw_captions(1024, rng), 64, rng))
    latents = torch.cat([vae.encode(part).latent_dist.mode() for part in torch.split(images, 64)])
    return float(1 / latents.std())


def store_latents(vae: AutoencoderKL, seed: int, folder: Path) -> dict[int, Latents]:
    """Latents of rendered images by size; read back where an earlier run has left them in `folder`."""
    path = folder / "latents.pt"
    if not path.exists():
        tensors = {size: _encode(vae, size, count, seed) for size, count in STORED.items()}
        torch.save(tensors, path)
    return {size: Latents(*pair) for size, pair in torch.load(path, weights_only=True).items()}


def velocity_loss(
    painter: Painter,
    scheduler: DDIMScheduler,
    stored: dict[int, Latents],
    tokens: torch.Tensor,
    rng: np.random.Generator,
) -> torch.Tensor:
    """Squared error of the velocity at random times, for one batch of one size."""
    size = 96 if rng.random() < SHARE_OF_96 else 64
    latents, count = stored[size], BATCH[size]
    chosen = torch.from_numpy(rng.integers(len(latents.rows), size=count))
    rows = latents.rows[chosen]
    rows[torch.from_numpy(rng.random(count) < SHARE_WITHOUT_PROMPT)] = UNPROMPTED
    times = torch.from_numpy(rng.integers(scheduler.config.num_train_timesteps, size=count))
    clean = latents.values[chosen].float()
    noise = torch.randn(clean.shape)
    noisy = scheduler.add_noise(clean, noise, times)
    predicted = painter(noisy, times, tokens[rows])
    return torch.nn.functional.mse_loss(predicted, scheduler.get_velocity(clean, noise, times))


def prompt_tokens(tokenizer: CLIPTokenizer, texts: Sequence[str] | None = None) -> torch.Tensor:
    """Tokens of the grammar's captions and of the empty prompt, by row number."""
    return tokenise(tokenizer, prompts() if texts is None else texts)


@torch.no_grad()
def _encode(vae: AutoencoderKL, size: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng([seed, size])
    numbers = {caption: row for row, caption in enumerate(every_caption())}
    values, rows = [], []
    for _ in range(0, count, 64):
        captions = draw_captions(64, rng)
        with torch.autocast("cpu", torch.bfloat16):
            encoded = vae.encode(to_tensor(render(captions, size, rng))).latent_dist.mode()
        values.append((encoded.float() * vae.config.scaling_factor).half())
        rows += [numbers[caption] for caption in captions]
    return torch.cat(values), torch.tensor(rows)
