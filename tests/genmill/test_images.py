"""Init images are checked before they are decoded."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
import zlib
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from genmill.errors import InvalidImage
from genmill.images import as_png, decode_image, mask_of_alpha, stored_image
from genmill.settings import load_settings
from tests.api.pictures import bomb, picture

SETTINGS = load_settings(max_image_bytes=100_000, max_image_pixels=100 * 100)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_good_images(kind: str) -> None:
    image = decode_image(picture(kind=kind), SETTINGS)
    assert (image.mode, image.size) == ("RGB", (32, 24))
    pixel = image.getpixel((5, 5))
    assert isinstance(pixel, tuple)
    assert pixel[0] > 240


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    buffer = BytesIO()
    Image.new(mode, (8, 8)).save(buffer, "PNG")
    assert decode_image(buffer.getvalue(), SETTINGS).mode == "RGB"


def test_transparency_lies_on_white() -> None:
    buffer = BytesIO()
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(buffer, "PNG")
    assert decode_image(buffer.getvalue(), SETTINGS).getpixel((0, 0)) == (255, 255, 255)


def test_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = BytesIO()
    Image.new("RGB", (20, 10), "red").save(buffer, "JPEG", exif=exif)
    assert decode_image(buffer.getvalue(), SETTINGS).size == (10, 20)


def test_a_bomb_is_refused_by_its_header() -> None:
    body = bomb()
    assert len(body) < SETTINGS.max_image_bytes
    tracemalloc.start()
    with pytest.raises(InvalidImage) as caught:
        decode_image(body, SETTINGS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.limit, fault.value) == ("/input/init_image", "10000 pixels", f"{60_000**2} pixels")


def test_text_that_unpacks_to_much_is_not_unpacked() -> None:
    """A PNG's zTXt chunk: a few kilobytes that promise megabytes."""
    body = picture()
    text = b"Comment\0\0" + zlib.compress(b"x" * 50_000_000, 9)
    at = body.index(b"IDAT") - 4
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    forged = body[:at] + chunk + body[at:]
    assert len(forged) < SETTINGS.max_image_bytes
    tracemalloc.start()
    with pytest.raises(InvalidImage):
        decode_image(forged, SETTINGS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_of_many_frames_one_is_decoded(kind: str) -> None:
    frames = [Image.new("RGB", (100, 100), (number, 0, 0)) for number in range(40)]
    buffer = BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:])
    decode_image(picture((100, 100)), SETTINGS)
    tracemalloc.start()
    assert decode_image(buffer.getvalue(), SETTINGS).size == (100, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 100 * 100 * 3


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_every_format_is_refused_by_its_header(kind: str) -> None:
    body = picture((3000, 3000), kind)
    tracemalloc.start()
    with pytest.raises(InvalidImage, match="3000x3000"):
        decode_image(body, SETTINGS.model_copy(update={"max_image_bytes": len(body)}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_limits_are_inclusive() -> None:
    assert decode_image(picture((100, 100)), SETTINGS).size == (100, 100)
    with pytest.raises(InvalidImage, match="100x101"):
        decode_image(picture((100, 101)), SETTINGS)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_images_cut_anywhere(kind: str) -> None:
    noise = Image.frombytes("RGB", (48, 48), random.Random(1).randbytes(48 * 48 * 3))
    buffer = BytesIO()
    noise.save(buffer, kind)
    body = buffer.getvalue()
    for part in (1, 4, 12, 30, len(body) // 2, int(len(body) * 0.9)):
        with pytest.raises(InvalidImage):
            decode_image(body[:part], SETTINGS)


@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\x00\x01\x00\x00WEBPVP8 "]),
)
def test_any_bytes_give_one_error(body: bytes, start: bytes) -> None:
    with pytest.raises(InvalidImage):
        decode_image(start + body, SETTINGS)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4), st.sampled_from(["PNG", "JPEG", "WEBP"]))
def test_flipped_bytes_decode_or_are_refused(where: int, patch: bytes, kind: str) -> None:
    body = bytearray(picture(kind=kind))
    at = where % len(body)
    body[at : at + len(patch)] = patch
    with contextlib.suppress(InvalidImage):
        assert decode_image(bytes(body), SETTINGS).mode == "RGB"


def test_stored_images_have_no_limit_of_bytes() -> None:
    noise = Image.frombytes("RGB", (200, 200), random.Random(1).randbytes(200 * 200 * 3))
    body = as_png(noise)
    assert len(body) > SETTINGS.max_image_bytes
    assert stored_image(body).tobytes() == noise.tobytes()
    with pytest.raises(InvalidImage, match="broken"):
        stored_image(body[:-100])
    with pytest.raises(InvalidImage, match="broken"):
        stored_image(b"")


def test_png_round_trip() -> None:
    image = decode_image(picture(), SETTINGS)
    assert decode_image(as_png(image), SETTINGS).tobytes() == image.tobytes()


def encoded(image: Image.Image, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


def test_a_mask_by_transparency_is_white_where_it_is_transparent() -> None:
    alphas = (0, 1, 127, 128, 254, 255)
    image = Image.new("RGBA", (len(alphas), 1))
    for x, alpha in enumerate(alphas):
        image.putpixel((x, 0), (200, 100, 0, alpha))
    mask = mask_of_alpha(encoded(image), SETTINGS, "/mask")
    assert (mask.mode, [mask.getpixel((x, 0)) for x in range(6)]) == ("L", [255, 255, 255, 0, 0, 0])


@pytest.mark.parametrize("alpha", [128, 254])
def test_a_veil_is_no_hole(alpha: int) -> None:
    body = encoded(Image.new("RGBA", (2, 2), (0, 0, 0, alpha)))
    with pytest.raises(InvalidImage, match="nothing of the mask is transparent") as caught:
        mask_of_alpha(body, SETTINGS, "/mask")
    fault = caught.value.faults[0]
    assert ("alpha below 128" in str(fault.limit), str(alpha) in str(fault.value)) == (True, True)


@pytest.mark.parametrize("mode", ["LA", "P", "RGB"])
def test_every_kind_of_transparency_counts(mode: str) -> None:
    transparency = {"LA": {}, "P": {"transparency": 0}, "RGB": {"transparency": (0, 0, 0)}}[mode]
    mask = mask_of_alpha(encoded(Image.new(mode, (2, 2)), **transparency), SETTINGS, "/mask")
    assert mask.getextrema() == (255, 255)


@pytest.mark.parametrize(
    "body", [picture(), picture(mode="L", colour="white"), encoded(Image.new("RGBA", (2, 2), "red"))]
)
def test_a_mask_that_is_opaque_everywhere_is_none(body: bytes) -> None:
    with pytest.raises(InvalidImage, match="nothing of the mask is transparent") as caught:
        mask_of_alpha(body, SETTINGS, "/mask")
    assert caught.value.faults[0].pointer == "/mask"


@pytest.mark.parametrize("body", [bomb(), b"no image", picture()[:50]])
def test_a_mask_is_checked_as_any_image(body: bytes) -> None:
    with pytest.raises(InvalidImage) as caught:
        mask_of_alpha(body, SETTINGS, "/mask")
    assert caught.value.faults[0].pointer == "/mask"
