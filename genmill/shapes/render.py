"""Draws captions: many images at once, anti-aliased, each figure at its own place and scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from genmill.shapes.grammar import COLOURS, Caption

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

FIGURE_SHARE: Final = (0.6, 0.85)
"""Diameter of a figure's circumscribed circle, as a share of the image's side."""

DRIFT: Final = 0.7
"""How much of the room left around a figure its centre may use."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Centres and radii of N figures, in shares of the image's side; three arrays of shape [N]."""

    x: Floats
    y: Floats
    radius: Floats


def draw_placements(count: int, rng: np.random.Generator) -> Placement:
    """Random places and scales at which a figure lies wholly inside its image."""
    radius = rng.uniform(*FIGURE_SHARE, size=count) / 2
    room = (0.5 - radius) * DRIFT
    x = 0.5 + rng.uniform(-1, 1, size=count) * room
    y = 0.5 + rng.uniform(-1, 1, size=count) * room
    return Placement(*(value.astype(np.float32) for value in (x, y, radius)))


def coverage(shapes: Sequence[str], placement: Placement, height: int, width: int) -> Floats:
    """How much of each pixel its figure covers, 0 to 1: [N, height, width]; radii are shares of the height."""
    rows = (np.arange(height, dtype=np.float32) + 0.5) / height
    columns = (np.arange(width, dtype=np.float32) + 0.5) / width
    radius = placement.radius[:, None, None]
    x = (columns[None, None, :] - placement.x[:, None, None]) * (width / height) / radius
    y = (rows[None, :, None] - placement.y[:, None, None]) / radius
    distance = np.empty((len(shapes), height, width), np.float32)
    names = np.asarray(shapes)
    for name in set(shapes):
        chosen = names == name
        distance[chosen] = _DISTANCES[name](x[chosen], y[chosen])
    covered: Floats = np.clip(0.5 - distance * radius * height, 0, 1)
    return covered


def paint(captions: Sequence[Caption], covered: Floats) -> Pixels:
    """Figures over grounds, mixed by coverage: [N, height, width, 3]."""
    figures = np.asarray([COLOURS[caption.colour] for caption in captions], np.float32)[:, None, None]
    grounds = np.asarray([COLOURS[caption.ground] for caption in captions], np.float32)[:, None, None]
    mixed = grounds + (figures - grounds) * covered[..., None]
    return np.rint(mixed).astype(np.uint8)


def render(captions: Sequence[Caption], size: int, rng: np.random.Generator) -> Pixels:
    """Square images of the captions, placed at random: [N, size, size, 3]."""
    placement = draw_placements(len(captions), rng)
    return paint(captions, coverage([caption.shape for caption in captions], placement, size, size))


def render_one(caption: Caption, size: int, rng: np.random.Generator) -> Image.Image:
    """One square picture of the caption, placed at random."""
    return Image.fromarray(render([caption], size, rng)[0])


# Signed distances to a figure's edge, negative inside, for coordinates in which the circumscribed circle has
# radius 1 and y points down. Outside of a corner they are those to the nearest edge's line: good to a pixel.


def _circle(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, y) - 1


def _square(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x), np.abs(y)) - np.float32(np.sqrt(0.5))


def _triangle(x: Floats, y: Floats) -> Floats:
    slanted = np.abs(x) * np.float32(np.sqrt(0.75)) - y * np.float32(0.5)
    return np.maximum(slanted, y) - np.float32(0.5)


def _star(x: Floats, y: Floats, inner: float = 0.42) -> Floats:
    """Five points; `inner` is the radius of the corners between them."""
    fifth = np.float32(np.pi / 5)
    angle = np.arctan2(x, -y)
    folded = np.abs((angle + fifth) % (2 * fifth) - fifth)
    radius = np.hypot(x, y)
    along, across = radius * np.cos(folded), radius * np.sin(folded)
    edge = np.array([inner * np.cos(fifth) - 1, inner * np.sin(fifth)])
    normal = np.array([edge[1], -edge[0]]) / np.hypot(*edge)
    distance: Floats = ((along - 1) * normal[0] + across * normal[1]).astype(np.float32)
    return distance


def _ring(x: Floats, y: Floats, hole: float = 0.5) -> Floats:
    middle, half_width = np.float32((1 + hole) / 2), np.float32((1 - hole) / 2)
    return np.abs(np.hypot(x, y) - middle) - half_width


def _cross(x: Floats, y: Floats, half_width: float = 0.3) -> Floats:
    length = np.float32(np.sqrt(1 - half_width**2))
    x, y = np.abs(x), np.abs(y)
    return np.maximum(np.minimum(x, y) - np.float32(half_width), np.maximum(x, y) - length)


_DISTANCES: Final[dict[str, Callable[[Floats, Floats], Floats]]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "ring": _ring,
    "cross": _cross,
}
