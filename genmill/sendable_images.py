"""Images of an input that are files here: they go along with the request."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def with_images(given: Mapping[str, Any]) -> dict[str, Any]:
    """The input with its images that are paths as data URIs. Raises OSError for a file that cannot be read."""
    filled = dict(given)
    for name in ("init_image", "mask_image"):
        if filled.get(name) is not None:
            filled[name] = _sendable(filled[name])
    control = filled.get("control")
    if isinstance(control, Mapping) and control.get("image") is not None:
        filled["control"] = {**control, "image": _sendable(control["image"])}
    return filled


def _sendable(image: Any) -> Any:
    is_reference = isinstance(image, str) and image.startswith(("data:", "http://", "https://", "file:"))
    if is_reference or not isinstance(image, str | Path):
        return image
    path = Path(image)
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
