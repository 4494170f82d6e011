"""The models that a fleet serves, read from `models.toml`; knows defaults and limits, never loads weights."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from genmill.errors import FieldFault, InvalidRequest, SettingsInvalid, UnknownModel
from genmill.extras import (
    AdapterSpec,
    ControlnetSpec,
    family_of,
    lora_faults,
    names_in,
    task_faults,
    with_loras,
)
from genmill.fault_words import in_words
from genmill.input_limits import Limits, image_faults, size_faults, text_faults
from genmill.inputs import USUAL_FPS, ImageInput, JobInput, TextInput
from genmill.model_sources import place_sources

BUILTIN_MODELS = Path(__file__).parent / "models" / "models.toml"

ModelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


ImageSize = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")]
"""Pixels, width first: `512x512`."""


class ModelKind(StrEnum):
    IMAGE = "image"
    TEXT = "text"


class Optimization(StrEnum):
    """What makes a model's denoiser faster without another result; see worker/engines/optimizations.py."""

    CHANNELS_LAST = "channels_last"
    FUSED_QKV = "fused_qkv"
    COMPILED = "compiled"
    CUDA_GRAPHS = "cuda_graphs"
    TENSORRT = "tensorrt"


class Batching(StrEnum):
    """How a loaded model's jobs share its forwards; what decides it is told in docs/operating.md."""

    STEP = "step"
    STATIC = "static"
    CONTINUOUS = "continuous"


WEIGHTS_FIXED = frozenset(Optimization) - {Optimization.CHANNELS_LAST}
"""They rewrite the layers that adapters change: those would have no effect, or compile anew with each set."""

OF_JOBS = frozenset(
    {"prompt", "negative_prompt", "width", "height", "num_frames", "frame_rate", "fps", "num_inference_steps",
     "guidance_scale", "generator", "output_type", "image", "strength", "mask_image", "control_image",
     "controlnet_conditioning_scale"}
)  # fmt: skip
"""Arguments of a pipeline call that come from the job, so that a model's entry cannot set them."""


class ModelSpec(BaseModel):
    """One entry of models.toml. `source` is a folder or a hub id; see `load_registry`.

    `max_batch` is the most rows that may be on board at once; `cost_*` estimate GPU-milliseconds and only have to be
    right relative to each other until the engine has measured. `attention`: a backend of diffusers, by its name;
    `arguments` go along with each call of the pipeline. `warmup` are sizes of images that run once when it is loaded.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ModelName
    kind: ModelKind
    source: str
    revision: str = Field(default="1", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    dtype: str = Field(default="auto", pattern=r"^(auto|float32|float16|bfloat16)$")
    aliases: tuple[ModelName, ...] = ()
    description: str = ""
    defaults: Mapping[str, Any] = Field(default_factory=dict)
    limits: Limits = Limits()
    max_batch: int = Field(default=16, ge=1)
    cost_per_step_ms: float = Field(default=10.0, gt=0)
    optimizations: tuple[Optimization, ...] = ()
    attention: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_]{1,32}$")
    arguments: Mapping[str, bool | int | float | str] = Field(default_factory=dict)
    warmup: tuple[ImageSize, ...] = ()
    adapters: Mapping[ModelName, AdapterSpec] = Field(default_factory=dict)
    controlnets: Mapping[ModelName, ControlnetSpec] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _extras_fit(self) -> ModelSpec:
        extras = [name for name in ("adapters", "controlnets") if getattr(self, name)]
        if extras and self.kind is not ModelKind.IMAGE:
            raise ValueError(f"a {self.kind} model has no {' and no '.join(extras)}")
        if self.adapters and (refused := sorted(WEIGHTS_FIXED.intersection(self.optimizations))):
            raise ValueError(f"a model with adapters cannot have the optimization {', '.join(refused)}")
        return self

    @model_validator(mode="after")
    def _warmup_is_allowed(self) -> ModelSpec:
        if self.warmup and self.kind is ModelKind.TEXT:
            raise ValueError("warmup names sizes of images, which a model of texts has not")
        sizes = [map(int, size.split("x")) for size in self.warmup]
        faults = [fault for width, height in sizes for fault in size_faults(width, height, self.limits)]
        if faults:
            raise ValueError(f"warmup: {summary(tuple(faults))}")
        return self

    @field_validator("arguments")
    @classmethod
    def _not_of_jobs(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        if taken := sorted(OF_JOBS.intersection(arguments)):
            raise ValueError(f"these come from the job: {', '.join(taken)}")
        return arguments

    @property
    def batch_key(self) -> str:
        """Jobs with equal keys may share forwards: model, revision, dtype, and the job's adapters; see
        `batch_key_of`."""
        return f"{self.name}@{self.revision}/{self.dtype}"

    def batch_key_of(self, job_input: JobInput) -> str:
        """The model's key, with the job's adapters where it asks for some."""
        return with_loras(self.batch_key, job_input.loras if isinstance(job_input, ImageInput) else ())

    @cached_property
    def input_class(self) -> type[ImageInput | TextInput]:
        return ImageInput if self.kind is ModelKind.IMAGE else TextInput

    def parse_input(self, raw: object) -> JobInput:
        """Apply defaults and limits. Raises InvalidRequest naming every field that is wrong, with limit and value."""
        if not isinstance(raw, Mapping):
            raise InvalidRequest("input must be an object", faults=(FieldFault("/input", "must be an object"),))
        filled = {**self.defaults, **raw, "kind": self.kind.value}
        if "messages" in raw and "prompt" not in raw:
            filled.pop("prompt", None)
        if self.kind is ModelKind.IMAGE and filled.get("num_frames", 1) != 1 and filled.get("fps") is None:
            filled["fps"] = USUAL_FPS
        try:
            parsed = self.input_class.model_validate(filled)
        except ValidationError as err:
            names = [name for name in self.input_class.model_fields if name != "kind"]
            raise invalid_request(err, "/input", names) from None
        if faults := tuple(self._limit_faults(parsed)):
            raise InvalidRequest(summary(faults), faults=faults)
        return parsed

    def cost_ms(self, job_input: JobInput) -> float:
        """Estimated GPU-milliseconds, charged at claim and corrected at settle."""
        if isinstance(job_input, TextInput):
            return self.cost_per_step_ms * job_input.max_tokens
        base = prod(float(self.defaults.get(name, usual)) for name, usual in _USUAL_SIZE.items())
        scale = job_input.width * job_input.height * job_input.num_frames / base
        return self.cost_per_step_ms * job_input.steps * job_input.num_images * scale

    def _limit_faults(self, job_input: JobInput) -> list[FieldFault]:
        if isinstance(job_input, ImageInput):
            faults = image_faults(job_input, self.limits)
            faults += lora_faults(job_input.loras, self.adapters, self.limits.max_loras)
            return faults + task_faults(job_input, self.controlnets)
        return text_faults(job_input, self.limits)


_USUAL_SIZE = {"width": 64, "height": 64, "num_frames": 1}
"""What `cost_per_step_ms` is for, where a model's defaults say nothing else."""


