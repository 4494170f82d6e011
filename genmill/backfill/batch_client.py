"""Batches over the API, as the Python client has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from genmill.client import Client

READ_BYTES = 1 << 16
INTAKE_TIMEOUT_S = 3600.0
"""How long the server may take for its last look at all lines."""


class FileBytes:
    """The bytes of a file, from its beginning each time they are asked for: a repeated call sends all of it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := file.read(READ_BYTES):
                yield chunk


class BatchClient:
    """`/v1/batches`. Every call is safe to repeat, and is repeated: the same lines are one batch."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, lines: Path, priority: str = "p3", expires_in_s: int | None = None) -> dict[str, Any]:
        """Raises BatchInvalid with numbered faults, and the other errors of the client."""
        query = {"priority": priority} | ({"expires_in_s": expires_in_s} if expires_in_s else {})
        return self._client.call(
            "POST", "/v1/batches", params=query, content=FileBytes(lines),
            headers={"content-type": "application/x-ndjson"}, timeout=httpx.Timeout(INTAKE_TIMEOUT_S, connect=5),
        )  # fmt: skip

    def resume(self, batch_id: str) -> dict[str, Any]:
        """A batch of the lines that did not succeed in that one; itself while it runs, or if none are left."""
        return self._client.call("POST", "/v1/batches", json={"resume_of": batch_id})

    def read(self, batch_id: str) -> dict[str, Any]:
        return self._client.call("GET", f"/v1/batches/{batch_id}")

    def results(self, batch_id: str, after: int, limit: int) -> list[dict[str, Any]]:
        """Up to `limit` results after the one with `seq` `after`, as far as there are some by now."""
        return self._client.lines(f"/v1/batches/{batch_id}/results", params={"after": after, "limit": limit})

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._client.call("POST", f"/v1/batches/{batch_id}/cancel")

    def fetch(self, url: str) -> bytes:
        """What lies under an output's link."""
        return self._client.fetch(url)
