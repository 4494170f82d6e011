"""One rule for every parameter of OpenAI's that genmill has no field for.

A hint that changes no result is ignored. What would change the result and is not done here is refused, unless it is
given its inert value. Whatever else the model's input or the native body knows goes there, as `extra_body` sends it;
the rest is refused as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api.submission import JobBody
from genmill.errors import FieldFault, InvalidRequest, UnknownModel
from genmill.registry import MOST_FAULTS, ModelKind, ModelSpec, Registry, summary

JOB_FIELDS = frozenset(JobBody.model_fields) - {"model", "input"}


@dataclass(frozen=True, slots=True)
class Rules:
    """`ignored`: hints. `inert`: by name, the values that ask for nothing; any other is refused."""

    ignored: frozenset[str]
    inert: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    def sort(self, extra: Mapping[str, Any], spec: ModelSpec) -> tuple[dict[str, Any], dict[str, Any]]:
        """(fields of the input, fields of the job) among `extra`. Raises InvalidRequest that names all others."""
        of_input, of_job = {}, {}
        faults: list[FieldFault] = []
        for name, value in extra.items():
            if len(faults) >= MOST_FAULTS:
                break
            if value is None or name in self.ignored:
                continue
            if name in self.inert:
                faults += self._refused(name, value)
            elif name in JOB_FIELDS:
                of_job[name] = value
            elif name in spec.input_class.model_fields and name != "kind":
                of_input[name] = value
            else:
                faults.append(FieldFault(f"/{name}", f"there is no parameter {name[:80]}", None, repr(value)[:80]))
        if faults:
            raise InvalidRequest(summary(tuple(faults)), faults=tuple(faults))
        return of_input, of_job

    def _refused(self, name: str, value: object) -> list[FieldFault]:
        if value in self.inert[name]:
            return []
        fine = " or ".join(repr(one) for one in self.inert[name]) or "nothing"
        detail = f"{name} is not served here: leave it out or give {fine}, got {repr(value)[:80]}"
        return [FieldFault(f"/{name}", detail, fine, repr(value)[:80])]


def model_for(name: str | None, kind: ModelKind, registry: Registry) -> ModelSpec:
    """The model of that name; without one the fleet's first of the kind. Raises UnknownModel."""
    fitting = [spec for spec in registry.models if spec.kind is kind]
    known = ", ".join(spec.name for spec in fitting) or "none"
    if name is None and fitting:
        return fitting[0]
    spec = registry.get(name or "")
    if spec.kind is not kind:
        detail = f"model {spec.name} makes {spec.kind}; models for {kind}: {known}"
        raise UnknownModel(detail, faults=(FieldFault("/model", detail, known, spec.name),))
    return spec


NAMES = {"/input": ""}
"""For `renamed`: fields of the input stand at the top of OpenAI's bodies."""
