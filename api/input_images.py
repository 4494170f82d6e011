"""Where an input image comes from: a data URI, a URL that is fetched here, or a file uploaded before."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from PIL import Image

from api import desk, uploads
from api.services import Services
from genmill import net
from genmill.errors import FieldFault, InputUnavailable, InvalidImage, NotFound
from genmill.images import as_png, decode_image
from genmill.inputs import ImageInput

FORMS = "a data URI, an http(s) URL or file:<id>"
POINTERS = {"init": "/input/init_image", "mask": "/input/mask_image", "control": "/input/control/image"}
"""Where each of `ImageInput.images` stands in a request."""

MAX_HEAD_CHARS = 200
"""Of a data URI before its comma."""
MAX_PLAIN_CHARS = 100_000
"""Of what is not base64 but percent-encoded: decoding that takes many times its size."""


def read_input_images(
    job_input: ImageInput, tenant: str, services: Services, but: Collection[str] = ()
) -> dict[str, bytes]:
    """The images that a job gives, by their names in `ImageInput.images`, as PNG bytes of the job's size; a mask in
    shades of grey. None of the pointers in `but`. Raises InvalidImage, UrlNotAllowed.

    Decoded here, so that no worker meets a bomb, and brought to size here as an engine would do it, so that what is
    stored is bounded by the model's limits.
    """
    images = {}
    for role, given in job_input.images().items():
        if POINTERS[role] in but:
            continue
        image = _Given(given, POINTERS[role], tenant, services).decoded().convert("L" if role == "mask" else "RGB")
        size = (job_input.width, job_input.height)
        images[role] = as_png(image if image.size == size else image.resize(size, Image.Resampling.LANCZOS))
    return images


def name_of(pointer: str) -> str:
    """The field as its client would say: `control.image`."""
    return pointer.removeprefix("/input/").replace("/", ".")


@dataclass(frozen=True, slots=True)
class _Given:
    """What stands in a field of a tenant's job in an image's place."""

    text: str
    pointer: str
    tenant: str
    services: Services

    def decoded(self) -> Image.Image:
        return decode_image(self._body(), self.services.settings, self.pointer)

    def _body(self) -> bytes:
        if self.text[:5].lower() == "data:":
            return self._from_data_uri(self.services.settings.max_image_bytes)
        if self.text.startswith("file:"):
            return self._from_file(self.text.removeprefix("file:"))
        own = self.services.links.file_url("").removesuffix("/content")
        if self.text.startswith(own):
            return self._from_file(self.text.removeprefix(own).removesuffix("/content"))
        if self.text[:8].lower().startswith(("http://", "https://")):
            return self._from_url()
        raise self._fault(f"{name_of(self.pointer)} must be {FORMS}", FORMS, self.text[:60])

    def _from_data_uri(self, max_bytes: int) -> bytes:
        head, comma, _ = self.text[:MAX_HEAD_CHARS].partition(",")
        if not comma:
            raise self._fault("the data URI has no comma after its type", "data:<type>;base64,<bytes>", self.text[:60])
        payload, is_base64 = self.text[len(head) + 1 :], head.lower().endswith(";base64")
        if not is_base64 and len(payload) > MAX_PLAIN_CHARS:
            limit, value = f"{MAX_PLAIN_CHARS} characters", f"{len(payload)} characters"
            raise self._fault(f"the data URI has {value} that are not base64, at most {limit} are read", limit, value)
        if len(payload) * 3 // 4 > max_bytes + 3:
            value = f"{len(payload) * 3 // 4} bytes"
            raise self._fault(
                f"the image has {value}, at most {max_bytes} bytes are read", f"{max_bytes} bytes", value
            )
        try:
            if is_base64:
                return base64.b64decode(payload, validate=True)
            return unquote_to_bytes(payload)
        except (binascii.Error, ValueError) as err:
            raise self._fault(f"the data URI is not valid base64: {err}", "base64", self.text[:60]) from None

    def _from_file(self, file_id: str) -> bytes:
        try:
            return uploads.content(file_id, self.tenant, self.services).body
        except NotFound:
            raise self._fault("there is no such file", "a file of POST /v1/files", file_id[:60]) from None

    def _from_url(self) -> bytes:
        settings = self.services.settings
        try:
            with desk.away():  # for seconds
                return net.fetch(self.text, settings, settings.max_image_bytes, self.pointer)
        except InputUnavailable as err:
            raise self._fault(err.detail, f"{settings.max_image_bytes} bytes at a URL that answers 200") from None

    def _fault(self, detail: str, limit: str, value: str | None = None) -> InvalidImage:
        return InvalidImage(detail, faults=(FieldFault(self.pointer, detail, limit, value),))
