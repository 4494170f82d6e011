"""Pipelines with denoisers and autoencoders of full size and random weights, built where they will run.

Speed does not depend on what weights say, so nothing has to be downloaded. Text encoders are small ones of the right
width: they run once a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from genmill.input_limits import Limits
from genmill.registry import ModelSpec
from tests.worker.engines import tiny

NOISE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to measure, and the edges of its images in pixels."""

    name: str
    build: Callable[[], Any]
    sizes: tuple[int, ...]

    @property
    def spec(self) -> ModelSpec:
        limits = Limits(min_size=8, max_size=2048)
        return ModelSpec(name=self.name, kind="image", source="in memory", max_batch=16, limits=limits)

    def pipeline(self, device: torch.device, dtype: torch.dtype) -> Any:
        """On the device, silent."""
        torch.manual_seed(0)
        with _building_on(device, dtype):
            pipe = self.build()
        pipe.set_progress_bar_config(disable=True)
        return pipe.to(device=device, dtype=dtype)


@contextmanager
def _building_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def _autoencoder(latent_channels: int, shift: float | None = None) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=2, latent_channels=latent_channels,
        sample_size=512, shift_factor=shift, use_quant_conv=shift is None, use_post_quant_conv=shift is None,
    ).eval()  # fmt: skip


def stable_diffusion_15() -> Any:
    """The UNet of Stable Diffusion 1.5: 860 million weights."""
    unet = UNet2DConditionModel(
        sample_size=64, block_out_channels=(320, 640, 1280, 1280), layers_per_block=2, cross_attention_dim=768,
        attention_head_dim=8,
    ).eval()  # fmt: skip
    return StableDiffusionPipeline(
        vae=_autoencoder(4), text_encoder=tiny.clip_text(with_projection=False, hidden=768),
        tokenizer=tiny.clip_tokenizer(), unet=unet, scheduler=EulerDiscreteScheduler(**NOISE), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def stable_diffusion_xl() -> Any:
    """The UNet of Stable Diffusion XL: 2.6 billion weights."""
    unet = UNet2DConditionModel(
        sample_size=128, block_out_channels=(320, 640, 1280), layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10), attention_head_dim=(5, 10, 20), cross_attention_dim=2048,
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    ).eval()  # fmt: skip
    return StableDiffusionXLPipeline(
        vae=_autoencoder(4), text_encoder=tiny.clip_text(with_projection=False, hidden=768),
        text_encoder_2=tiny.clip_text(with_projection=True, hidden=1280), tokenizer=tiny.clip_tokenizer(),
        tokenizer_2=tiny.clip_tokenizer(), unet=unet, scheduler=EulerDiscreteScheduler(**NOISE),
        add_watermarker=False,
    )  # fmt: skip


def stable_diffusion_3() -> Any:
    """The transformer of Stable Diffusion 3 medium: 2 billion weights."""
    transformer = SD3Transformer2DModel(
        sample_size=128, patch_size=2, in_channels=16, out_channels=16, num_layers=24, attention_head_dim=64,
        num_attention_heads=24, joint_attention_dim=4096, caption_projection_dim=1536, pooled_projection_dim=2048,
        pos_embed_max_size=192,
    ).eval()  # fmt: skip
    return StableDiffusion3Pipeline(
        transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=_autoencoder(16, 0.1),
        text_encoder=tiny.clip_text(with_projection=True, hidden=768), tokenizer=tiny.clip_tokenizer(),
        text_encoder_2=tiny.clip_text(with_projection=True, hidden=1280), tokenizer_2=tiny.clip_tokenizer(),
        text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip


FULL = (
    Subject("sd15", stable_diffusion_15, (512, 1024)),
    Subject("sdxl", stable_diffusion_xl, (512, 1024)),
    Subject("sd3", stable_diffusion_3, (512, 1024)),
)
TINY = (
    Subject("tiny-sd", tiny.stable_diffusion, (32, 48)),
    Subject("tiny-sdxl", tiny.stable_diffusion_xl, (32,)),
    Subject("tiny-sd3", tiny.stable_diffusion_3, (32,)),
)
SETS: Mapping[bool, tuple[Subject, ...]] = {False: FULL, True: TINY}
