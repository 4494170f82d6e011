"""LoRA weights and ControlNets for the tiny pipelines, random and strong enough to show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import ControlNetModel
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
TEXT = ["q_proj", "v_proj"]


def write_lora(build: Callable[[], Any], folder: Path, seed: int, *, has_text: bool = False, rank: int = 4) -> Path:
    """The file that diffusers writes for the denoiser of such a pipeline, and with `has_text` its text encoder."""
    pipe = build()  # one of its own: adding an adapter changes a pipeline
    torch.manual_seed(seed)
    part = "unet" if hasattr(pipe, "unet") else "transformer"
    layers = {f"{part}_lora_layers": _random_lora(getattr(pipe, part), ATTENTION, rank)}
    if has_text:
        layers["text_encoder_lora_layers"] = _random_lora(pipe.text_encoder, TEXT, rank)
    type(pipe).save_lora_weights(folder, **layers)
    return folder / "pytorch_lora_weights.safetensors"


def _random_lora(module: torch.nn.Module, targets: list[str], rank: int) -> dict[str, torch.Tensor]:
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=targets), module)
    state = get_peft_model_state_dict(module)
    return {name: torch.randn_like(tensor) * 0.3 for name, tensor in state.items()}


def controlnet(unet: torch.nn.Module, seed: int = 5) -> ControlNetModel:
    torch.manual_seed(seed)
    control = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(8, 16)).eval()
    for block in (*control.controlnet_down_blocks, control.controlnet_mid_block):
        torch.nn.init.normal_(block.weight, std=0.1)  # they begin at zero, and would control nothing
    return control
