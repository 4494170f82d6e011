"""Samplers by name: what they take over from the model's own, and which are refused."""

from typing import Any

import pytest
from diffusers import (
    DDIMScheduler,
    DDPMWuerstchenScheduler,
    FlowMatchEulerDiscreteScheduler,
    LCMScheduler,
    UniPCMultistepScheduler,
)

from genmill.errors import InvalidJob
from genmill.inputs import SchedulerName
from worker.engines.schedulers import make_scheduler


@pytest.mark.parametrize(
    ("own", "name", "field"),
    [
        (UniPCMultistepScheduler(use_flow_sigmas=True, flow_shift=3.0), SchedulerName.EULER, "shift"),
        (UniPCMultistepScheduler(use_flow_sigmas=True, flow_shift=3.0), SchedulerName.HEUN, "shift"),
        (UniPCMultistepScheduler(use_flow_sigmas=True, flow_shift=3.0), SchedulerName.DPM, "flow_shift"),
        (FlowMatchEulerDiscreteScheduler(shift=3.0), SchedulerName.UNIPC, "flow_shift"),
        (FlowMatchEulerDiscreteScheduler(shift=3.0), SchedulerName.HEUN, "shift"),
    ],
)
def test_a_flow_models_shift_is_kept_under_either_name(own: Any, name: SchedulerName, field: str) -> None:
    assert make_scheduler(own, name).config[field] == 3.0


def test_a_model_whose_scheduler_no_other_can_replace_says_so() -> None:
    own = DDPMWuerstchenScheduler()
    assert type(make_scheduler(own, SchedulerName.DEFAULT)) is DDPMWuerstchenScheduler
    with pytest.raises(InvalidJob, match="scheduler euler cannot drive this model, whose own is DDPMWuerstchen"):
        make_scheduler(own, SchedulerName.EULER)


@pytest.mark.parametrize("own", [DDIMScheduler(), LCMScheduler()])
@pytest.mark.parametrize("name", list(SchedulerName))
def test_schedulers_of_noise_replace_each_other(own: Any, name: SchedulerName) -> None:
    assert make_scheduler(own, name).config.num_train_timesteps == own.config.num_train_timesteps
