"""A webhook receiver for tests: keeps what came, answers as told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Delivery:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """`answers` are used up one by one, then 204."""

    def __init__(self, port: int, answers: list[int]) -> None:
        self.url = f"http://127.0.0.1:{port}/hook"
        self.deliveries: list[Delivery] = []
        self.answers = answers


@contextmanager
def receiving(*answers: int) -> Iterator[Receiver]:
    """Listens on a free port while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.deliveries.append(Delivery(self.path, headers, body))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_address[1], list(answers))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
