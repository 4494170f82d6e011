"""Outputs as the files that are stored: pictures as PNG, videos as animated WebP."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from worker.engines.base import Undeveloped, Video

if TYPE_CHECKING:
    from PIL.Image import Image

QUALITY, EFFORT = 90, 2
"""Of WebP: next to no visible loss at a twelfth of the bytes of lossless frames, and a second for 50 of 832x480."""


class Encoded(NamedTuple):
    """A file, and what is told of it beside its size."""

    body: bytes
    content_type: str
    suffix: str
    facts: Mapping[str, Any]


def developed(output: Image | Video | Undeveloped) -> Image | Video:
    """With its pixels. Raises what `develop` raises."""
    return output.develop() if isinstance(output, Undeveloped) else output


def encoded(output: Image | Video) -> Encoded:
    """The file of one output; the same pixels give the same bytes."""
    image = output.frames[0] if isinstance(output, Video) else output
    facts = {"width": image.width, "height": image.height}
    if isinstance(output, Video):
        facts |= {"frames": len(output.frames), "fps": output.fps}
        return Encoded(_webp(output), "image/webp", ".webp", facts)
    return Encoded(_png(output), "image/png", ".png", facts)


def _png(image: Image) -> bytes:
    """PNG: lossless, so that a result can be compared with a run alone, byte for byte."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def _webp(video: Video) -> bytes:
    """The encoder makes one frame, shown for longer, of several that are alike."""
    first, *others = video.frames
    buffer = io.BytesIO()
    first.save(
        buffer, format="WEBP", save_all=True, append_images=others, duration=durations_ms(video), loop=0,
        quality=QUALITY, method=EFFORT,
    )  # fmt: skip
    return buffer.getvalue()


def durations_ms(video: Video) -> list[int]:
    """Of each frame, in whole milliseconds as WebP has them, so that no error adds up."""
    starts = (round(number * 1000 / video.fps) for number in range(len(video.frames) + 1))
    return [after - before for before, after in pairwise(starts)]