class Registry(BaseModel):
    """All models of a fleet, found by name or alias."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[ModelSpec, ...] = Field(min_length=1)

    @field_validator("models")
    @classmethod
    def _names_differ(cls, models: tuple[ModelSpec, ...]) -> tuple[ModelSpec, ...]:
        names = [name for model in models for name in (model.name, *model.aliases)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"names or aliases used twice: {', '.join(twice)}")
        return models

    @cached_property
    def _by_name(self) -> dict[str, ModelSpec]:
        return {name: model for model in self.models for name in (model.name, *model.aliases)}

    @cached_property
    def _by_batch_key(self) -> dict[str, ModelSpec]:
        return {model.batch_key: model for model in self.models}

    def get(self, name: str) -> ModelSpec:
        """Raises UnknownModel naming the models that there are."""
        if model := self._by_name.get(name):
            return model
        known = ", ".join(model.name for model in self.models)
        detail = f"there is no model {name[:80]!r}; known: {known}"
        raise UnknownModel(detail, faults=(FieldFault("/model", detail, known, name[:80]),))

    def by_batch_key(self, batch_key: str) -> ModelSpec | None:
        """The model of a key, whichever of its adapters it names; None where there is no such model or adapter."""
        spec = self._by_batch_key.get(family_of(batch_key))
        is_known = spec is not None and all(name in spec.adapters for name in names_in(batch_key))
        return spec if is_known else None


MOST_FAULTS = 100
"""Of one refusal: who has more mends these first, and an answer stays smaller than what it answers."""


def load_registry(path: Path = BUILTIN_MODELS) -> Registry:
    """Read models.toml; relative sources are taken from the file's folder, models' also from the shipped file's.

    Without a slash, and in neither, a model's source is no hub id: no worker is to wait for it. Raises SettingsInvalid
    with every fault.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as err:
        raise SettingsInvalid(f"models file {path}: {err}") from err
    faults = tuple(place_sources(document, path.parent, BUILTIN_MODELS.parent))
    try:
        registry = Registry.model_validate(document)
    except ValidationError as err:
        raise _file_invalid(path, field_faults(err, "") + faults) from None
    if faults:
        raise _file_invalid(path, faults)
    return registry


def _file_invalid(path: Path, faults: tuple[FieldFault, ...]) -> SettingsInvalid:
    return SettingsInvalid(f"models file {path}: {summary(faults)}")


def field_faults(err: ValidationError, prefix: str, fields: Collection[str] = ()) -> tuple[FieldFault, ...]:
    """Pydantic's errors, the first MOST_FAULTS, as faults with JSON pointers; values are shortened and never include
    secrets. `fields`: those of the outermost object, to be told to whoever gives another."""
    faults = []
    for item in err.errors(include_url=False)[:MOST_FAULTS]:
        parts = [str(part) for part in item["loc"]]
        pointer = prefix + "".join(f"/{part}" for part in parts)
        told, limit = in_words(item, fields)
        value = None if item["type"] == "missing" or isinstance(item["input"], dict) else repr(item["input"])[:80]
        name = f"{parts[-1]}: " if parts else ""
        shown = "" if value is None or item["type"] == "extra_forbidden" else f", got {value}"
        faults.append(FieldFault(pointer or "/", f"{name}{told}{shown}", limit, value))
    return tuple(faults)


def summary(faults: tuple[FieldFault, ...]) -> str:
    return "; ".join(fault.detail for fault in faults)


def invalid_request(err: ValidationError, prefix: str, fields: Collection[str] = ()) -> InvalidRequest:
    faults = field_faults(err, prefix, fields)
    return InvalidRequest(summary(faults), faults=faults)
