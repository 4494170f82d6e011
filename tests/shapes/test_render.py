"""Drawn images: sizes, colours, places."""

import numpy as np
import pytest

from genmill.shapes.grammar import COLOURS, SHAPES, Caption, draw_captions
from genmill.shapes.render import coverage, draw_placements, render, render_one


@pytest.mark.parametrize("size", [32, 64, 96])
def test_images_have_the_asked_size_and_the_ground_in_every_corner(size: int) -> None:
    captions = draw_captions(50, np.random.default_rng(0))
    images = render(captions, size, np.random.default_rng(1))
    assert images.shape == (50, size, size, 3)
    assert images.dtype == np.uint8
    grounds = np.array([COLOURS[caption.ground] for caption in captions])
    for corner in (images[:, 0, 0], images[:, 0, -1], images[:, -1, 0], images[:, -1, -1]):
        np.testing.assert_array_equal(corner, grounds)


def test_a_seed_places_figures_the_same_way_and_others_elsewhere() -> None:
    caption = Caption("red", "star", "black")
    first, again, other = (np.asarray(render_one(caption, 64, np.random.default_rng(seed))) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_figures_are_large_whole_and_soft_at_the_edge(shape: str) -> None:
    covered = coverage([shape] * 40, draw_placements(40, np.random.default_rng(2)), 64, 64)
    assert covered.min() == 0
    assert covered.max() == 1
    assert ((covered > 0) & (covered < 1)).any(axis=(1, 2)).all()
    shares = covered.mean(axis=(1, 2))
    assert shares.min() > 0.08
    assert shares.max() < 0.6
    for edge in (covered[:, 0], covered[:, -1], covered[:, :, 0], covered[:, :, -1]):
        assert edge.max() == 0


def test_wide_images_keep_their_figures_proportions() -> None:
    covered = coverage(["circle"] * 5, draw_placements(5, np.random.default_rng(4)), 64, 128) > 0.5
    widths, heights = covered.any(axis=1).sum(axis=1), covered.any(axis=2).sum(axis=1)
    assert np.abs(widths - heights).max() <= 1
