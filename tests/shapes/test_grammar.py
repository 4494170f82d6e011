"""Captions as text and as values."""

import numpy as np
import pytest

from genmill.shapes.grammar import COLOURS, SHAPES, Caption, draw_captions, every_caption, is_caption, parse


def test_every_caption_is_said_once_and_read_back() -> None:
    captions = list(every_caption())
    assert len(captions) == len(COLOURS) * len(SHAPES) * (len(COLOURS) - 1) == 336
    assert len({str(caption) for caption in captions}) == len(captions)
    assert all(parse(str(caption)) == caption for caption in captions)


def test_articles_follow_the_sound() -> None:
    assert str(Caption("red", "circle", "orange")) == "a red circle on an orange background"
    assert str(Caption("orange", "ring", "white")) == "an orange ring on a white background"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a red circle",
        "a red circle on a red background",
        "an red circle on a blue background",
        "a red circle on an blue background",
        "a red circle on a blue background.",
        "A red circle on a blue background",
        " a red circle on a blue background",
        "a pink circle on a blue background",
        "a red hexagon on a blue background",
    ],
)
def test_anything_else_is_no_caption(text: str) -> None:
    assert parse(text) is None
    assert not is_caption(text)


@pytest.mark.parametrize("words", [("red", "circle", "red"), ("pink", "circle", "red"), ("red", "egg", "blue")])
def test_a_caption_cannot_hold_what_the_grammar_does_not_say(words: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match=r"unknown word|cannot be seen"):
        Caption(*words)


def test_a_seed_draws_the_same_captions_and_reaches_all_of_them() -> None:
    drawn = draw_captions(5000, np.random.default_rng(3))
    assert drawn == draw_captions(5000, np.random.default_rng(3))
    assert set(drawn) == set(every_caption())


def test_colours_lie_far_apart() -> None:
    palette = np.array(list(COLOURS.values()), float)
    distances = np.linalg.norm(palette[:, None] - palette[None], axis=-1)
    assert distances[~np.eye(len(palette), dtype=bool)].min() > 100
