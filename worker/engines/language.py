"""Loads causal language models of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from genmill.registry import ModelSpec
from worker.engines.devices import pick_dtype, quiet, source_arguments


def load_language_model(spec: ModelSpec, device: torch.device) -> tuple[Any, Any]:
    """(model on the device, tokenizer). Raises OSError, ValueError, RuntimeError, ImportError as transformers does."""
    quiet()
    place = source_arguments(spec)
    tokenizer = transformers.AutoTokenizer.from_pretrained(spec.source, **place)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        spec.source, dtype=pick_dtype(spec, device), attn_implementation="sdpa", **place
    )
    return model.to(device).eval(), tokenizer


def eos_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Those that end a text; there may be none."""
    own = getattr(model.generation_config, "eos_token_id", None)
    own = tokenizer.eos_token_id if own is None else own
    return [] if own is None else [own] if isinstance(own, int) else list(own)
