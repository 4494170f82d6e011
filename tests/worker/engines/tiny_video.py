"""Video pipelines of a few thousand random weights."""

import torch
from diffusers import (
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import UMT5Config, UMT5EncoderModel

from tests.worker.engines import tiny
from tests.worker.engines.tiny import WIDTH, quieted
from worker.engines.devices import quiet


def ltx() -> LTXPipeline:
    quiet()
    torch.manual_seed(6)
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=2,
        caption_channels=WIDTH,
    ).eval()
    vae = AutoencoderKLLTXVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False, False, False, False, False),
        upsample_residual=(False, False, False, False),
        upsample_factor=(1, 1, 1, 1),
        timestep_conditioning=False,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    ).eval()
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return quieted(
        LTXPipeline(
            scheduler=scheduler,
            vae=vae,
            text_encoder=tiny.t5_text(),
            tokenizer=tiny.t5_tokenizer(),
            transformer=transformer,
        )
    )


def _wan_transformer() -> WanTransformer3DModel:
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    ).eval()


def wan_with_two() -> WanPipeline:
    """As Wan 2.2: a second transformer takes over as the noise gets less."""
    one = wan()
    torch.manual_seed(8)
    pipe = WanPipeline(**{**one.components, "transformer_2": _wan_transformer()}, boundary_ratio=0.9)
    return quieted(pipe)


def wan() -> WanPipeline:
    quiet()
    torch.manual_seed(7)
    transformer = _wan_transformer()
    vae = AutoencoderKLWan(
        base_dim=3,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    ).eval()
    text = UMT5Config(vocab_size=len(tiny.t5_tokenizer()), d_model=WIDTH, d_ff=32, d_kv=8, num_layers=2, num_heads=2)
    return quieted(
        WanPipeline(
            tokenizer=tiny.t5_tokenizer(),
            text_encoder=UMT5EncoderModel(text).eval(),
            vae=vae,
            scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
            transformer=transformer,
        )
    )
