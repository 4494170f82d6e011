"""A Llama of a few thousand random weights and a tokenizer of bytes."""

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from genmill.registry import ModelSpec
from worker.engines.devices import quiet

CONTEXT = 96
EOS = 1


def spec(max_batch: int = 8) -> ModelSpec:
    return ModelSpec(name="tiny-text", kind="text", source="in memory", max_batch=max_batch)


@cache
def tokenizer() -> Any:
    marks = ["<s>", "</s>", "<pad>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({token: index for index, token in enumerate([*marks, *letters])}, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytewise, bos_token=marks[0], eos_token=marks[1], pad_token=marks[2]
    )


def model() -> Any:
    quiet()
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer()),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            bos_token_id=0,
            eos_token_id=EOS,
            pad_token_id=2,
            initializer_range=0.4,
        )
    ).eval()
