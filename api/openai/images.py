"""`/v1/images`: generations, and edits of one image."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.auth import authenticate
from api.openai.holding import finished_job
from api.openai.rules import NAMES, Rules, model_for
from api.requests import read_form, read_json
from api.services import services
from genmill.errors import FieldFault, InvalidRequest
from genmill.images import as_png, decode_image, mask_of_alpha
from genmill.jobs import JobRecord
from genmill.registry import ModelKind, invalid_request

RULES = Rules(
    ignored=frozenset({
        "quality", "style", "user", "safety_identifier", "moderation", "input_fidelity", "output_compression",
        "complexity",
    }),
    inert={
        "stream": (False, "false"),
        "partial_images": (0, "0"),
        "background": ("auto", "opaque"),
        "output_format": ("png",),
        "mask": (),
    },
)  # fmt: skip

NAMES_OF_IMAGES = {
    **NAMES, "/input/num_images": "/n", "/input/width": "/size", "/input/height": "/size",
    "/input/init_image": "/image", "/input/mask_image": "/mask",
}  # fmt: skip

MASKED_STRENGTH = 1.0
"""Of an edit with a mask that gives none: what is masked is made anew, whatever was there."""
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")

blueprint = Blueprint("openai_images", __name__)


class ImageBody(BaseModel):
    """Body of `POST /v1/images/generations`; of `/v1/images/edits` as a form, with `image`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt: str = Field(min_length=1)
    model: str | None = Field(default=None, description="Without it the fleet's first image model.")
    n: int | None = Field(default=None, ge=1, description="Images to make.")
    size: str | None = Field(default=None, max_length=20, description="`WxH` in pixels, or auto.")
    response_format: Literal["url", "b64_json"] | None = Field(
        default=None, description="Without it images have both."
    )


@blueprint.post("/v1/images/generations")
def generate_images() -> Response:
    tenant = authenticate()
    return _images(_read(read_json()), {}, tenant)


@blueprint.post("/v1/images/edits")
def edit_image() -> Response:
    tenant = authenticate()
    read_form()
    image = _edited_image()
    given = {"init_image": _data_uri(image)}
    if (mask := _mask_for(image)) is not None:
        given["mask_image"] = _data_uri(mask)
    form: dict[str, Any] = {**request.form.to_dict(), **dict.fromkeys(_other_files(), "a file")}
    if mask is not None:
        form.setdefault("strength", MASKED_STRENGTH)
    return _images(_read(form), given, tenant)


def image_body(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The native body of the same job. Raises InvalidRequest."""
    return _native(_read(raw), {})


def images_answer(
    images: list[dict[str, str]], outputs: Sequence[Mapping[str, Any]], *, job_id: str, ended_ms: float,
    seed: int | None,
) -> dict[str, Any]:  # fmt: skip
    """`images` are what is shown of `outputs`, which are all of one type."""
    kind = outputs[0]["content_type"].removeprefix("image/") if outputs else "png"
    return {
        "created": int(ended_ms / 1000), "data": images, "output_format": kind, "job_id": job_id, "seed": seed,
    }  # fmt: skip


def _images(body: ImageBody, given: Mapping[str, Any], tenant: str) -> Response:
    record = finished_job(_native(body, given), NAMES_OF_IMAGES, tenant)
    return jsonify(_answer(record, body.response_format))


def _native(body: ImageBody, given: Mapping[str, Any]) -> dict[str, Any]:
    spec = model_for(body.model, ModelKind.IMAGE, services().registry)
    of_input, of_job = RULES.sort(body.model_extra or {}, spec)
    wanted = {"prompt": body.prompt, **_size(body.size), **({} if body.n is None else {"num_images": body.n})}
    return {**of_job, "model": spec.name, "input": {**of_input, **wanted, **given}}


def _answer(record: JobRecord, asked: str | None) -> dict[str, Any]:
    """Without a format both forms, because which is the default depends on OpenAI's model."""
    outputs = record.result["outputs"]
    images = [_image(output["key"], asked) for output in outputs]
    return images_answer(
        images, outputs, job_id=record.job_id, ended_ms=record.ended_ms or 0, seed=record.request["input"]["seed"]
    )


def _image(key: str, asked: str | None) -> dict[str, str]:
    image = {}
    if asked != "b64_json":
        image["url"] = services().links.output_url(key)
    if asked != "url":
        image["b64_json"] = base64.b64encode(services().storage.get(key).body).decode()
    return image


def _size(size: str | None) -> dict[str, int]:
    """Width and height; neither for the model's default. Raises InvalidRequest."""
    if size is None or size == "auto":
        return {}
    found = _SIZE.fullmatch(size)
    if found is None:
        raise _fault("/size", f"size must be WxH in pixels or auto, got {size!r}", "WxH", size)
    return {"width": int(found[1]), "height": int(found[2])}


def _edited_image() -> bytes:
    """The one image of the form; what it holds is told from its bytes, later."""
    given = [*request.files.getlist("image"), *request.files.getlist("image[]")]
    if len(given) != 1:
        raise _fault("/image", f"one image is edited at a time, got {len(given)}", "1 file", f"{len(given)} files")
    body: bytes = given[0].read()
    return body


def _mask_for(image: bytes) -> bytes | None:
    """The form's mask as a native one, PNG bytes: transparent there is white here. Raises InvalidRequest."""
    if "mask" in request.form or len(masks := request.files.getlist("mask")) > 1:
        raise _fault(
            "/mask", "mask must be one file, an image that is transparent where it is painted", "1 file", "other"
        )
    if not masks:
        return None
    settings = services().settings
    mask = mask_of_alpha(masks[0].read(), settings, "/mask")
    size = decode_image(image, settings, "/image").size
    if mask.size != size:
        limit, value = f"{size[0]}x{size[1]}", f"{mask.width}x{mask.height}"
        raise _fault("/mask", f"the mask must have the size of the image, {limit}, got {value}", limit, value)
    return as_png(mask)


def _data_uri(body: bytes) -> str:
    return f"data:application/octet-stream;base64,{base64.b64encode(body).decode()}"


def _other_files() -> set[str]:
    return set(request.files) - {"image", "image[]", "mask"}


def _read(raw: Mapping[str, Any]) -> ImageBody:
    try:
        return ImageBody.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None


def _fault(pointer: str, detail: str, limit: str, value: str) -> InvalidRequest:
    return InvalidRequest(detail, faults=(FieldFault(pointer, detail, limit, value),))
