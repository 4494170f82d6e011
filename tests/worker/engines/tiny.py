"""Pipelines of a few thousand random weights, built in memory: real classes, nothing downloaded."""

import string

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from genmill.input_limits import Limits
from genmill.registry import ModelSpec
from worker.engines.devices import quiet

WIDTH = 16
LATENT_SCALE = 2
"""Pixels of a side for one latent: these autoencoders have two levels."""


def spec(max_batch: int = 16, name: str = "tiny") -> ModelSpec:
    return ModelSpec(name=name, kind="image", source="in memory", max_batch=max_batch, limits=Limits(min_size=8))


def clip_tokenizer() -> CLIPTokenizer:
    """Letter by letter: each as itself and as the end of a word."""
    letters = [*string.ascii_lowercase, *string.digits, ",", "."]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: index for index, word in enumerate(words)}, merges=[], model_max_length=20)


def t5_tokenizer() -> T5Tokenizer:
    letters = [(letter, -3.0) for letter in string.ascii_lowercase]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0), *letters]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=20)


def clip_text(*, with_projection: bool, hidden: int = WIDTH) -> CLIPTextModel | CLIPTextModelWithProjection:
    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=20,
        projection_dim=hidden,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if with_projection else CLIPTextModel)(config).eval()


def t5_text() -> T5EncoderModel:
    config = T5Config(vocab_size=len(t5_tokenizer()), d_model=WIDTH, d_ff=32, d_kv=8, num_layers=2, num_heads=2)
    return T5EncoderModel(config).eval()


def autoencoder(latent_channels: int = 4, shift: float | None = None) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=latent_channels,
        norm_num_groups=4,
        sample_size=32,
        shift_factor=shift,
        use_quant_conv=shift is None,
        use_post_quant_conv=shift is None,
    ).eval()


def stable_diffusion() -> StableDiffusionPipeline:
    quiet()
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()
    return quieted(
        StableDiffusionPipeline(
            vae=autoencoder(),
            text_encoder=clip_text(with_projection=False),
            tokenizer=clip_tokenizer(),
            unet=unet,
            scheduler=DDIMScheduler(
                beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
            ),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def stable_diffusion_xl() -> StableDiffusionXLPipeline:
    quiet()
    torch.manual_seed(1)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=2 * WIDTH,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
        norm_num_groups=8,
    ).eval()
    return quieted(
        StableDiffusionXLPipeline(
            vae=autoencoder(),
            text_encoder=clip_text(with_projection=False),
            text_encoder_2=clip_text(with_projection=True),
            tokenizer=clip_tokenizer(),
            tokenizer_2=clip_tokenizer(),
            unet=unet,
            scheduler=EulerDiscreteScheduler(
                beta_start=0.00085,
                beta_end=0.012,
                beta_schedule="scaled_linear",
                steps_offset=1,
                timestep_spacing="leading",
            ),
            add_watermarker=False,
        )
    )


def stable_diffusion_3() -> StableDiffusion3Pipeline:
    quiet()
    torch.manual_seed(2)
    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=2 * WIDTH,
        pooled_projection_dim=2 * WIDTH,
    ).eval()
    return quieted(
        StableDiffusion3Pipeline(
            transformer=transformer,
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=autoencoder(shift=0.1),
            text_encoder=clip_text(with_projection=True),
            tokenizer=clip_tokenizer(),
            text_encoder_2=clip_text(with_projection=True),
            tokenizer_2=clip_tokenizer(),
            text_encoder_3=None,
            tokenizer_3=None,
        )
    )


def flux() -> FluxPipeline:
    quiet()
    torch.manual_seed(3)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    ).eval()
    return quieted(
        FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(),
            vae=autoencoder(shift=0.1),
            text_encoder=clip_text(with_projection=False),
            tokenizer=clip_tokenizer(),
            text_encoder_2=t5_text(),
            tokenizer_2=t5_tokenizer(),
            transformer=transformer,
        )
    )


def quieted(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe
