"""LoRA adapters of a loaded pipeline, by diffusers' own ways: in memory once, active in turn."""

from __future__ import annotations

import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from genmill.errors import ModelUnavailable
from genmill.extras import AdapterSpec, LoraSet
from genmill.registry import ModelSpec
from worker.engines.memory import bytes_of
from worker.engines.pipelines import STEPPING
from worker.engines.shelf import modules_of

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

log = logging.getLogger(__name__)


class Wardrobe:
    """The adapters of one pipeline. At any time one set of them is active in each of its components, none at first."""

    def __init__(self, spec: ModelSpec, pipe: DiffusionPipeline) -> None:
        self._spec, self._pipe = spec, pipe
        self._changed: dict[str, frozenset[str]] = {}  # by adapter, the components
        self._layers: dict[str, list[Any]] = {}  # by component, those that some adapter changes
        self._worn: dict[str, LoraSet] = {}

    def load(self, name: str) -> int:
        """Read an adapter's weights; leaves active what is. Returns the bytes that they take, 0 where they were there.
        Raises ModelUnavailable telling why."""
        if self.has(name):
            return 0
        adapter, before = self._spec.adapters[name], bytes_of(*modules_of(self._pipe))
        if find_spec("peft") is None:
            raise self._unavailable(name, "the package peft is not installed")
        load = getattr(self._pipe, "load_lora_weights", None)
        if load is None:
            raise self._unavailable(name, f"{type(self._pipe).__name__} takes no LoRA")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several adapters are what we want
            warnings.filterwarnings("ignore", "Adapter .* was active which is now deleted")  # one that failed
            try:
                load(_place_of(adapter), adapter_name=name, use_safetensors=True, **_file_of(adapter))
                changed = self._components_of(name)
            except torch.AcceleratorError:
                raise
            except Exception as error:  # the edge to its loaders, which raise what files and hubs make them raise
                self._drop(name)
                raise self._unavailable(name, f"{_missing(adapter)}{_reason(error)}") from error
            finally:
                self._layers = _layers_of(self._pipe)
                for component in self._layers:
                    self._put_on(component, self._worn.get(component, ()))
        self._changed[name] = changed
        log.info("model %s: adapter %s loaded", self._spec.name, name)
        return bytes_of(*modules_of(self._pipe)) - before

    def has(self, name: str) -> bool:
        """Whether it is in memory."""
        return name in self._changed

    def part_for(self, component: str, loras: LoraSet) -> LoraSet:
        """Those of a set that change this component; all that matters to its calls. They are in memory."""
        return tuple(lora for lora in loras if component in self._changed[lora.name])

    def wear(self, component: str, loras: LoraSet) -> None:
        """Have exactly these active, with their weights, in the component."""
        if loras != self._worn.get(component, ()):
            self._put_on(component, loras)
            self._worn[component] = loras

    def _put_on(self, component: str, loras: LoraSet) -> None:
        """What the pipeline's `set_adapters` does to each layer, without its walk over all modules: sets that are on
        board together change places in every turn. A layer passes over adapters that it has not."""
        names = [lora.name for lora in loras]
        for layer in self._layers.get(component, ()):
            layer.set_adapter(names, inference_mode=True)
            for lora in loras:
                layer.set_scale(lora.name, lora.weight)

    def _components_of(self, name: str) -> frozenset[str]:
        """Those that it changes. Raises ValueError for none: diffusers passes over, with a warning, a file in which
        nothing is for this model."""
        changed = frozenset(part for part, names in self._pipe.get_list_adapters().items() if name in names)
        if not changed:
            raise ValueError("its weights fit no layer of this model")
        return changed

    def _drop(self, name: str) -> None:
        """What a load that failed half-way left in some component."""
        if any(name in names for names in self._pipe.get_list_adapters().values()):
            self._pipe.delete_adapters(name)

    def _unavailable(self, name: str, reason: str) -> ModelUnavailable:
        return ModelUnavailable(f"adapter {name} of model {self._spec.name}: {reason}")


def _missing(adapter: AdapterSpec) -> str:
    """Names a file of the worker: for errors with a cause, which no client is told."""
    is_here = Path(adapter.source).exists()
    return "" if is_here else f"there is no file or folder {adapter.source}, and as a hub id: "


def _layers_of(pipe: DiffusionPipeline) -> dict[str, list[Any]]:
    """Of each component, those that an adapter has changed."""
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415 - a second, of models with adapters alone

    return {
        name: [layer for layer in part.modules() if isinstance(layer, BaseTunerLayer)]
        for name, part in pipe.components.items()
        if isinstance(part, nn.Module)
    }


def can_wear(component: str) -> bool:
    """Whether an adapter may change the component of this name, so that its calls depend on the set that is active."""
    return component in STEPPING or component.startswith("text_encoder")


def _reason(error: Exception) -> str:
    """In short. Where an adapter cannot even be begun, diffusers stumbles over it once more (a KeyError) as it tidies
    up: then the error before tells."""
    told = error.__context__ if isinstance(error, KeyError) and error.__context__ else error
    return " ".join(str(told).split())[:500]


def _place_of(adapter: AdapterSpec) -> str:
    path = Path(adapter.source)
    return str(path.parent) if path.is_file() else adapter.source


def _file_of(adapter: AdapterSpec) -> dict[str, Any]:
    path = Path(adapter.source)
    name = path.name if path.is_file() else adapter.weight_name
    given = {"weight_name": name, "revision": None if path.exists() else adapter.revision}
    return {key: value for key, value in given.items() if value is not None}
