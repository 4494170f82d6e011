"""A webhook receiver for tests: keeps what came, answers as told, or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Delivery:
    """`at` is when it had come, in Unix seconds."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.time)

    @property
    def message_id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """`answers` are used up one by one, then 204. While it is not `awake` it takes calls and answers none; `held`
    counts them."""

    def __init__(self, port: int, answers: list[int]) -> None:
        self.url = f"http://127.0.0.1:{port}/hook"
        self.deliveries: list[Delivery] = []
        self.answers = answers
        self.awake = threading.Event()
        self.held = 0


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # a full backlog would delay a connection by a second


@contextmanager
def receiving(*answers: int, port: int = 0, is_awake: bool = True) -> Iterator[Receiver]:
    """Listens on a free port, or the given one, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if not receiver.awake.is_set():
                receiver.held += 1
                receiver.awake.wait()
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.deliveries.append(Delivery(self.path, headers, body))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = _Server(("127.0.0.1", port), Handler)
    receiver = Receiver(server.server_address[1], list(answers))
    if is_awake:
        receiver.awake.set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.awake.set()
        server.shutdown()
        server.server_close()
        thread.join()
