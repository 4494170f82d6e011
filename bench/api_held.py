"""Many answers that are held open at once: streams of events and long polls, each of a job of its own."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.api_load import HOST, SILENCE_S


@dataclass(slots=True)
class _Peer:
    peer: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    is_closed: bool = False


class Held:
    """Connections with one request each, of which the server has not ended the answers."""

    def __init__(self, peers: list[_Peer]) -> None:
        self._peers = peers

    def count(self, text: bytes, others: int, within_s: float) -> int:
        """How many have heard `text` by the time that `others` have, or that `within_s` are over."""
        deadline = time.monotonic() + within_s
        with selectors.DefaultSelector() as ready:
            for peer in self._peers:
                if not peer.is_closed:
                    ready.register(peer.peer, selectors.EVENT_READ, peer)
            while (found := self._have(text)) < others and (left_s := deadline - time.monotonic()) > 0:
                for key, _ in ready.select(left_s):
                    if not _read(key.data):
                        ready.unregister(key.fileobj)
        return found

    def _have(self, text: bytes) -> int:
        return sum(text in peer.heard for peer in self._peers)


@contextmanager
def held(port: int, requests: Sequence[bytes]) -> Iterator[Held]:
    with ExitStack() as stack:
        peers = [
            _Peer(stack.enter_context(socket.create_connection((HOST, port), timeout=SILENCE_S))) for _ in requests
        ]
        for peer, request in zip(peers, requests, strict=True):
            peer.peer.sendall(request)
        yield Held(peers)


def _read(peer: _Peer) -> bool:
    """Whether more may come."""
    more = peer.peer.recv(65_536)
    peer.heard += more
    peer.is_closed = not more
    return bool(more)
