"""Sampling with a temperature, a nucleus and a seed for each request of a continuous batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from genmill.inputs import TextInput


class Dice:
    """A request's uniform numbers, addressed by token index: a step that is repeated draws the same number again."""

    def __init__(self, job: TextInput, prompt_tokens: int) -> None:
        self.temperature, self.top_p = job.temperature, job.top_p
        self._prompt_tokens = prompt_tokens
        self._generator = torch.Generator("cpu").manual_seed(job.seed)
        self._drawn: list[float] = []

    def number(self, tokens: int) -> float:
        """The number for the token that follows `tokens` tokens, prompt included."""
        index = tokens - self._prompt_tokens
        while len(self._drawn) <= index:
            self._drawn.append(float(torch.rand((), generator=self._generator, dtype=torch.float64)))
        return self._drawn[index]


class SeededSampler(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """Chooses the next token of each row by that request's own dice and leaves it as the only possible one.

    The library's sampler draws from the thread's generator for the whole batch, so that a text would depend on
    who else is on board. `rows` are the request ids of the last step, in the order of its logits.
    """

    supported_kwargs: ClassVar[dict[str, type]] = {}
    ignored_kwargs: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.dice: dict[str, Dice] = {}
        self.rows: list[str] = []
        self._tokens: list[int] = []

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> Tensor:
        """Notes the rows; the tensor that the library carries along for us stays empty."""
        states = [request.state for request in requests_with_new_token]
        self.rows = [state.request_id for state in states]
        self._tokens = [len(state.initial_tokens) + len(state.generated_tokens) for state in states]
        return torch.zeros(len(states), dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:  # noqa: ARG002  # the library's signature
        dice = [self.dice[request_id] for request_id in self.rows]
        numbers = [one.number(tokens) for one, tokens in zip(dice, self._tokens, strict=True)]
        chosen = choose(scores, [one.temperature for one in dice], [one.top_p for one in dice], numbers)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)


def choose(logits: Tensor, temperatures: Sequence[float], top_ps: Sequence[float], numbers: Sequence[float]) -> Tensor:
    """A token for each row [B, V]: the greatest at temperature 0, else by the inverse of the distribution function
    at the row's number, over the vocabulary's order and not by rank: rounding may swap the ranks of near ties."""
    heat, edge, dice = torch.tensor([temperatures, top_ps, numbers], dtype=torch.float64).to(logits.device)[..., None]
    chances = torch.softmax(logits.double() / heat.clamp_min(1e-6), dim=-1)
    chances = _nucleus(chances, edge)
    reached = chances.cumsum(dim=-1)
    sampled = (
        torch.searchsorted(reached, dice * reached[:, -1:], right=True).squeeze(1).clamp_max(logits.shape[-1] - 1)
    )
    return torch.where(heat.squeeze(1) > 0, sampled, logits.argmax(dim=-1))


def _nucleus(chances: Tensor, top_p: Tensor) -> Tensor:
    """Chances outside the smallest set of tokens that together reach top_p become 0."""
    if bool((top_p >= 1).all()):
        return chances
    ranked, order = chances.sort(dim=-1, descending=True, stable=True)
    is_out = (ranked.cumsum(dim=-1) - ranked >= top_p).logical_and(top_p < 1)
    return chances.masked_fill(torch.zeros_like(is_out).scatter_(1, order, is_out), 0.0)
