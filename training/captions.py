"""Trains the captions model, a small Llama that finishes captions, and saves it: `python -m training.captions`."""

from __future__ import annotations

import argparse
import copy
import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from genmill.shapes.grammar import draw_captions, every_caption, is_caption
from training.course import Course, Plan

HOME: Final = Path(__file__).parent
OUT: Final = HOME.parent / "genmill" / "models" / "captions"
WORK: Final = HOME.parent / "out" / "training"

PLAN: Final = Plan(
    steps=400, budget_s=600, learning_rate=2e-3, warm_up_steps=20, average_decay=0.98, checkpoint_every=100
)

LONGEST_TEXT: Final = 128
"""Tokens of prompt and answer together; a caption takes 9."""

BEGIN, END, PAD = "<s>", "</s>", "<pad>"

CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | list | last %}"
    "{{ asked['content'] | trim }}"
)
"""The last thing the user said is the caption's beginning."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, one token for each word of the grammar; drops spaces at a prompt's end, which no word follows."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Strip(left=False, right=True)
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator((str(caption) for caption in every_caption()), trainer)
    learner.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, learner.token_to_id(BEGIN))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learner,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=LONGEST_TEXT,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Two layers of width 128 with tied embeddings: about 0.4 M parameters."""
    ends = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST_TEXT,
        tie_word_embeddings=True,
        **ends,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=16, **ends
    )
    return model


def every_sentence(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """The whole grammar as one batch: begin, words, end, padded on the right: [captions, tokens]."""
    texts = [f"{caption}{END}" for caption in every_caption()]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    numbers: torch.Tensor = batch["input_ids"]
    return numbers


def train(plan: Plan, seed: int, work: Path, out: Path) -> float:
    """Trains on the whole grammar at every step and saves in half precision; returns the seconds it took."""
    tokenizer = build_tokenizer()
    sentences = every_sentence(tokenizer)
    labels = sentences.masked_fill(sentences == tokenizer.pad_token_id, -100)
    torch.manual_seed(seed)
    course = Course("captions", build_model(tokenizer), plan, seed, work)

    def loss(_: np.random.Generator) -> torch.Tensor:
        answer = course.model(input_ids=sentences, labels=labels)
        value: torch.Tensor = answer.loss
        return value

    course.run(loss, lambda running: f"in the grammar {measure_grammar(running.average, tokenizer, 200, 1):.3f}")
    save(course.average, tokenizer, out)
    return course.elapsed_s


def save(model: Any, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Writes model and tokenizer in one move; the model given keeps its precision."""
    part = out.with_suffix(".part")
    copy.deepcopy(model).half().save_pretrained(part)
    tokenizer.save_pretrained(part)
    if out.exists():
        shutil.rmtree(out)
    part.rename(out)


def draw_beginnings(count: int, rng: np.random.Generator) -> list[str]:
    """The first words of drawn captions, none to all of them."""
    sentences = [str(caption).split(" ") for caption in draw_captions(count, rng)]
    return [" ".join(words[: rng.integers(len(words) + 1)]) for words in sentences]


@torch.no_grad()
def measure_grammar(model: Any, tokenizer: PreTrainedTokenizerBase, count: int, seed: int) -> float:
    """Share of sampled continuations, at temperature 1, that make their beginning a caption."""
    torch.manual_seed(seed)
    beginnings = draw_beginnings(count, np.random.default_rng(seed))
    batch = tokenizer(beginnings, padding=True, return_tensors="pt", return_token_type_ids=False)
    answers = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=16)
    added = tokenizer.batch_decode(answers[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return float(np.mean([is_caption(begun + rest) for begun, rest in zip(beginnings, added, strict=True)]))


def main() -> None:
    """Reads the arguments, trains, and records what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=WORK, help="checkpoints; resumed from")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    taken = train(PLAN, given.seed, given.work, given.out)
    record = HOME / "results" / "captions-training.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps({"seed": given.seed, "captions_s": taken}, indent=2) + "\n")


if __name__ == "__main__":
    main()
