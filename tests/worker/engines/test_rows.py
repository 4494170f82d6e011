"""Joining and splitting of calls."""

from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKLOutput
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from transformers.modeling_outputs import BaseModelOutputWithPooling

from worker.engines.rows import Digests, RowPlan, take

UNET = RowPlan.of("UNet2DConditionModel", "__call__", ("sample", "timestep", "encoder_hidden_states"))
FLUX = RowPlan.of("FluxTransformer2DModel", "__call__", ("hidden_states",))


def signature(plan: RowPlan, **arguments: Any) -> Any:
    return plan.signature(arguments, plan.rows(arguments), Digests())


def test_timesteps_of_any_kind_become_one_float_per_row() -> None:
    sample = torch.ones(2, 4, 8, 8)
    calls = [{"sample": sample, "timestep": step} for step in (torch.tensor(981), 3, torch.tensor(0.5))]
    assert len({signature(UNET, **call) for call in calls}) == 1
    joined = UNET.join(calls, [2, 2, 2])
    assert joined["sample"].shape == (6, 4, 8, 8)
    assert joined["timestep"].tolist() == [981, 981, 3, 3, 0.5, 0.5]
    assert joined["timestep"].dtype is torch.float32


def test_a_call_alone_passes_as_it_is() -> None:
    call = {"sample": torch.ones(2, 4, 8, 8), "timestep": torch.tensor(981)}
    assert UNET.join([call], [2]) is call


def test_nested_conditions_are_rows() -> None:
    calls = [
        {
            "sample": torch.ones(1, 4),
            "added_cond_kwargs": {"time_ids": torch.full((1, 6), float(index))},
            "down_block_additional_residuals": (torch.full((1, 2), float(index)),),
            "mid_block_additional_residual": None,
        }
        for index in range(2)
    ]
    joined = UNET.join(calls, [1, 1])
    assert joined["added_cond_kwargs"]["time_ids"][:, 0].tolist() == [0, 1]
    assert joined["down_block_additional_residuals"][0][:, 0].tolist() == [0, 1]
    assert joined["mid_block_additional_residual"] is None


def test_shared_tensors_must_be_equal_and_are_not_joined() -> None:
    ids, same, other = torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3)
    hidden = torch.ones(2, 5, 4)  # as many rows as img_ids has entries
    assert signature(FLUX, hidden_states=hidden, img_ids=ids) == signature(FLUX, hidden_states=hidden, img_ids=same)
    assert signature(FLUX, hidden_states=hidden, img_ids=ids) != signature(FLUX, hidden_states=hidden, img_ids=other)
    calls = [{"hidden_states": hidden, "img_ids": ids}, {"hidden_states": hidden, "img_ids": same}]
    assert FLUX.join(calls, [2, 2])["img_ids"].shape == (2, 3)


def test_shapes_dtypes_and_settings_keep_calls_apart() -> None:
    sample = torch.ones(1, 4, 8, 8)
    base = signature(UNET, sample=sample, return_dict=False)
    assert base != signature(UNET, sample=torch.ones(1, 4, 8, 16), return_dict=False)
    assert base != signature(UNET, sample=sample.half(), return_dict=False)
    assert base != signature(UNET, sample=sample, return_dict=True)
    assert base != signature(UNET, sample=sample, return_dict=False, cross_attention_kwargs={"scale": 0.5})


def test_a_row_argument_with_another_number_of_rows_runs_alone() -> None:
    odd = {"sample": torch.ones(2, 4), "encoder_hidden_states": torch.ones(1, 4)}
    assert signature(UNET, **odd) != signature(UNET, **odd)


def test_an_unknown_class_runs_alone() -> None:
    plan = RowPlan.of("Novelty", "__call__", ("sample",))
    assert plan.rows({"sample": torch.ones(2, 4)}) == 0
    assert signature(plan, sample=torch.ones(2, 4)) != signature(plan, sample=torch.ones(2, 4))


def test_outputs_of_every_class_are_split() -> None:
    tensor = torch.arange(4.0)[:, None]
    assert take((tensor, None), 1, 3)[0].flatten().tolist() == [1, 2]
    text = BaseModelOutputWithPooling(last_hidden_state=tensor, pooler_output=tensor, hidden_states=(tensor,) * 2)
    part = take(text, 2, 3)
    assert isinstance(part, BaseModelOutputWithPooling)
    assert part.hidden_states[1].flatten().tolist() == [2]
    moments = torch.cat([tensor, tensor], dim=1)[:, :, None, None]
    latent = take(AutoencoderKLOutput(latent_dist=DiagonalGaussianDistribution(moments)), 3, 4).latent_dist
    assert latent.mean.flatten().tolist() == [3]
