"""Images that tests send: good ones, and those that must be refused."""

from __future__ import annotations

import base64
import struct
import zlib
from io import BytesIO

from PIL import Image


def picture(size: tuple[int, int] = (32, 24), kind: str = "PNG", colour: str = "red", mode: str = "RGB") -> bytes:
    buffer = BytesIO()
    Image.new(mode, size, colour).save(buffer, kind)
    return buffer.getvalue()


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG of a few kilobytes whose header promises billions of pixels."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    row = b"\x00" * (1 + width // 8)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(row * 200)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def data_uri(body: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(body).decode()}"


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
