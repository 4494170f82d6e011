"""The shapes model's reader of prompts: a CLIP tokenizer whose words are the grammar's, and its text encoder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from genmill.shapes.grammar import every_caption

LONGEST_PROMPT: Final = 32
"""Tokens of a prompt, start and end included; a caption takes 9."""

WORD_END: Final = "</w>"


def build_clip_tokenizer() -> CLIPTokenizer:
    """A byte-level tokenizer: one token for each word of the grammar, and any other text byte by byte."""
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _learned_merges()
    tokens = [*bytes_, *(byte + WORD_END for byte in bytes_), *("".join(pair) for pair in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=LONGEST_PROMPT)


def build_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """Two causal layers of width 64: about 0.1 M parameters."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        projection_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=LONGEST_PROMPT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config)


def tokenise(tokenizer: CLIPTokenizer, texts: Sequence[str]) -> torch.Tensor:
    """Token numbers as the pipeline would pass them: [N, LONGEST_PROMPT]."""
    encoded = tokenizer(
        list(texts), padding="max_length", truncation=True, max_length=LONGEST_PROMPT, return_tensors="pt"
    )
    numbers: torch.Tensor = encoded.input_ids
    return numbers


def _learned_merges() -> list[tuple[str, str]]:
    """Merges that make each word of the grammar one token, learned from its captions."""
    learner = Tokenizer(models.BPE(end_of_word_suffix=WORD_END))
    learner.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=1000, end_of_word_suffix=WORD_END, show_progress=False)
    learner.train_from_iterator((str(caption) for caption in every_caption()), trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(first, second) for first, second in merges]
