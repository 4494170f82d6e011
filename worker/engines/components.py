"""What stands for a pipeline's components in the copies that jobs run: doubles, for each set of adapters its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from genmill.errors import ModelUnavailable
from genmill.extras import LoraSet
from genmill.registry import ModelSpec
from worker.engines.adapters import Wardrobe, can_wear
from worker.engines.batches import Site
from worker.engines.memory import MemoryModel
from worker.engines.rendezvous import Hub
from worker.engines.sites import build_double, build_stand_ins

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

MOST_SETS = 64
"""Sets whose doubles are kept although nobody on board has them; what their forwards taught goes with them."""


class Components:
    """Doubles by adapters and ControlNet. `denoiser` is the site of the model without adapters."""

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
        self._plain, self.denoiser = self._dressed(())
        self._sets: dict[LoraSet, dict[str, nn.Module]] = {(): self._plain}
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
        if loras not in self._sets:
            if len(self._sets) >= MOST_SETS:
                self._sets = {one: self._sets[one] for one in {(), *in_use} if one in self._sets}
            worn, _ = self._dressed(loras)
            self._sets[loras] = self._plain | {name: double for name, double in worn.items() if can_wear(name)}
        doubles = self._sets[loras]
        return doubles if control is None else {**doubles, "controlnet": self._controlnets[control]}

    def _dressed(self, loras: LoraSet) -> tuple[dict[str, nn.Module], Site]:
        """The doubles and the denoiser's site. All sets' forwards teach the one memory model: an adapter's layers take
        little beside those that they change."""
        spec, dress = self._spec, None if self._wardrobe is None else partial(self._wardrobe.wear, loras)
        return build_stand_ins(self._pipe, self._hub, spec.max_batch, spec.optimizations, self._memory, dress)
