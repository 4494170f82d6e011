"""A bucket that is away: the little of the S3 protocol that storing outputs needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCESS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Bucket:
    """`stored` holds its keys. Until it `is_well` every call gets a 503; without `answers` calls wait for them."""

    def __init__(self, port: int) -> None:
        self.stored: set[str] = set()
        self.refused = self.held = 0
        self.is_well = False
        self.answers = threading.Event()
        self.answers.set()
        self.env = {
            **ACCESS, "GENMILL_STORAGE_URL": "s3://outputs", "GENMILL_STORAGE_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }  # fmt: skip


@contextmanager
def standing() -> Iterator[Bucket]:
    """A bucket `outputs` on a free port, refusing all calls until it is told otherwise."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if not bucket.answers.is_set():
                bucket.held += 1
                bucket.answers.wait()
            if not bucket.is_well:
                bucket.refused += 1
                self._answer(503, BUSY)
                return
            bucket.stored.add(self.path.removeprefix("/outputs/"))
            self._answer(200)

        def _answer(self, status: int, body: bytes = b"") -> None:
            with suppress(ConnectionError):  # who was left hanging has gone
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    bucket = Bucket(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        bucket.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
