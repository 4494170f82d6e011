"""Sampling with a temperature, a nucleus and a seed for each request of a continuous batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from genmill.inputs import TextInput


class Chance(NamedTuple):
    """A token's natural logarithm of its probability, and the likeliest tokens with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Dice:
    """A request's uniform numbers, addressed by token index: a step that is repeated draws the same number again.

    `chances` holds of each token that was chosen how likely it was, where that was asked for."""

    def __init__(self, job: TextInput, prompt_tokens: int) -> None:
        self.temperature, self.top_p = job.temperature, job.top_p
        self.top_logprobs = job.top_logprobs if job.logprobs else None
        self.chances: dict[int, Chance] = {}
        self._prompt_tokens = prompt_tokens
        self._generator = torch.Generator("cpu").manual_seed(job.seed)
        self._drawn: list[float] = []

    def number(self, tokens: int) -> float:
        """The number for the token that follows `tokens` tokens, prompt included."""
        index = tokens - self._prompt_tokens
        while len(self._drawn) <= index:
            self._drawn.append(float(torch.rand((), generator=self._generator, dtype=torch.float64)))
        return self._drawn[index]

    def note(self, tokens: int, chance: Chance) -> None:
        self.chances[tokens - self._prompt_tokens] = chance


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
        self._note_chances(scores, chosen, dice)
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen[:, None], 0.0)

    def _note_chances(self, scores: Tensor, chosen: Tensor, dice: Sequence[Dice]) -> None:
        rows = [row for row, one in enumerate(dice) if one.top_logprobs is not None]
        if not rows:
            return
        most = max(dice[row].top_logprobs or 0 for row in rows)
        for row, chance in zip(rows, chances(scores[rows], chosen[rows], most), strict=True):
            top = chance.top[: dice[row].top_logprobs]
            dice[row].note(self._tokens[row], chance._replace(top=top))


def chances(logits: Tensor, chosen: Tensor, most: int) -> list[Chance]:
    """For each row [B, V] how likely the model itself held the chosen token: the log-softmax of its own logits, before
    temperature and nucleus, as OpenAI's API tells it; and the `most` likeliest tokens."""
    known = torch.log_softmax(logits.float(), dim=-1)
    own = known.gather(1, chosen[:, None]).squeeze(1).tolist()
    top = known.topk(min(most, logits.shape[-1]), dim=-1)
    rows = zip(chosen.tolist(), own, top.indices.tolist(), top.values.tolist(), strict=True)
    return [Chance(token, logprob, tuple(zip(ids, values, strict=True))) for token, logprob, ids, values in rows]


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
