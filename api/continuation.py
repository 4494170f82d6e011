"""A text for clients that can only append: what they have read cannot be taken back."""

from __future__ import annotations

from genmill.errors import TextChanged
from genmill.events import JobEvent


class Continuation:
    """Joins a job's tokens over all its attempts. An attempt that writes the same again, as its seed makes it do, goes
    on where the one before broke off."""

    def __init__(self) -> None:
        self._told = ""
        self._written, self._attempt = "", 0

    def read(self, event: JobEvent) -> str:
        """What comes behind the text told so far; may be empty. Raises TextChanged when nothing can."""
        if event.data["attempt"] != self._attempt:
            self._written, self._attempt = "", event.data["attempt"]
        self._written = self._written[: event.data["offset"]] + event.data["text"]
        more = self._written[len(self._told) :]
        if self._told + more != self._written and not self._told.startswith(self._written):
            raise TextChanged
        self._told += more
        return more

    def check_whole(self, text: str) -> None:
        """Raises TextChanged when the job's text is not what was told."""
        if text != self._told:
            raise TextChanged
