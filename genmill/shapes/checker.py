"""Reads a caption off an image's pixels: the ground's colour, the figure's colour and its shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from genmill.shapes.grammar import COLOURS, SHAPES, Caption
from genmill.shapes.render import Floats, Placement, coverage

Picture = Image.Image | NDArray[np.uint8]

LEAST_OVERLAP: Final = 0.7
"""Intersection over union with the drawn shape below which a figure counts as no shape at all."""

_NAMES: Final = tuple(COLOURS)
_PALETTE: Final = np.asarray(list(COLOURS.values()), np.float32)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the pixels show best, and how well: `overlap` is that of the figure with its drawn shape, 0 to 1."""

    caption: Caption
    overlap: float


def describe(image: Picture) -> Caption:
    """The caption that fits the image best, however badly it fits."""
    return inspect(image).caption


def matches(image: Picture, caption: Caption) -> bool:
    """Whether the image shows the caption: both colours, the shape, and a figure that is clearly that shape."""
    finding = inspect(image)
    return finding.caption == caption and finding.overlap >= LEAST_OVERLAP


def inspect(image: Picture) -> Finding:
    """The best caption of an RGB image (PIL, or [height, width, 3] of uint8) with the figure's overlap."""
    pixels = _smoothed(image)
    nearest = _nearest_colours(pixels)
    ground = _commonest(_frame(nearest))
    figure = _figure_colour(nearest, ground)
    shape, overlap = _shape(_figure_mask(pixels, figure, ground))
    return Finding(Caption(_NAMES[figure], shape, _NAMES[ground]), overlap)


def _smoothed(image: Picture) -> Floats:
    """Pixels after a 3x3 median, which drops specks and keeps edges."""
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    return np.asarray(picture.convert("RGB").filter(ImageFilter.MedianFilter(3)), np.float32)


def _nearest_colours(pixels: Floats) -> NDArray[np.intp]:
    """Index of the palette's nearest colour for each pixel: [height, width]."""
    distances = ((pixels[:, :, None, :] - _PALETTE) ** 2).sum(axis=-1)
    nearest: NDArray[np.intp] = distances.argmin(axis=-1)
    return nearest


def _frame(nearest: NDArray[np.intp]) -> NDArray[np.intp]:
    """The outermost two rows and columns, where the ground shows."""
    edges = (nearest[:2], nearest[-2:], nearest[:, :2], nearest[:, -2:])
    return np.concatenate([edge.ravel() for edge in edges])


def _commonest(indices: NDArray[np.intp]) -> int:
    return int(np.bincount(indices, minlength=len(_NAMES)).argmax())


def _figure_colour(nearest: NDArray[np.intp], ground: int) -> int:
    """The commonest colour but the ground's, among pixels whose neighbours agree: mixed edges do not vote."""
    inner = nearest[1:-1, 1:-1]
    agrees = (
        (inner == nearest[:-2, 1:-1])
        & (inner == nearest[2:, 1:-1])
        & (inner == nearest[1:-1, :-2])
        & (inner == nearest[1:-1, 2:])
    )
    for voters in (inner[agrees], nearest.ravel()):
        votes = np.bincount(voters, minlength=len(_NAMES))
        votes[ground] = 0
        if votes.any():
            return int(votes.argmax())
    return (ground + 1) % len(_NAMES)  # one flat colour: any other name will do, its overlap is 0


def _figure_mask(pixels: Floats, figure: int, ground: int) -> NDArray[np.bool_]:
    """Pixels on the figure's side of the line between the two colours."""
    across = _PALETTE[figure] - _PALETTE[ground]
    share = (pixels - _PALETTE[ground]) @ across / (across @ across)
    mask: NDArray[np.bool_] = share > 0.5
    return mask


def _shape(mask: NDArray[np.bool_]) -> tuple[str, float]:
    """The shape that overlaps the mask best when drawn with the mask's centroid and area."""
    height, width = mask.shape
    area = int(mask.sum())
    if not area:
        return SHAPES[0], 0.0
    rows, columns = np.nonzero(mask)
    count = len(SHAPES)
    placement = Placement(
        x=np.full(count, (columns.mean() + 0.5) / width, np.float32),
        y=np.full(count, (rows.mean() + 0.5) / height, np.float32),
        radius=np.sqrt(area / _UNIT_AREAS).astype(np.float32) / height,
    )
    drawn = coverage(SHAPES, placement, height, width) > 0.5
    overlaps = (drawn & mask).sum(axis=(1, 2)) / (drawn | mask).sum(axis=(1, 2))
    best = int(overlaps.argmax())
    return SHAPES[best], float(overlaps[best])


def _measured_areas(side: int = 400) -> Floats:
    """Area of each shape of circumscribed radius 1, counted on a fine drawing."""
    half = np.full(len(SHAPES), 0.5, np.float32)
    quarter = np.full(len(SHAPES), 0.25, np.float32)
    pixels = coverage(SHAPES, Placement(half, half, quarter), side, side).sum(axis=(1, 2))
    areas: Floats = (pixels / (side / 4) ** 2).astype(np.float32)
    return areas


_UNIT_AREAS: Final = _measured_areas()
