"""Captions of one coloured figure on a ground of another colour, as text and as values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

Rgb = tuple[int, int, int]

COLOURS: Final[dict[str, Rgb]] = {
    "red": (220, 20, 40),
    "green": (20, 150, 60),
    "blue": (20, 60, 220),
    "yellow": (255, 235, 60),
    "orange": (255, 140, 0),
    "purple": (160, 40, 200),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}
SHAPES: Final[tuple[str, ...]] = ("circle", "square", "triangle", "star", "ring", "cross")

_SENTENCE: Final = re.compile(
    r"an? (?P<colour>{colours}) (?P<shape>{shapes}) on an? (?P<ground>{colours}) background".format(
        colours="|".join(COLOURS), shapes="|".join(SHAPES)
    )
)


@dataclass(frozen=True, slots=True)
class Caption:
    """A figure of one colour on a ground of another; `ValueError` for unknown words or equal colours."""

    colour: str
    shape: str
    ground: str

    def __post_init__(self) -> None:
        if self.colour not in COLOURS or self.ground not in COLOURS or self.shape not in SHAPES:
            raise ValueError(f"unknown word in {self.colour!r}, {self.shape!r}, {self.ground!r}")
        if self.colour == self.ground:
            raise ValueError(f"a {self.colour} figure cannot be seen on a ground of the same colour")

    def __str__(self) -> str:
        """The one sentence that says this caption: "an orange ring on a white background"."""
        figure, ground = _with_article(self.colour), _with_article(self.ground)
        return f"{figure} {self.shape} on {ground} background"


def every_caption() -> Iterator[Caption]:
    """All captions of the grammar, in a fixed order."""
    for colour in COLOURS:
        for shape in SHAPES:
            for ground in COLOURS:
                if ground != colour:
                    yield Caption(colour, shape, ground)


def draw_captions(count: int, rng: np.random.Generator) -> list[Caption]:
    """`count` captions, each drawn uniformly from the grammar."""
    captions = tuple(every_caption())
    return [captions[index] for index in rng.integers(len(captions), size=count)]


def parse(text: str) -> Caption | None:
    """The caption that `text` says word for word, or None where it is not in the grammar."""
    found = _SENTENCE.fullmatch(text)
    if found is None or found["colour"] == found["ground"]:
        return None
    caption = Caption(found["colour"], found["shape"], found["ground"])
    return caption if str(caption) == text else None


def is_caption(text: str) -> bool:
    """Whether `text` is in the grammar, articles and differing colours included."""
    return parse(text) is not None


def _with_article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
