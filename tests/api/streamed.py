"""A stream that the app answers with, read as it comes."""

from __future__ import annotations

import threading
from typing import Any

from tests.fleet import eventually


class Streamed:
    """Reads an answer's lines in a thread; `close` is a client that goes away."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.text = answer, ""
        assert answer.status_code == 200, answer.text
        assert answer.mimetype == "text/event-stream"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def until(self, words: str) -> None:
        eventually(lambda: words in self.text, every_s=0.005)

    def ended(self) -> str:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.text

    def _read(self) -> None:
        for part in self.answer.iter_encoded():
            self.text += part.decode()
        self.answer.close()
