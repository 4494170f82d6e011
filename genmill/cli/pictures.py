"""Pictures on a terminal: two pixels a cell, one above the other, as a half block in two colours."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError
from rich.color import Color
from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

UPPER_HALF = "▀"


def has_colours(console: Console) -> bool:
    """Whether it shows pictures: a terminal of 16 million colours whose user does not refuse them (NO_COLOR)."""
    return console.is_terminal and console.color_system == "truecolor" and not console.no_color


def half_blocks(image: Image.Image, columns: int, rows: int) -> Segments:
    """The image as large as it fits into so many cells, which are about twice as high as they are wide; never larger
    than a pixel for a pixel."""
    scale = min(columns / image.width, 2 * rows / image.height, 1.0)
    width, height = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    pixels = image.convert("RGB").resize((width, height + height % 2), Image.Resampling.LANCZOS).load()
    assert pixels is not None  # noqa: S101 - of an image that is loaded
    segments = []
    for y in range(0, height, 2):
        for x in range(width):
            upper, lower = (Color.from_rgb(*pixels[x, at]) for at in (y, y + 1))  # type: ignore[misc]  # RGB
            segments.append(Segment(UPPER_HALF, Style(color=upper, bgcolor=lower)))
        segments.append(Segment.line())
    return Segments(segments)


def decoded(body: bytes) -> Image.Image | None:
    """None of what is no image, or cut short."""
    try:
        image = Image.open(io.BytesIO(body))
        image.load()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return None
    return image
