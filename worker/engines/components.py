"""What stands for a pipeline's components in the copies that jobs run: doubles, shared by all they serve alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from genmill.errors import ModelUnavailable
from genmill.extras import LoraSet
from genmill.registry import ModelSpec
from worker.engines.adapters import Wardrobe, can_wear
from worker.engines.caps import RowCaps
from worker.engines.memory import MemoryModel
from worker.engines.rendezvous import Hub
from worker.engines.sites import Dress, build_double, build_stand_ins

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

MOST_DRESSED = 64
"""Doubles with adapters that are kept although nobody on board has them; what their forwards taught goes with them."""


class Components:
    """Doubles by adapters and ControlNet. `denoiser` is the site of the model without adapters.

    A set of adapters has doubles of its own only for the components that some of its adapters change: at all others
    its jobs meet everybody else's. Sets that change a component in the same way share that double."""

    def __init__(
        self,
        spec: ModelSpec,
        pipe: DiffusionPipeline,
        hub: Hub,
        controlnets: Mapping[str, nn.Module],
        memory: MemoryModel,
    ) -> None:
        self._spec, self._pipe, self._hub, self._memory = spec, pipe, hub, memory
        self._wardrobe = Wardrobe(spec, pipe) if spec.adapters else None
        self._caps: dict[str, RowCaps] = {}
        self._plain, self.denoiser = build_stand_ins(
            pipe, hub, spec.max_batch, spec.optimizations, memory, partial(self._dress, loras=()), self._caps
        )
        self._dressed: dict[tuple[str, LoraSet], nn.Module] = {}
        self._controlnets = {
            name: build_double(f"controlnet {name}", module, hub, spec.max_batch, memory)[0]
            for name, module in controlnets.items()
        }

    def load_adapter(self, name: str) -> int:
        """Returns the bytes that it takes, 0 where it was there. Raises ModelUnavailable."""
        if self._wardrobe is None:
            raise ModelUnavailable(f"model {self._spec.name} has no adapters")
        return self._wardrobe.load(name)

    def of(self, loras: LoraSet, control: str | None, in_use: Collection[LoraSet]) -> dict[str, nn.Module]:
        """The doubles for a job, by component. `in_use`: the sets of those on board. Raises ModelUnavailable for an
        adapter that was not loaded: layers pass over it, and the image would be another one."""
        missing = [lora.name for lora in loras if self._wardrobe is None or not self._wardrobe.has(lora.name)]
        if missing:
            raise ModelUnavailable(f"adapter {missing[0]} of model {self._spec.name} is not loaded")
        dressed = {name: self._double(name, part, in_use) for name, part in self._parts(loras)}
        controlnet = {} if control is None else {"controlnet": self._controlnets[control]}
        return {**self._plain, **dressed, **controlnet}

    def _parts(self, loras: LoraSet) -> list[tuple[str, LoraSet]]:
        """The components that this set changes, each with those of it that do."""
        if self._wardrobe is None:
            return []
        parts = [(name, self._wardrobe.part_for(name, loras)) for name in self._plain if can_wear(name)]
        return [(name, part) for name, part in parts if part]

    def _double(self, name: str, part: LoraSet, in_use: Collection[LoraSet]) -> nn.Module:
        """Of a component with these adapters active. All doubles' forwards teach the one memory model and the same
        caps: an adapter's layers take little beside those that they change."""
        if (name, part) not in self._dressed:
            if len(self._dressed) >= MOST_DRESSED:
                kept = {part for loras in in_use for part in self._parts(loras)}
                self._dressed = {key: double for key, double in self._dressed.items() if key in kept}
            self._dressed[name, part], _ = build_double(
                name, getattr(self._pipe, name), self._hub, self._spec.max_batch, self._memory,
                self._dress(name, part), self._caps,
            )  # fmt: skip
        return self._dressed[name, part]

    def _dress(self, name: str, loras: LoraSet) -> Dress | None:
        """None where no adapter ever changes the component."""
        return partial(self._wardrobe.wear, name, loras) if self._wardrobe is not None and can_wear(name) else None
