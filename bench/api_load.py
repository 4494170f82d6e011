"""Load on an HTTP server from one thread: few connections that are kept, each with one request under way at a time.

Python's HTTP clients take as long over a request as the server does. Here a request is bytes that stand ready, and of
an answer only its status and length are read.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
SILENCE_S = 20.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it. `busy`: the share of the time in which the sender itself worked."""

    latencies_ms: list[float]
    wall_s: float
    busy: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies_ms) / self.wall_s

    def percentile_ms(self, percent: int) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


@dataclass(slots=True)
class _Connection:
    """`sent_s` is when its request left."""

    peer: socket.socket
    sent_s: float = 0.0
    heard: bytearray = field(default_factory=bytearray)

    def send(self, request: bytes) -> None:
        self.heard.clear()
        self.sent_s = time.perf_counter()
        self.peer.sendall(request)

    def has_answer(self) -> bool:
        """Reads on; whether the whole answer is there."""
        more = self.peer.recv(65_536)
        assert more, f"the server closed the connection after {bytes(self.heard[:300])!r}"
        self.heard += more
        head = self.heard.find(b"\r\n\r\n")
        if head < 0:
            return False
        length = _LENGTH.search(self.heard, 0, head + 2)
        assert length, f"an answer without its length: {bytes(self.heard[:300])!r}"
        return len(self.heard) >= head + 4 + int(length[1])


def request_bytes(
    method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {HOST}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def load(port: int, request: bytes, status: int, *, connections: int, warm_up_s: float, seconds: float) -> Load:
    """Sends the request again and again; what is sent in the first `warm_up_s` does not count. Raises AssertionError
    for an answer with another status, and when nothing comes for SILENCE_S."""
    wanted, latencies_ms = f"HTTP/1.1 {status} ".encode(), list[float]()
    with selectors.DefaultSelector() as ready, _connected(port, connections) as peers:
        for peer in peers:
            ready.register(peer.peer, selectors.EVENT_READ, peer)
            peer.send(request)
        start_s = time.perf_counter() + warm_up_s
        end_s, busy_s = start_s + seconds, time.process_time()
        while (now_s := time.perf_counter()) < end_s:
            if now_s < start_s:
                busy_s = time.process_time()
            events = ready.select(SILENCE_S)
            assert events, f"no answer within {SILENCE_S:g} s"
            for key, _ in events:
                peer = key.data
                if not peer.has_answer():
                    continue
                assert peer.heard.startswith(wanted), f"wanted {status}, got {bytes(peer.heard[:500])!r}"
                if peer.sent_s >= start_s:
                    latencies_ms.append((time.perf_counter() - peer.sent_s) * 1e3)
                peer.send(request)
        return Load(latencies_ms, seconds, (time.process_time() - busy_s) / seconds)


@contextmanager
def _connected(port: int, count: int) -> Iterator[list[_Connection]]:
    peers = [_Connection(socket.create_connection((HOST, port), timeout=SILENCE_S)) for _ in range(count)]
    for peer in peers:
        peer.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        yield peers
    finally:
        for peer in peers:
            peer.peer.close()
