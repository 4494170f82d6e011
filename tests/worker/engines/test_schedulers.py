"""Samplers by name: what they take over from the model's own, and which are refused."""

import copy
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMWuerstchenScheduler,
    FlowMatchEulerDiscreteScheduler,
    LCMScheduler,
    UniPCMultistepScheduler,
)

from genmill.errors import InvalidJob
from genmill.inputs import SchedulerName
from worker.engines.schedulers import make_scheduler, with_known_levels


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


@pytest.mark.parametrize("name", list(SchedulerName))
def test_known_levels_change_no_step_and_are_shared_by_all_jobs(name: SchedulerName) -> None:
    plain, known = make_scheduler(DDIMScheduler(), name), with_known_levels(make_scheduler(DDIMScheduler(), name))
    expected, first, second = _samples(plain), _samples(copy.deepcopy(known)), _samples(copy.deepcopy(known))
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)


def test_a_level_is_worked_out_once() -> None:
    scheduler = make_scheduler(DDIMScheduler(), SchedulerName.UNIPC)
    asked: list[float] = []
    plain = scheduler._sigma_to_alpha_sigma_t

    def counted(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(sigma.item())
        levels: tuple[torch.Tensor, torch.Tensor] = plain(sigma)
        return levels

    scheduler._sigma_to_alpha_sigma_t = counted
    shared = with_known_levels(scheduler)
    for _ in range(3):
        _samples(copy.deepcopy(shared))
    assert len(asked) == len(set(asked)) > 0


def _samples(scheduler: Any) -> torch.Tensor:
    """What twelve steps with a made-up denoiser leave of noise."""
    dice = torch.Generator().manual_seed(3)
    scheduler.set_timesteps(12)
    sample = torch.randn(1, 4, 8, 8, generator=dice) * scheduler.init_noise_sigma
    for step in scheduler.timesteps:
        noise = torch.tanh(scheduler.scale_model_input(sample, step))
        takes_dice = "generator" in scheduler.step.__code__.co_varnames
        more = {"generator": dice} if takes_dice else {}
        sample = scheduler.step(noise, step, sample, **more).prev_sample
    return sample
