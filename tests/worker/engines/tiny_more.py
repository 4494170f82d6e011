"""More pipelines of a few thousand random weights: descendants of those in `tiny`, and other families."""

import torch
from diffusers import (
    AutoencoderDC,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    PNDMScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from transformers import Gemma2Config, Gemma2Model

from tests.worker.engines import tiny
from tests.worker.engines.tiny import WIDTH, quieted
from worker.engines.devices import quiet


def stable_diffusion_2() -> StableDiffusionPipeline:
    """As SD 2.x: velocity predictions, and attention computed in float32."""
    pipe = tiny.stable_diffusion()
    pipe.unet.register_to_config(upcast_attention=True)
    scheduler = PNDMScheduler.from_config(pipe.scheduler.config, prediction_type="v_prediction", skip_prk_steps=True)
    pipe.register_modules(scheduler=scheduler)
    return pipe


def sdxl_turbo() -> StableDiffusionXLPipeline:
    """As SDXL Turbo: ancestral Euler over trailing timesteps, for few steps without guidance."""
    pipe = tiny.stable_diffusion_xl()
    scheduler = EulerAncestralDiscreteScheduler.from_config(pipe.scheduler.config, timestep_spacing="trailing")
    pipe.register_modules(scheduler=scheduler)
    return pipe


def pixart_sigma() -> PixArtSigmaPipeline:
    quiet()
    torch.manual_seed(4)
    transformer = PixArtTransformer2DModel(
        sample_size=16,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=WIDTH,
        in_channels=4,
        cross_attention_dim=16,
        out_channels=8,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        use_additional_conditions=False,
    ).eval()
    return quieted(
        PixArtSigmaPipeline(
            tokenizer=tiny.t5_tokenizer(),
            text_encoder=tiny.t5_text(),
            vae=tiny.autoencoder(),
            transformer=transformer,
            scheduler=DPMSolverMultistepScheduler(beta_start=0.0001, beta_end=0.02, beta_schedule="linear"),
        )
    )


def sana() -> SanaPipeline:
    quiet()
    torch.manual_seed(5)
    transformer = SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=WIDTH,
        sample_size=8,
    ).eval()
    vae = AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    ).eval()
    text = Gemma2Config(
        vocab_size=len(tiny.t5_tokenizer()),
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    return quieted(
        SanaPipeline(
            tokenizer=tiny.t5_tokenizer(),
            text_encoder=Gemma2Model(text).eval(),
            vae=vae,
            transformer=transformer,
            scheduler=DPMSolverMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
            ),
        )
    )
