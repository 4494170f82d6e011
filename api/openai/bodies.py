"""Bodies of chat and completions, and what becomes of each of their parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

from api.openai.rules import Rules
from genmill.strict_json import Flag

_HINTS = frozenset({
    "user", "safety_identifier", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "parallel_tool_calls", "prediction", "moderation",
})  # fmt: skip
_NOT_DONE: dict[str, tuple[object, ...]] = {
    "n": (1,), "logit_bias": ({},), "frequency_penalty": (0,), "presence_penalty": (0,),
}  # fmt: skip

CHAT_RULES = Rules(
    ignored=_HINTS | {"reasoning_effort", "verbosity"},
    inert=_NOT_DONE | {
        "tools": ([],), "functions": ([],), "function_call": ("none",),
        "tool_choice": ("none", "auto"), "response_format": ({"type": "text"},), "modalities": (["text"],),
        "audio": (), "web_search_options": (),
    },
)  # fmt: skip
COMPLETION_RULES = Rules(ignored=_HINTS, inert=_NOT_DONE | {"best_of": (1,), "echo": (False,), "suffix": ("",)})

_SILENT = frozenset({"name", "refusal", "annotations"})
"""Members of a message that change nothing."""


class TextPart(BaseModel):
    """Text of a message that comes in parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message; `developer` is another word for `system`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[TextPart, ...]

    @model_validator(mode="after")
    def _only_text(self) -> ChatMessage:
        more = [name for name, value in (self.model_extra or {}).items() if value and name not in _SILENT]
        if more:
            raise ValueError(f"only role and content are read here, got {', '.join(more)[:80]}")
        return self

    def native(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(BaseModel):
    """How a stream is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    include_usage: Flag = Field(default=False, description="Tell usage in a last chunk, which has no choices.")
    include_obfuscation: Flag = Field(default=False, description="Ignored: chunks carry no padding.")


class TextBody(BaseModel):
    """What chat and completions have in common. Without `model` the fleet's first text model answers."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None
    max_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: float | None = None
    stop: str | tuple[str, ...] | None = None
    seed: int | None = None
    stream: Flag | None = Field(default=None, description="Answer with chunks, as the text is written.")
    stream_options: StreamOptions | None = Field(default=None, description="Without `stream` it is not looked at.")

    @property
    def has_usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def native_input(self) -> dict[str, Any]:
        """Fields of the native input; what is not given is the model's to choose."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        given = {
            "max_tokens": self.max_tokens, "temperature": self.temperature, "top_p": self.top_p,
            "stop": None if stop is None else list(stop), "seed": self.seed,
        }  # fmt: skip
        return {name: value for name, value in given.items() if value is not None}

    def names(self) -> dict[str, str]:
        """For `renamed`: fields that have another name here."""
        return {}


class ChatBody(TextBody):
    """Body of `POST /v1/chat/completions`."""

    messages: tuple[ChatMessage, ...] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, description="Newer name of max_tokens.")
    logprobs: Flag | None = None
    top_logprobs: int | None = None

    @model_validator(mode="after")
    def _one_length(self) -> ChatBody:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("give either max_tokens or max_completion_tokens")
        return self

    def native_input(self) -> dict[str, Any]:
        length = {} if self.max_completion_tokens is None else {"max_tokens": self.max_completion_tokens}
        chances = {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs}
        given = {name: value for name, value in chances.items() if value is not None}
        messages = [message.native() for message in self.messages]
        return {**super().native_input(), **length, **given, "messages": messages}

    def names(self) -> dict[str, str]:
        return {} if self.max_completion_tokens is None else {"/input/max_tokens": "/max_completion_tokens"}


class CompletionBody(TextBody):
    """Body of `POST /v1/completions`: one prompt, as a string or a list of one."""

    prompt: str | Annotated[tuple[str, ...], Field(min_length=1, max_length=1)]
    logprobs: Annotated[int, Strict()] | None = Field(default=None, description="So many likely tokens for each.")

    def native_input(self) -> dict[str, Any]:
        chances = {} if self.logprobs is None else {"logprobs": True, "top_logprobs": self.logprobs}
        prompt = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        return {**super().native_input(), **chances, "prompt": prompt}

    def names(self) -> dict[str, str]:
        return {} if self.logprobs is None else {"/input/top_logprobs": "/logprobs"}
