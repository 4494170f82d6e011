"""The shipped models load quietly, offline, and take any prompt."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from genmill.shapes.grammar import Caption, every_caption, is_caption
from training import captions, gauge, shapes
from training.words import LONGEST_PROMPT, build_clip_tokenizer, tokenise


@pytest.fixture(scope="module")
def pipeline() -> object:
    return gauge.load_shapes(shapes.OUT)


def test_the_shapes_model_is_small_and_has_no_safety_checker() -> None:
    index = json.loads((shapes.OUT / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"
    assert index["requires_safety_checker"] is False
    assert index["safety_checker"] == index["feature_extractor"] == [None, None]
    assert sum(file.stat().st_size for file in shapes.OUT.rglob("*") if file.is_file()) <= 12_000_000


def test_the_shapes_model_draws_its_captions(pipeline: object) -> None:
    found = gauge.measure_fidelity(pipeline, gauge.Setting(steps=12), 16)
    assert found.whole >= 0.75


def test_any_prompt_draws_a_picture_of_the_default_size(pipeline: object) -> None:
    generator = torch.Generator().manual_seed(0)
    image = pipeline("Ünïcode 漢字 🙂 \x00" * 50, num_inference_steps=2, generator=generator).images[0]
    assert image.size == (64, 64)


def test_the_saved_tokenizer_reads_as_the_built_one(pipeline: object) -> None:
    texts = [*(str(caption) for caption in every_caption()), "", "Ünïcode 漢字 🙂", "A  RED circle"]
    saved, built = tokenise(pipeline.tokenizer, texts), tokenise(build_clip_tokenizer(), texts)
    assert saved.shape == (len(texts), LONGEST_PROMPT)
    torch.testing.assert_close(saved, built)


def test_each_word_of_a_caption_is_one_token(pipeline: object) -> None:
    text = str(Caption("orange", "triangle", "purple"))
    assert len(pipeline.tokenizer(text).input_ids) == len(text.split()) + 2
    assert len(AutoTokenizer.from_pretrained(captions.OUT)(text).input_ids) == len(text.split()) + 1


def test_the_captions_model_finishes_captions() -> None:
    model = AutoModelForCausalLM.from_pretrained(captions.OUT, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(captions.OUT)
    assert captions.measure_grammar(model, tokenizer, 100, seed=3) >= 0.95


def test_a_chat_is_finished_from_the_last_thing_the_user_said() -> None:
    model = AutoModelForCausalLM.from_pretrained(captions.OUT, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(captions.OUT)
    chat = [
        {"role": "user", "content": "a blue ring"},
        {"role": "assistant", "content": "on a red background"},
        {"role": "user", "content": "a green star on "},
    ]
    batch = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**batch, do_sample=False, temperature=None, top_p=None, top_k=None)[0]
    text = tokenizer.decode(answer, skip_special_tokens=True)
    assert text.startswith("a green star on a")
    assert is_caption(text)
