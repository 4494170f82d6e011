"""The demo's webhook receiver: verifies each callback with the Standard Webhooks library and keeps count."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

MAX_BODY_BYTES = 20_000


class Receiver:
    """Answers 204 to a callback that verifies with its tenant's secret and 400 to any other. Thread safe."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}
        self._changed = threading.Condition()
        self._message_ids: dict[str, set[str]] = {}
        self.refused: list[str] = []
        self.url = ""

    def expect(self, tenant: str, secret: str) -> str:
        """The webhook URL of the tenant."""
        self._secrets[tenant] = secret
        return f"{self.url}/{tenant}"

    def take(self, tenant: str, headers: dict[str, str], body: bytes) -> bool:
        """Whether the callback is genuine; a genuine one is noted under its job."""
        try:
            event: dict[str, Any] = Webhook(self._secrets[tenant]).verify(body, headers)
            job_id, message_id = str(event["data"]["id"]), headers["webhook-id"]
        except (WebhookVerificationError, KeyError, ValueError, TypeError) as err:
            self.refused.append(f"{tenant}: {type(err).__name__}: {err}")
            return False
        with self._changed:
            self._message_ids.setdefault(job_id, set()).add(message_id)
            self._changed.notify_all()
        return True

    def verified(self) -> dict[str, set[str]]:
        """Message ids by job id; a job told under two ids was told twice."""
        with self._changed:
            return {job_id: set(ids) for job_id, ids in self._message_ids.items()}

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Whether so many jobs were told of in time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._message_ids) >= count, timeout_s)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of the loopback interface while the block runs."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = min(int(self.headers.get("content-length") or 0), MAX_BODY_BYTES)
            headers = {name.lower(): value for name, value in self.headers.items()}
            is_genuine = receiver.take(self.path.strip("/"), headers, self.rfile.read(length))
            self.send_response(204 if is_genuine else 400)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """The progress bar has the screen."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, name="receiver", daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
