"""How large the cache of a language model is, and what that takes of a device, told before the model is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from genmill.registry import ModelKind, ModelSpec
from worker.engines.base import Device
from worker.engines.weights import folder_of, number_bytes_of

LONGEST_CONTEXT = 8_192
"""Tokens per sequence that the cache is planned for, where the model would read more."""
_TRASH_BLOCKS = 2
"""Which the library has besides, for the rows that pad a forward."""


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """Tokens of a page of the cache, of the cache at most, and of a forward at most.

    Left to itself the library takes most of the device's memory, where other models live too.
    """

    page: int
    cache: int
    forward: int

    def blocks(self, max_requests: int, context: int) -> int:
        """Pages of the cache for so many sequences of so many tokens."""
        longest = context + self.page
        tokens = max(min(max_requests * longest, self.cache), longest)
        return tokens // self.page + 1

    def forward_tokens(self, max_requests: int) -> int:
        return max(self.forward, max_requests)


_SIZES = {
    "cpu": CacheSizes(page=16, cache=32_768, forward=512),
    "cuda": CacheSizes(page=256, cache=131_072, forward=2_048),
}


def sizes_on(device_type: str) -> CacheSizes:
    return _SIZES["cuda" if device_type == "cuda" else "cpu"]


def context_of(longest: int) -> int:
    """Tokens that a sequence may have in all, of a model that reads so many."""
    return min(longest, LONGEST_CONTEXT)


def cache_bytes(spec: ModelSpec, device: Device) -> int:
    """Of a model of this entry, beside its weights: keys and values of each layer, and the mask of a forward over all
    of them. 0 where it has no cache, or its configuration is not on this machine yet or does not tell."""
    if spec.kind is not ModelKind.TEXT:
        return 0
    try:
        folder = folder_of(spec.source, None if spec.revision == "1" else spec.revision)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _bytes_by(
            config.get("text_config", config), spec.max_batch, device, number_bytes_of(spec, device.dtype)
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # whatever is wrong with it, loading tells
        return 0


def _bytes_by(config: Mapping[str, Any], max_requests: int, device: Device, number_bytes: int) -> int:
    sizes = sizes_on("cpu" if device.memory_bytes is None else "cuda")
    blocks = sizes.blocks(max_requests, context_of(config["max_position_embeddings"]))
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_numbers = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    of_token: int = 2 * config["num_hidden_layers"] * heads * head_numbers * number_bytes
    rows = sizes.forward_tokens(max_requests)
    mask: int = rows * (blocks * sizes.page + rows) * number_bytes
    return (blocks + _TRASH_BLOCKS) * sizes.page * of_token + mask
