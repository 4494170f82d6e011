"""What a model's entry offers besides its weights, adapters and ControlNets, and how a batch key tells of adapters.

The adapters of a job are a set: in the order of their names, without those that do nothing. Jobs share forwards only
with jobs of the same set, so it is the last part of their batch key: `sdxl@1/auto+ink=0.8+neon=-0.5`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pydantic import BaseModel, ConfigDict, Field

from genmill.errors import FieldFault
from genmill.inputs import ImageInput, Lora

SEPARATOR = "+"
"""Between the parts of a batch key that name adapters; a model's name, revision and dtype have none."""
LEAST_WEIGHT, MOST_WEIGHT = -2.0, 2.0

LoraSet = tuple[Lora, ...]


class AdapterSpec(BaseModel):
    """LoRA weights of a model. `source` is a file, a folder (both relative to models.toml) or a hub id; `weight_name`
    tells which file of a folder or a hub id."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1)
    weight_name: str | None = None
    revision: str | None = None


class ControlnetSpec(BaseModel):
    """A ControlNet made for the model. `source` is a folder (relative to models.toml) or a hub id."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1)
    revision: str | None = None


def set_of(loras: Iterable[Lora]) -> LoraSet:
    """Their canonical form: equal for jobs that may share forwards."""
    return tuple(sorted((lora for lora in loras if lora.weight), key=lambda lora: lora.name))


def with_loras(batch_key: str, loras: Iterable[Lora]) -> str:
    """The batch key of a model's jobs that ask for these; that of the model where they ask for none."""
    return batch_key + "".join(f"{SEPARATOR}{lora.name}={float(lora.weight)!r}" for lora in set_of(loras))


def family_of(batch_key: str) -> str:
    """The batch key without its adapters: that of the model whose weights they share."""
    return batch_key.partition(SEPARATOR)[0]


def names_in(batch_key: str) -> tuple[str, ...]:
    """Of the adapters that a batch key tells."""
    return tuple(part.partition("=")[0] for part in batch_key.split(SEPARATOR)[1:])


def lora_faults(loras: LoraSet, known: Collection[str], most: int) -> list[FieldFault]:
    """What is wrong with a job's adapters, for a model that has the `known` ones and takes so `most` at once."""
    if loras and not known:
        return [FieldFault("/input/loras", "this model has no adapters", "0 adapters", f"{len(loras)} adapters")]
    faults = []
    if len(loras) > most:
        detail = f"loras must be at most {most}, got {len(loras)}"
        faults.append(FieldFault("/input/loras", detail, f"{most} adapters", f"{len(loras)} adapters"))
    for place, lora in enumerate(loras[: most + 1]):
        faults += _faults_of(lora, f"/input/loras/{place}", known)
        if lora.name in {earlier.name for earlier in loras[:place]}:
            detail = f"adapter {lora.name[:80]!r} is named twice"
            faults.append(FieldFault(f"/input/loras/{place}/name", detail, "each adapter once", lora.name[:80]))
    return faults


def _faults_of(lora: Lora, pointer: str, known: Collection[str]) -> list[FieldFault]:
    faults = []
    if lora.name not in known:
        names = ", ".join(known)
        detail = f"there is no adapter {lora.name[:80]!r}; this model has {names}"
        faults.append(FieldFault(f"{pointer}/name", detail, names, lora.name[:80]))
    if not LEAST_WEIGHT <= lora.weight <= MOST_WEIGHT:
        limit = f"{LEAST_WEIGHT:g}..{MOST_WEIGHT:g}"
        detail = f"weight must be between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}, got {lora.weight}"
        faults.append(FieldFault(f"{pointer}/weight", detail, limit, f"{lora.weight}"))
    return faults


def task_faults(image: ImageInput, controlnets: Collection[str]) -> list[FieldFault]:
    """Of what the image is made from: a mask needs an image, a ControlNet of the model goes with text alone."""
    faults = []
    if image.mask_image is not None and image.init_image is None:
        detail = "mask_image needs an init_image to paint on"
        faults.append(FieldFault("/input/mask_image", detail, "with init_image", "without"))
    if image.control is None:
        return faults
    if image.init_image is not None:
        detail = "control does not go together with init_image"
        faults.append(FieldFault("/input/control", detail, "without init_image", "with"))
    if image.control.name not in controlnets:
        name, known = image.control.name[:80], ", ".join(controlnets) or "none"
        detail = f"there is no ControlNet {name!r}; this model has {known}"
        faults.append(FieldFault("/input/control/name", detail, known, name))
    return faults
