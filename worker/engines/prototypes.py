"""The pipelines of one model by what a job makes its images from, and how they are called for a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn

from genmill.errors import InvalidJob
from genmill.inputs import ImageInput
from genmill.registry import ModelSpec
from worker.engines.base import EngineJob
from worker.engines.pipelines import build_prototypes, call_arguments, check_arguments, kind_of, parameters_of

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


class Prototypes:
    """All that diffusers has for the components of one pipeline. Engines call copies of them."""

    def __init__(
        self,
        spec: ModelSpec,
        pipe: DiffusionPipeline,
        controlnets: Mapping[str, nn.Module] = MappingProxyType({}),
        prepared: Callable[[Any], Any] = lambda one: one,
    ) -> None:
        """`prepared` makes of each what the engine calls copies of. Raises ModelUnavailable where the pipeline does
        not take the arguments that the model's entry names."""
        check_arguments(pipe, spec)
        self._spec = spec
        self._pipes = {key: prepared(one) for key, one in build_prototypes(pipe, controlnets).items()}

    def asked_of(self, job: EngineJob) -> ImageInput:
        """Raises InvalidJob for a job that asks for something else than images."""
        if not isinstance(job.input, ImageInput):
            raise InvalidJob(f"model {self._spec.name} makes images, the job asks for text")
        return job.input

    def of(self, job: EngineJob) -> Any:
        """Not to be called itself. Raises InvalidJob where the model has none for such a job."""
        kind, asked = kind_of(job), self.asked_of(job)
        control = asked.control.name if asked.control else ""
        pipe = self._pipes.get((kind, control))
        if pipe is None:
            raise InvalidJob(f"model {self._spec.name} makes no images {kind}{f' {control}' if control else ''}")
        return pipe

    def arguments(self, job: EngineJob, index: int) -> dict[str, Any]:
        """Of the call for the job's image `index`, see `call_arguments`."""
        return call_arguments(
            parameters_of(self.of(job)), self.asked_of(job), index, job.init_image, self._spec.arguments,
            mask_image=job.mask_image, control_image=job.control_image,
        )  # fmt: skip

    def clear(self) -> None:
        """Let go of the components."""
        self._pipes.clear()
