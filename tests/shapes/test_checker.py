"""The checker against the renderer, with what an autoencoder and a sampler do to images."""

import numpy as np
import pytest
from PIL import Image, ImageFilter

from genmill.shapes.checker import describe, inspect, matches
from genmill.shapes.grammar import Caption, draw_captions, every_caption
from genmill.shapes.render import render, render_one


def worn(pixels: np.ndarray, blur: float, noise: float, rng: np.random.Generator) -> Image.Image:
    """The image after a Gaussian blur and noise of the given standard deviation."""
    soft = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(blur)), float)
    return Image.fromarray(np.clip(soft + rng.normal(0, noise, soft.shape), 0, 255).astype(np.uint8))


@pytest.mark.parametrize(
    ("size", "blur", "noise"), [(64, 0, 0), (64, 0.8, 20), (64, 1.2, 10), (96, 1.5, 20), (48, 0.5, 5)]
)
def test_drawn_captions_are_read_back(size: int, blur: float, noise: float) -> None:
    rng = np.random.default_rng(11)
    captions = draw_captions(800, rng)
    images = render(captions, size, rng)
    right = [matches(worn(image, blur, noise, rng), caption) for image, caption in zip(images, captions, strict=True)]
    assert np.mean(right) >= 0.99


def test_every_caption_is_read_back_clean() -> None:
    captions = list(every_caption())
    images = render(captions, 64, np.random.default_rng(12))
    assert [describe(image) for image in images] == captions


def test_other_captions_do_not_match() -> None:
    image = render_one(Caption("red", "circle", "blue"), 64, np.random.default_rng(13))
    asked = [caption for caption in every_caption() if matches(image, caption)]
    assert asked == [Caption("red", "circle", "blue")]


@pytest.mark.parametrize("seed", range(5))
def test_noise_matches_nothing(seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert not matches(noise, describe(noise))


def test_a_flat_image_matches_nothing() -> None:
    flat = np.full((64, 64, 3), (220, 20, 40), np.uint8)
    finding = inspect(flat)
    assert finding.caption.ground == "red"
    assert finding.overlap == 0
    assert not matches(flat, finding.caption)


def test_a_shapeless_figure_matches_nothing() -> None:
    bars = np.full((64, 64, 3), 250, np.uint8)
    bars[10:14, 8:56] = bars[50:54, 8:56] = (20, 60, 220)
    assert inspect(bars).caption.colour == "blue"
    assert not matches(bars, describe(bars))


def test_wide_and_transparent_pictures_are_read() -> None:
    image = render_one(Caption("green", "square", "black"), 64, np.random.default_rng(14))
    wide = Image.new("RGBA", (128, 64), (10, 10, 10, 255))
    wide.paste(image, (32, 0))
    assert matches(wide, Caption("green", "square", "black"))
