"""Samplers by the names that clients send, made for a pipeline's own noise schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import diffusers
from torch import Tensor

from genmill.errors import InvalidJob
from genmill.inputs import SchedulerName

_NOISE: Mapping[SchedulerName, str] = {
    SchedulerName.DDIM: "DDIMScheduler",
    SchedulerName.DPM: "DPMSolverMultistepScheduler",
    SchedulerName.EULER: "EulerDiscreteScheduler",
    SchedulerName.EULER_A: "EulerAncestralDiscreteScheduler",
    SchedulerName.HEUN: "HeunDiscreteScheduler",
    SchedulerName.PNDM: "PNDMScheduler",
    SchedulerName.UNIPC: "UniPCMultistepScheduler",
}
_FLOW: Mapping[SchedulerName, str] = {
    SchedulerName.EULER: "FlowMatchEulerDiscreteScheduler",
    SchedulerName.HEUN: "FlowMatchHeunDiscreteScheduler",
    SchedulerName.DPM: "DPMSolverMultistepScheduler",
    SchedulerName.UNIPC: "UniPCMultistepScheduler",
}


def make_scheduler(own: Any, name: SchedulerName, *, from_image: bool = False) -> Any:
    """A new scheduler of this name with the noise schedule of `own`.

    Raises InvalidJob where the model's kind of schedule (noise or flow) has none of this name, or none that can
    start from an image."""
    if name is SchedulerName.DEFAULT:
        return type(own).from_config(own.config)
    is_flow = "FlowMatch" in type(own).__name__ or own.config.get("use_flow_sigmas", False)
    class_name = (_FLOW if is_flow else _NOISE).get(name)
    if class_name is None:
        known = ", ".join(_FLOW)
        raise InvalidJob(f"scheduler {name} cannot drive a flow-matching model; it takes {known}")
    cls = getattr(diffusers, class_name)
    if from_image and hasattr(own, "scale_noise") and not hasattr(cls, "scale_noise"):
        raise InvalidJob(f"scheduler {name} cannot start from an image with a flow-matching model")
    if is_flow:
        shift = own.config.get("shift", own.config.get("flow_shift", 1.0))
        if class_name.startswith("FlowMatch"):
            return cls.from_config(own.config, shift=shift)
        return cls.from_config(own.config, use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=shift)
    if "beta_start" not in own.config:  # another kind of schedule altogether, of which these would know nothing
        raise InvalidJob(f"scheduler {name} cannot drive this model, whose own is {type(own).__name__}")
    if name is SchedulerName.PNDM:
        # its Runge-Kutta start needs at least four steps; the models that ship with PNDM skip it too
        return cls.from_config(own.config, skip_prk_steps=True)
    if "clip_sample" in inspect.signature(cls).parameters and "clip_sample" not in own.config:
        # DDIM's default is that of models of pixels; clipped latents lose their colours, and rounding becomes chaos
        return cls.from_config(own.config, clip_sample=False)
    return cls.from_config(own.config)


_LEVELS = "_sigma_to_alpha_sigma_t"


class _Levels:
    """Signal and noise of a noise level on the host, which multistep samplers work out anew half a dozen times a step:
    once for all jobs. Copies of a scheduler share it."""

    MOST = 4096

    def __init__(self, compute: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        self._compute = compute
        self._known: dict[float, tuple[Tensor, Tensor]] = {}

    def __call__(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        if sigma.dim() or sigma.device.type != "cpu":  # to read one from a device would wait for it
            return self._compute(sigma)
        level = sigma.item()
        if level not in self._known:
            if len(self._known) >= self.MOST:
                self._known.clear()
            self._known[level] = self._compute(sigma)
        return self._known[level]

    def __deepcopy__(self, _memo: object) -> _Levels:
        return self


def with_known_levels(scheduler: Any) -> Any:
    """The same scheduler, which looks up what depends on the noise level alone."""
    if hasattr(scheduler, _LEVELS):
        setattr(scheduler, _LEVELS, _Levels(getattr(scheduler, _LEVELS)))
    return scheduler
