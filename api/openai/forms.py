"""How chat and completions write the same text: whole, and in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Protocol

UNFINISHED = "\ufffd"
"""What a token shows that is a part of a character: its bytes are not known here."""

Token = Mapping[str, Any]
"""{token, logprob, top: [{token, logprob}]} of the native result."""


class Form(Protocol):
    """`prefix` of the answer's id; `whole` and `chunk` are the names of both objects."""

    prefix: ClassVar[str]
    whole: ClassVar[str]
    chunk: ClassVar[str]

    def said(self, text: str) -> dict[str, Any]:
        """Of a choice, all of it."""

    def more(self, text: str) -> dict[str, Any]:
        """Of a chunk's choice, what comes next; nothing for the empty text."""

    def begin(self) -> dict[str, Any]:
        """Of the first chunk's choice."""

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """How likely each token was."""


class ChatForm:
    prefix: ClassVar = "chatcmpl"
    whole: ClassVar = "chat.completion"
    chunk: ClassVar = "chat.completion.chunk"

    def said(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def more(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def begin(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": ""}}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        content = [{**_chance(token), "top_logprobs": [_chance(one) for one in token["top"]]} for token in tokens]
        return {"content": content, "refusal": None}


class CompletionForm:
    prefix: ClassVar = "cmpl"
    whole: ClassVar = "text_completion"
    chunk: ClassVar = "text_completion"

    def said(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def more(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def begin(self) -> dict[str, Any]:
        return {"text": ""}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Offsets count the characters of the tokens before."""
        pieces = [token["token"] for token in tokens]
        tops = [{one["token"]: one["logprob"] for one in token["top"]} for token in tokens]
        return {
            "tokens": pieces,
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": tops if any(tops) else None,
            "text_offset": list(accumulate(map(len, pieces), initial=0))[:-1],
        }


CHAT, COMPLETION = ChatForm(), CompletionForm()


def whole_answer(
    form: Form, text: Mapping[str, Any], *, job_id: str, model: str, ended_ms: float, seed: int | None
) -> dict[str, Any]:
    """`text`: of the native result."""
    facts = {"logprobs": logprobs_of(text, form), "finish_reason": text["finish_reason"]}
    return {
        "id": f"{form.prefix}-{job_id}",
        "object": form.whole,
        "created": int(ended_ms / 1000),
        "model": model,
        "choices": [{"index": 0, **form.said(text["text"]), **facts}],
        "usage": usage_of(text),
        "job_id": job_id,
        "seed": seed,
    }


def logprobs_of(text: Mapping[str, Any], form: Form) -> dict[str, Any] | None:
    """Of a native text; None where they were not asked for."""
    return form.logprobs(text["tokens"]) if text.get("tokens") is not None else None


def usage_of(text: Mapping[str, Any]) -> dict[str, int]:
    read, written = int(text["prompt_tokens"]), int(text["completion_tokens"])
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _chance(token: Token) -> dict[str, Any]:
    piece = token["token"]
    known = None if UNFINISHED in piece else list(piece.encode())
    return {"token": piece, "logprob": token["logprob"], "bytes": known}
