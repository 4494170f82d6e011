"""The Python client: submit, wait, read the outputs. Every call is safe to repeat, and is repeated."""

from __future__ import annotations

import base64
import json
import mimetypes
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from genmill.answers import ApiError, ApiUnreachable, error_of, pause_or_raise
from genmill.errors import InvalidRequest, OutputExpired
from genmill.events import JobEvent
from genmill.following import follow
from genmill.jobs import JobState

HOLD_S = 30.0
"""How long one long poll is held."""
QUIET_S = 40.0
"""A stream of events says something every 15 seconds."""
__all__ = ["ApiError", "ApiUnreachable", "Client", "ClientSettings", "JobHandle", "error_of"]


class ClientSettings(BaseSettings):
    """`GENMILL_URL` and `GENMILL_API_KEY`, for callers that name neither."""

    model_config = SettingsConfigDict(env_prefix="GENMILL_", frozen=True, extra="ignore")

    url: str = "http://127.0.0.1:8080"
    api_key: SecretStr | None = None


class JobHandle:
    """A job as it was when last read; `data` is the whole view of `GET /v1/jobs/{id}`."""

    def __init__(self, client: Client, data: dict[str, Any]) -> None:
        self._client = client
        self.data = data

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r}, {self.state.value})"

    @property
    def id(self) -> str:
        return str(self.data["id"])

    @property
    def state(self) -> JobState:
        return JobState(self.data["state"])

    @property
    def is_done(self) -> bool:
        return self.state.is_terminal

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Images: url, content_type, width, height, bytes; of videos frames and fps, too. Links expire; `refresh`
        renews them."""
        return list(self.data["outputs"])

    @property
    def text(self) -> str | None:
        return str(self.data["text"]["text"]) if "text" in self.data else None

    @property
    def error(self) -> dict[str, str] | None:
        return dict(self.data["error"]) if self.data["error"] else None

    def refresh(self) -> Self:
        self.data = self._client.call("GET", f"/v1/jobs/{self.id}")
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Return at the job's end, whichever it is. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            left_s = HOLD_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"job {self.id} is still {self.state.value} after {timeout} s")
            started = time.monotonic()
            self.data = self._client.hold(self.id, min(left_s, HOLD_S))
            if not self.is_done and time.monotonic() - started < min(left_s, HOLD_S) / 2:
                time.sleep(min(1.0, left_s))  # the server had no seat to hold this call in
        return self

    def events(self) -> Iterator[JobEvent]:
        """What happens to the job, to its end; goes on by itself after a lost connection. See genmill.following."""
        yield from follow(self._client, self.id)
        self.refresh()

    def cancel(self) -> Self:
        """Ask for the job's cancellation; `data["cancel"]` tells what that did."""
        self.data = self._client.call("POST", f"/v1/jobs/{self.id}/cancel")
        return self

    def download(self) -> list[bytes]:
        """The bytes of every output, in order."""
        try:
            return [self._client.fetch(output["url"]) for output in self.outputs]
        except OutputExpired:
            return [self._client.fetch(output["url"]) for output in self.refresh().outputs]

    def save(self, folder: Path) -> list[Path]:
        """Write every output as `<job id>-<n>.<suffix>`."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, (output, body) in enumerate(zip(self.outputs, self.download(), strict=True)):
            suffix = mimetypes.guess_extension(output.get("content_type", ""), strict=False) or ".bin"
            paths.append(folder / f"{self.id}-{number}{suffix}")
            paths[-1].write_bytes(body)
        return paths


class Client:
    """Thread-safe. Raises the errors of genmill.errors by the problem's code, ApiUnreachable when nobody answers."""

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        given = ClientSettings()
        key = api_key or (given.api_key.get_secret_value() if given.api_key else None)
        self._auth = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(
            base_url=_checked(base_url or given.url), timeout=httpx.Timeout(30, connect=5), transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(  # noqa: PLR0913 - one for each field of the body
        self, model: str, input: Mapping[str, Any], *, priority: str | None = None, webhook: str | None = None,  # noqa: A002 - the API's name
        ttl_s: int | None = None, deadline_s: float | None = None, best_effort: bool = False,
        reproducible: bool = False, stream: bool = False, preview: bool = False,
        metadata: Mapping[str, Any] | None = None, idempotency_key: str | None = None,
    ) -> JobHandle:  # fmt: skip
        """Submit once, however often the call is repeated. The input's images (`init_image`, `mask_image`,
        `image` of `control`) may be paths, URLs or data URIs.

        Seconds: a job waits for `ttl_s` at most and should end within `deadline_s`; one that cannot is refused, one
        that still waits then expires, unless `best_effort`. A `reproducible` job shares no forward with others, and
        gives the same bits each time on the same kind of device. `events()` has a text's tokens as they come with
        `stream`, previews of pictures with `preview`.
        """
        body: dict[str, Any] = {"model": model, "input": _with_images(input)}
        more = {
            "priority": priority, "webhook": webhook, "ttl_s": ttl_s, "deadline_s": deadline_s,
            "best_effort": best_effort or None, "reproducible": reproducible or None,
            "stream": stream or None, "preview": preview or None,
            "metadata": dict(metadata) if metadata else None,
        }  # fmt: skip
        body |= {name: value for name, value in more.items() if value is not None}
        headers = {"idempotency-key": f'"{idempotency_key or uuid.uuid4().hex}"'}
        return JobHandle(self, self.call("POST", "/v1/jobs", json=body, headers=headers))

    def job(self, job_id: str) -> JobHandle:
        return JobHandle(self, self.call("GET", f"/v1/jobs/{job_id}"))

    def jobs(self, *, state: str | None = None, model: str | None = None, limit: int = 20) -> list[JobHandle]:
        """Your jobs, newest first, over as many pages as `limit` needs."""
        found: list[JobHandle] = []
        query = {"state": state, "model": model, "after": None}
        while len(found) < limit:
            params = {name: value for name, value in query.items() if value is not None}
            page = self.call("GET", "/v1/jobs", params={**params, "limit": min(100, limit - len(found))})
            found += [JobHandle(self, data) for data in page["data"]]
            if not page["has_more"]:
                break
            query["after"] = page["after"]
        return found

    def models(self) -> list[dict[str, Any]]:
        return list(self.call("GET", "/v1/models")["data"])

    def status(self) -> dict[str, Any]:
        return self.call("GET", "/v1/status")

    def webhook_secret(self) -> str:
        return str(self.call("GET", "/v1/webhooks/default/secret")["key"])

    def hold(self, job_id: str, wait_s: float) -> dict[str, Any]:
        """The job at its end, or as it is after `wait_s`."""
        timeout = httpx.Timeout(wait_s + 15, connect=5)
        return self.call("GET", f"/v1/jobs/{job_id}", params={"wait": f"{wait_s:.2f}"}, timeout=timeout)

    def open_events(self, job_id: str, last_id: str) -> AbstractContextManager[httpx.Response]:
        """The stream of a job's events behind `last_id`; one try, whatever comes of it."""
        headers = self._auth | ({"last-event-id": last_id} if last_id else {})
        timeout = httpx.Timeout(QUIET_S, connect=5)
        return self._http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers, timeout=timeout)

    def fetch(self, url: str) -> bytes:
        """What lies under a signed link. The API key is not sent along."""
        return self._answer("GET", url, {}).content

    def lines(self, path: str, **options: Any) -> list[dict[str, Any]]:
        """What a GET answers as lines of JSON."""
        answer = self._answer("GET", path, {"headers": self._auth, **options})
        return [json.loads(row) for row in answer.content.splitlines()]

    def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """One call of the API, repeated while that may help; the JSON of its answer."""
        headers = {**self._auth, **options.pop("headers", {})}
        answer: dict[str, Any] = self._answer(method, path, {"headers": headers, **options}).json()
        return answer

    def _answer(self, method: str, url: str, options: dict[str, Any]) -> httpx.Response:
        number = 0
        while True:
            trouble: httpx.Response | httpx.TransportError
            try:
                trouble = self._http.request(method, url, **options)
            except httpx.TransportError as err:
                trouble = err
            if isinstance(trouble, httpx.Response) and trouble.is_success:
                return trouble
            number += 1
            pause_or_raise(trouble, number)


def _checked(url: str) -> str:
    """Raises InvalidRequest at once; httpx would say so after all retries."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"the API's address must be such as http://127.0.0.1:8080, got {url!r}")
    return url.rstrip("/")


def _with_images(given: Mapping[str, Any]) -> dict[str, Any]:
    """Images that are files here go along as data URIs."""
    filled = dict(given)
    for name in ("init_image", "mask_image"):
        if filled.get(name) is not None:
            filled[name] = _sendable(filled[name])
    control = filled.get("control")
    if isinstance(control, Mapping) and control.get("image") is not None:
        filled["control"] = {**control, "image": _sendable(control["image"])}
    return filled


def _sendable(image: Any) -> Any:
    is_reference = isinstance(image, str) and image.startswith(("data:", "http://", "https://", "file:"))
    if is_reference or not isinstance(image, str | Path):
        return image
    path = Path(image)
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
