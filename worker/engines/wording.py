"""Between words and tokens: what a language model's tokenizer makes of prompts, and of what the model has written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genmill.errors import InvalidJob
from genmill.inputs import TextInput
from worker.engines.sampling import Chance


class Wording:
    """Of one model."""

    def __init__(self, model: str, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer

    def prompt(self, asked: TextInput) -> list[int]:
        """The tokens to go on from. Raises InvalidJob where there are none, or nobody knows how chats are written."""
        if asked.messages is None:
            tokens = self._tokenizer(asked.prompt)["input_ids"]
        elif self._tokenizer.chat_template is None:
            raise InvalidJob(f"model {self._model} has no chat template: give it a prompt")
        else:
            messages = [message.model_dump() for message in asked.messages]
            tokens = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        if not tokens:
            raise InvalidJob("the prompt has no tokens")
        return list(tokens)

    def text(self, prompt: list[int], tokens: list[int]) -> str:
        """The continuation. Decoded with its prompt, because a tokenizer may drop the space before a first word."""
        before = self._tokenizer.decode(prompt, skip_special_tokens=True)
        whole = self._tokenizer.decode(prompt + tokens, skip_special_tokens=True)
        if whole.startswith(before):
            return str(whole[len(before) :])
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def told(self, chance: Chance) -> Mapping[str, Any]:
        """As TextOutput has it in `tokens`."""
        top = [{"token": self._piece(token), "logprob": logprob} for token, logprob in chance.top]
        return {"token": self._piece(chance.token), "logprob": chance.logprob, "top": top}

    def _piece(self, token: int) -> str:
        """A token alone; a part of a character shows as U+FFFD."""
        return str(self._tokenizer.decode([token]))


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first stop string, and whether there was one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)
