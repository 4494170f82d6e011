"""Where an init image comes from: a data URI, a URL that is fetched here, or a file uploaded before."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from PIL import Image

from api import uploads
from api.services import Services
from genmill import net
from genmill.errors import FieldFault, InputUnavailable, InvalidImage, NotFound
from genmill.images import as_png, decode_image

POINTER = "/input/init_image"
FORMS = "a data URI, an http(s) URL or file:<id>"

_DATA = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)


def read_init_image(given: str, size: tuple[int, int], tenant: str, services: Services) -> bytes:
    """The image as PNG bytes of the job's size. Raises InvalidImage, UrlNotAllowed.

    Decoded here, so that no worker meets a bomb, and brought to size here as an engine would do it, so that what is
    stored is bounded by the model's limits.
    """
    image = decode_image(_body_of(given, tenant, services), services.settings, POINTER)
    return as_png(image if image.size == size else image.resize(size, Image.Resampling.LANCZOS))


def _body_of(given: str, tenant: str, services: Services) -> bytes:
    if given[:5].lower() == "data:":
        return _from_data_uri(given, services.settings.max_image_bytes)
    if given.startswith("file:"):
        return _from_file(given.removeprefix("file:"), tenant, services)
    own = services.links.file_url("").removesuffix("/content")
    if given.startswith(own):
        return _from_file(given.removeprefix(own).removesuffix("/content"), tenant, services)
    if given[:8].lower().startswith(("http://", "https://")):
        return _from_url(given, services)
    raise _fault(f"init_image must be {FORMS}", FORMS, given[:60])


def _from_data_uri(given: str, max_bytes: int) -> bytes:
    head = _DATA.match(given)
    if head is None:
        raise _fault("the data URI has no comma after its type", "data:<type>;base64,<bytes>", given[:60])
    payload = given[head.end() :]
    if len(payload) * 3 // 4 > max_bytes + 3:
        value = f"{len(payload) * 3 // 4} bytes"
        raise _fault(f"the image has {value}, at most {max_bytes} bytes are read", f"{max_bytes} bytes", value)
    try:
        if head[2].lower().endswith(";base64"):
            return base64.b64decode(payload, validate=True)
        return unquote_to_bytes(payload)
    except (binascii.Error, ValueError) as err:
        raise _fault(f"the data URI is not valid base64: {err}", "base64", given[:60]) from None


def _from_file(file_id: str, tenant: str, services: Services) -> bytes:
    try:
        return uploads.content(file_id, tenant, services).body
    except NotFound:
        raise _fault("there is no such file", "a file of POST /v1/files", file_id[:60]) from None


def _from_url(given: str, services: Services) -> bytes:
    try:
        return net.fetch(given, services.settings, services.settings.max_image_bytes)
    except InputUnavailable as err:
        raise _fault(err.detail, f"{services.settings.max_image_bytes} bytes at a URL that answers 200") from None


def _fault(detail: str, limit: str, value: str | None = None) -> InvalidImage:
    return InvalidImage(detail, faults=(FieldFault(POINTER, detail, limit, value),))
