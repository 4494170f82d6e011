"""Lines of native batches: `{custom_id, model, input, ...}`, with the fields of `POST /v1/jobs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from api.chains import refuse_dependencies
from api.input_images import POINTERS, name_of, read_input_images
from api.services import Services
from api.submission import JobFields, check_preview
from genmill import net, tenants
from genmill.batches import Line, Place
from genmill.errors import FieldFault, InvalidImage, InvalidRequest
from genmill.inputs import ImageInput
from genmill.keys import JobClass
from genmill.registry import invalid_request
from genmill.store.encoding import class_not_allowed
from genmill.store.messages import Barred

CUSTOM_ID = r"^[^\x00-\x1f\x7f]+$"
URLS_KEPT = 1_000

CustomId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=CUSTOM_ID)]


class LineBody(JobFields):
    """One line of `POST /v1/batches`; `priority` is the batch's where it is not given."""

    custom_id: CustomId = Field(description="Names the line in the results; once in a batch, no control characters.")


class NativeLines:
    """The parser of one batch's lines. `job_class`: of lines that name none."""

    def __init__(self, services: Services, tenant: str, job_class: JobClass) -> None:
        self._services, self._job_class = services, job_class
        self._allowed = tenants.allowed_classes(services.redis, tenant)
        self._check_webhook: Callable[[str], None] = lru_cache(URLS_KEPT)(self._check_url)

    def __call__(self, raw: Mapping[str, Any], place: Place) -> Line:
        """Raises InvalidRequest of many kinds, StorageUnavailable."""
        refuse_dependencies(raw)
        try:
            body = LineBody.model_validate({"priority": self._job_class.value, **raw})
        except ValidationError as err:
            raise invalid_request(err, prefix="") from None
        self._check_class(body.priority)
        spec = self._services.registry.get(body.model)
        job_input = spec.parse_input(body.input)
        check_preview(body, spec, job_input)
        if body.webhook is not None:
            self._check_webhook(body.webhook)
        if isinstance(job_input, ImageInput):
            job_input = self._with_stored_images(job_input, place)
        return Line(
            custom_id=body.custom_id, model=spec.name, input=job_input.model_dump(mode="json"),
            job_class=body.priority.value, webhook=body.webhook, ttl_s=body.ttl_s, deadline_s=body.deadline_s,
            is_best_effort=body.best_effort, is_reproducible=body.reproducible, is_streamed=body.stream,
            has_preview=body.preview, metadata=body.metadata,
        )  # fmt: skip

    def _check_class(self, job_class: JobClass) -> None:
        if self._allowed is not None and job_class not in self._allowed:
            barred = class_not_allowed(Barred(job_class.value, tuple(self._allowed)))
            raise InvalidRequest(barred.detail, faults=barred.faults)

    def _check_url(self, url: str) -> None:
        net.check_webhook(url, self._services.settings)

    def _with_stored_images(self, job_input: ImageInput, place: Place) -> ImageInput:
        for role, given in job_input.images().items():
            if given[:8].lower().startswith(("http://", "https://")):
                pointer = POINTERS[role]
                detail = f"{name_of(pointer)} of a line must be a data URI or file:<id>, not a URL"
                raise InvalidImage(detail, faults=(FieldFault(pointer, detail, "data: or file:", given[:60]),))
        places = {}
        for role, png in read_input_images(job_input, place.tenant, self._services).items():
            places[role] = place.input_key(role)
            self._services.storage.put(places[role], png, "image/png")
        return job_input.with_images(places)
