"""Batches over the API: one method for each call, what it answers as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from genmill.errors import FieldFault, InvalidRequest

if TYPE_CHECKING:
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


class BatchCalls:
    """`/v1/batches`. Every call is safe to repeat, and is repeated: the same lines are one batch."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self, lines: Path, priority: str = "p3", expires_in_s: int | None = None, webhook: str | None = None
    ) -> dict[str, Any]:
        """Raises BatchInvalid with numbered faults, and the other errors of the client."""
        options = {"priority": priority, "expires_in_s": expires_in_s}
        return self._client.call(
            "POST", "/v1/batches", params={name: value for name, value in options.items() if value is not None},
            content=FileBytes(lines), headers={"content-type": "application/x-ndjson", **_webhook_header(webhook)},
            timeout=httpx.Timeout(INTAKE_TIMEOUT_S, connect=5),
        )  # fmt: skip

    def resume(self, batch_id: str) -> dict[str, Any]:
        """A batch of the lines that did not succeed in that one; itself while it runs, or if none are left."""
        return self._client.call("POST", "/v1/batches", json={"resume_of": batch_id})

    def read(self, batch_id: str) -> dict[str, Any]:
        return self._client.call("GET", f"/v1/batches/{batch_id}")

    def list_newest(self, limit: int) -> list[dict[str, Any]]:
        """Newest first, over as many pages as `limit` needs."""
        return self._client.pages("/v1/batches", {}, limit)

    def results(self, batch_id: str, after: int, limit: int) -> list[dict[str, Any]]:
        """Up to `limit` results after the one with `seq` `after`, as far as there are some by now."""
        return self._client.lines(f"/v1/batches/{batch_id}/results", params={"after": after, "limit": limit})

    def cancel(self, batch_id: str) -> dict[str, Any]:
        return self._client.call("POST", f"/v1/batches/{batch_id}/cancel")

    def deliveries(self, batch_id: str) -> list[dict[str, Any]]:
        return list(self._client.call("GET", f"/v1/batches/{batch_id}/deliveries")["data"])

    def redeliver(self, batch_id: str, delivery_id: str | None) -> dict[str, Any]:
        return self._client.redeliver(f"/v1/batches/{batch_id}", delivery_id)

    def fetch(self, url: str) -> bytes:
        """What lies under an output's link."""
        return self._client.fetch(url)


def _webhook_header(webhook: str | None) -> dict[str, bytes]:
    """Not in the query, which stands in logs. Raises InvalidRequest where no header can hold it."""
    if webhook is None:
        return {}
    if not webhook.isprintable():
        detail = f"webhook must be a URL, got {webhook[:80]!r}"
        raise InvalidRequest(detail, faults=(FieldFault("/webhook", detail, "a URL", repr(webhook[:80])),))
    return {"genmill-webhook": webhook.encode()}
