"""Pipelines that cannot be parked at a denoiser: one of our own, and real ones of diffusers, with random weights."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DDPMPipeline,
    DDPMWuerstchenScheduler,
    DiffusionPipeline,
    StableCascadeCombinedPipeline,
    UNet2DModel,
)
from diffusers.models.unets import StableCascadeUNet
from diffusers.pipelines.deprecated.wuerstchen import PaellaVQModel
from diffusers.utils.torch_utils import randn_tensor

from tests.worker.engines import tiny
from tests.worker.engines.tiny import quieted
from worker.engines.devices import quiet


class Painter(DiffusionPipeline):
    """Text to image with a denoiser of another name. `fault` is asked at each step, with its prompts."""

    def __init__(self, painter: Any, vae: Any, text_encoder: Any, tokenizer: Any, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(
            painter=painter, vae=vae, text_encoder=text_encoder, tokenizer=tokenizer, scheduler=scheduler
        )
        self.fault: Callable[[int, list[str]], Exception | None] = lambda _step, _prompts: None
        self.calls: list[int] = []

    def encode(self, texts: list[str]) -> torch.Tensor:
        tokens = self.tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt")
        return self.text_encoder(tokens.input_ids)[0]

    def decoded(self, latents: torch.Tensor) -> torch.Tensor:
        return (self.vae.decode(latents).sample / 2 + 0.5).clamp(0, 1)

    @torch.no_grad()
    def __call__(
        self, prompt: Any, *, negative_prompt: Any = None, height: int = 32, width: int = 32,
        num_inference_steps: int = 4, guidance_scale: float = 3.0, generator: Any = None, output_type: str = "pt",
        callback_on_step_end: Any = None,
    ) -> Any:  # fmt: skip
        assert output_type == "pt"
        prompts = [prompt] if isinstance(prompt, str) else prompt
        against = negative_prompt if isinstance(negative_prompt, list) else [negative_prompt or ""] * len(prompts)
        self.calls.append(len(prompts))
        states = torch.cat([self.encode(against), self.encode(prompts)])
        shape = (len(prompts), 4, height // tiny.LATENT_SCALE, width // tiny.LATENT_SCALE)
        latents = randn_tensor(shape, generator=generator, device=self.device, dtype=self.dtype)
        self.scheduler.set_timesteps(num_inference_steps)
        with self.progress_bar(total=num_inference_steps) as bar:
            for index, timestep in enumerate(self.scheduler.timesteps):
                if (error := self.fault(index, prompts)) is not None:
                    raise error
                doubled = self.scheduler.scale_model_input(torch.cat([latents] * 2), timestep)
                without, towards = self.painter(doubled, timestep, encoder_hidden_states=states).sample.chunk(2)
                noise = without + guidance_scale * (towards - without)
                latents = self.scheduler.step(noise, timestep, latents, generator=generator).prev_sample
                if callback_on_step_end is not None:
                    callback_on_step_end(self, index, timestep, {"latents": latents})
                bar.update()
        return SimpleNamespace(images=self.decoded(latents))


class QuietPainter(Painter):
    """Without a callback, as older pipelines are."""

    @torch.no_grad()
    def __call__(self, prompt: Any, num_inference_steps: int = 4, generator: Any = None) -> Any:
        images = super().__call__(prompt, num_inference_steps=num_inference_steps, generator=generator).images
        return SimpleNamespace(images=self.numpy_to_pil(images.permute(0, 2, 3, 1).numpy()))


class Miser(Painter):
    """Makes one picture, however many prompts it is given."""

    def decoded(self, latents: torch.Tensor) -> torch.Tensor:
        return super().decoded(latents[:1])


def painter(cls: type[Painter] = Painter) -> Painter:
    parts = tiny.stable_diffusion().components
    names = ("vae", "text_encoder", "tokenizer")
    scheduler = DDIMScheduler.from_config(parts["scheduler"].config)
    return quieted(cls(parts["unet"], **{name: parts[name] for name in names}, scheduler=scheduler))


def ddpm() -> DDPMPipeline:
    """Without prompts, and with a denoiser whose row arguments nobody declared."""
    quiet()
    torch.manual_seed(9)
    unet = UNet2DModel(
        sample_size=16,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    ).eval()
    return quieted(DDPMPipeline(unet, DDIMScheduler()))


def stable_cascade() -> StableCascadeCombinedPipeline:
    """Two pipelines in one, each with a denoiser of another name."""
    quiet()
    torch.manual_seed(10)
    common = {
        "timestep_ratio_embedding_dim": 8,
        "patch_size": 1,
        "num_attention_heads": (0, 2),
        "down_num_layers_per_block": (1, 1),
        "up_num_layers_per_block": (1, 1),
        "down_blocks_repeat_mappers": (1, 1),
        "up_blocks_repeat_mappers": (1, 1),
        "switch_level": (False,),
        "block_types_per_layer": (
            ("SDCascadeResBlock", "SDCascadeTimestepBlock"),
            ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
        ),
        "conditioning_dim": 16,
        "block_out_channels": (8, 16),
    }
    prior = StableCascadeUNet(
        in_channels=16, out_channels=16, clip_text_in_channels=16, clip_text_pooled_in_channels=16,
        clip_image_in_channels=16, dropout=(0.0, 0.0), self_attn=True, timestep_conditioning_type=("sca", "crp"),
        **common,
    ).eval()  # fmt: skip
    decoder = StableCascadeUNet(
        in_channels=4, out_channels=4, clip_text_pooled_in_channels=16, effnet_in_channels=16,
        pixel_mapper_in_channels=3, dropout=(0.0, 0.0), self_attn=False, timestep_conditioning_type=("sca",),
        **common,
    ).eval()  # fmt: skip
    vqgan = PaellaVQModel(in_channels=3, out_channels=3, bottleneck_blocks=1, levels=2, embed_dim=8).eval()
    texts = [tiny.clip_text(with_projection=True) for _ in range(2)]
    return quieted(
        StableCascadeCombinedPipeline(
            tokenizer=tiny.clip_tokenizer(), text_encoder=texts[0], decoder=decoder,
            scheduler=DDPMWuerstchenScheduler(), vqgan=vqgan, prior_prior=prior, prior_text_encoder=texts[1],
            prior_tokenizer=tiny.clip_tokenizer(), prior_scheduler=DDPMWuerstchenScheduler(),
        )
    )  # fmt: skip
