"""Input images: checked by header before a pixel is decoded."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

from genmill.errors import FieldFault, InvalidImage
from genmill.settings import Settings

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}

OPAQUE_FROM = 128
"""The alpha of a mask's pixel from which on it stays. Pipelines cut a mask of greys at the same place: a faint veil
would be taken, and nothing painted."""

# The limit is the setting's, tested below before decoding; Pillow's own would warn at another number.
Image.MAX_IMAGE_PIXELS = None

_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    IndexError,
    KeyError,
    TypeError,
)
"""What Pillow's decoders raise on bytes that are cut or forged."""


def decode_image(body: bytes, settings: Settings, pointer: str = "/input/init_image") -> Image.Image:
    """PNG, JPEG or WebP bytes to an RGB image, upright, first frame. Raises InvalidImage naming limit and value."""
    upright = _upright(body, settings, pointer)
    return _on_white(upright) if upright.has_transparency_data else upright.convert("RGB")


def mask_of_alpha(body: bytes, settings: Settings, pointer: str) -> Image.Image:
    """A mask that tells by transparency what is painted anew: white where more than half transparent, black elsewhere.
    Raises InvalidImage, also where no pixel is so."""
    upright = _upright(body, settings, pointer)
    alpha = upright.convert("RGBA").getchannel("A") if upright.has_transparency_data else None
    least = 255 if alpha is None else next(value for value, count in enumerate(alpha.histogram()) if count)
    if alpha is None or least >= OPAQUE_FROM:
        limit, value = f"pixels of an alpha below {OPAQUE_FROM}", f"an alpha of {least} or more"
        detail = f"nothing of the mask is transparent, so nothing would be painted: it needs {limit}, got {value}"
        raise _fault(pointer, detail, limit, value)
    return alpha.point(lambda value: 255 * (value < OPAQUE_FROM))


def _upright(body: bytes, settings: Settings, pointer: str) -> Image.Image:
    """Decoded, first frame. Raises InvalidImage."""
    header = open_header(body, settings, pointer)
    try:
        header.load()
        return ImageOps.exif_transpose(header)
    except _BROKEN as err:
        raise _fault(pointer, f"the image is cut short or broken: {err}") from None


def open_header(body: bytes, settings: Settings, pointer: str) -> Image.Image:
    """The image not yet decoded, after the checks of type, bytes and pixels."""
    if len(body) > settings.max_image_bytes:
        limit, value = f"{settings.max_image_bytes} bytes", f"{len(body)} bytes"
        raise _fault(pointer, f"the image has {value}, at most {limit} are read", limit, value)
    try:
        header = Image.open(BytesIO(body), formats=tuple(FORMATS))
    except (UnidentifiedImageError, *_BROKEN):
        limit = ", ".join(FORMATS)
        raise _fault(pointer, f"this is not an image of type {limit}", limit, _first_bytes(body)) from None
    pixels = header.width * header.height
    if pixels > settings.max_image_pixels:
        limit, value = f"{settings.max_image_pixels} pixels", f"{pixels} pixels"
        detail = f"the image is {header.width}x{header.height}, {value}; at most {limit} are decoded"
        raise _fault(pointer, detail, limit, value)
    return header


def stored_image(body: bytes) -> Image.Image:
    """An input image that genmill itself checked and stored: RGB. Raises InvalidImage when the storage harmed it."""
    try:
        with Image.open(BytesIO(body), formats=("PNG",)) as image:
            return image.convert("RGB")
    except _BROKEN as err:
        raise InvalidImage(f"The stored input image is broken ({type(err).__name__})") from None


def as_png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _on_white(image: Image.Image) -> Image.Image:
    layer = image.convert("RGBA")
    ground = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(ground, layer).convert("RGB")


def _first_bytes(body: bytes) -> str:
    return f"{len(body)} bytes that start with {body[:8].hex(' ')}"


def _fault(pointer: str, detail: str, limit: str | None = None, value: str | None = None) -> InvalidImage:
    return InvalidImage(detail, faults=(FieldFault(pointer, detail, limit, value),))
