"""Which model a name or a version means."""

from __future__ import annotations

from genmill.errors import FieldFault, InvalidRequest, NotFound, UnknownModel
from genmill.predictions import OWNER, version_of
from genmill.registry import ModelSpec, Registry


def model_of(name: str, registry: Registry) -> ModelSpec:
    """The model of `/v1/models/{owner}/{name}`, by name or alias. Raises NotFound.

    Any owner will do, so that an alias is enough to take over what was written for another's model.
    """
    try:
        return registry.get(name)
    except UnknownModel as err:
        raise NotFound(err.detail, faults=err.faults) from None


def check_version(version: str, spec: ModelSpec) -> None:
    """Raises NotFound for what is not the model's version."""
    if version != version_of(spec):
        detail = f"model {spec.name} has no version {version[:80]!r}; there is {version_of(spec)}"
        raise NotFound(detail, faults=(FieldFault("/version", detail, version_of(spec), version[:80]),))


def model_of_version(given: str | None, registry: Registry) -> ModelSpec:
    """The model of `version` in a body: a version's id, `owner/name`, or `owner/name:id`. Raises InvalidRequest."""
    if given is None:
        raise _fault("version is needed", "<id>, <owner>/<name> or <owner>/<name>:<id>", None)
    name, _, version = given.rpartition(":") if ":" in given else (given, "", "")
    if "/" in name:
        spec = registry.get(name.rpartition("/")[2])
        if version and version != version_of(spec):
            raise _fault(f"model {spec.name} has no version {version[:80]!r}", version_of(spec), version[:80])
        return spec
    for spec in registry.models:
        if version_of(spec) == given:
            return spec
    known = ", ".join(f"{OWNER}/{spec.name}:{version_of(spec)}" for spec in registry.models)
    raise _fault(f"there is no version {given[:80]!r}", known, given[:80])


def _fault(detail: str, limit: str, value: str | None) -> InvalidRequest:
    return InvalidRequest(detail, faults=(FieldFault("/version", detail, limit, value),))
