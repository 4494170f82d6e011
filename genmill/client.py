"""The Python client: submit, wait, read the outputs. Every call is safe to repeat, and is repeated."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from genmill.answers import ApiError, ApiUnreachable, OnPause, error_of, pause_or_raise
from genmill.batch_calls import BatchCalls
from genmill.batch_handle import Batches, BatchHandle
from genmill.errors import InvalidRequest
from genmill.job_handle import JobHandle, ids_of
from genmill.mapping import Mapped, map_requests
from genmill.sendable_images import with_images

QUIET_S = 40.0
"""A stream of events says something every 15 seconds."""
PAGE = 100
"""Entries that a list is asked for at once."""
__all__ = [
    "ApiError", "ApiUnreachable", "BatchHandle", "Batches", "Client", "ClientSettings", "JobHandle", "Mapped",
    "error_of",
]  # fmt: skip


class ClientSettings(BaseSettings):
    """`GENMILL_URL` and `GENMILL_API_KEY`, for callers that name neither."""

    model_config = SettingsConfigDict(env_prefix="GENMILL_", frozen=True, extra="ignore")

    url: str = "http://127.0.0.1:8080"
    api_key: SecretStr | None = None


class Client:
    """Thread-safe. Raises the errors of genmill.errors by the problem's code, ApiUnreachable when nobody answers.

    >>> with Client(url, api_key) as client:
    ...     picture = client.submit("shapes", {"prompt": "a red circle on a blue background"}).wait(60).download()[0]
    >>> picture[:4]
    b'\\x89PNG'
    """

    def __init__(
        self, base_url: str | None = None, api_key: str | None = None, *,
        transport: httpx.BaseTransport | None = None, on_pause: OnPause | None = None,
    ) -> None:  # fmt: skip
        """`on_pause` is called before a call waits to be repeated, with the error and the seconds."""
        self._on_pause = on_pause
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
        """Close its connections.

        >>> Client(url, api_key).close()
        """
        self._http.close()

    @property
    def batches(self) -> Batches:
        """Many jobs as the lines of one body or file.

        >>> client.batches.get(batch.id).counts["total"]
        2
        """
        return Batches(BatchCalls(self))

    def submit(  # noqa: PLR0913 - one for each field of the body
        self, model: str, input: Mapping[str, Any], *, priority: str | None = None, webhook: str | None = None,  # noqa: A002 - the API's name
        ttl_s: int | None = None, deadline_s: float | None = None, best_effort: bool = False,
        reproducible: bool = False, stream: bool = False, preview: bool = False,
        metadata: Mapping[str, Any] | None = None, depends_on: str | JobHandle | Iterable[str | JobHandle] = (),
        idempotency_key: str | None = None,
    ) -> JobHandle:  # fmt: skip
        """Submit once, however often the call is repeated. The input's images (`init_image`, `mask_image`,
        `image` of `control`) may be paths, URLs or data URIs; they and its texts may be outputs of other jobs, see
        `JobHandle.output`. For those, and for all that it `depends_on`, the job waits.

        Seconds: a job waits for `ttl_s` at most and should end within `deadline_s`; one that cannot is refused, one
        that still waits then expires, unless `best_effort`. A `reproducible` job shares no forward with others, and
        gives the same bits each time on the same kind of device. `events()` has a text's tokens as they come with
        `stream`, previews of pictures with `preview`. The `webhook` is called once the job has ended.

        >>> job = client.submit("shapes", {"prompt": "a red circle on a blue background", "seed": 7}, priority="p0")
        >>> job.wait(60).outputs[0]["content_type"]
        'image/png'
        """
        body: dict[str, Any] = {"model": model, "input": with_images(input)}
        more = {
            "priority": priority, "webhook": webhook, "ttl_s": ttl_s, "deadline_s": deadline_s,
            "best_effort": best_effort or None, "reproducible": reproducible or None,
            "stream": stream or None, "preview": preview or None,
            "metadata": dict(metadata) if metadata else None, "depends_on": ids_of(depends_on) or None,
        }  # fmt: skip
        body |= {name: value for name, value in more.items() if value is not None}
        headers = {"idempotency-key": f'"{idempotency_key or uuid.uuid4().hex}"'}
        return JobHandle(self, self.call("POST", "/v1/jobs", json=body, headers=headers))

    def map(
        self, requests: Iterable[Mapping[str, Any]], *, concurrency: int = 16, ordered: bool = True,
        timeout: float | None = None, patience_s: float = 300.0,
    ) -> Iterator[Mapped]:  # fmt: skip
        """Submit each request (a mapping of what `submit` takes) and wait for its job, `concurrency` of them at once,
        64 at most. Results come in the requests' order, or with `ordered=False` as jobs end.

        The iterable is read as room comes: at most `concurrency` requests are read whose result is not yielded yet, so
        it may be endless. What fails ends no other and is a result as well: see Mapped. A request is submitted once,
        however often the call is repeated: a quota that is used up (429) and a server that is away (503) are waited
        for, as their Retry-After says, up to `patience_s`. A submitted job is waited for up to `timeout` seconds, also
        while the server is away.

        >>> prompts = ["a red circle", "a blue square"]
        >>> requests = ({"model": "captions", "input": {"prompt": prompt, "max_tokens": 4}} for prompt in prompts)
        >>> [mapped.result().state.value for mapped in client.map(requests, concurrency=2)]
        ['succeeded', 'succeeded']
        """
        return map_requests(
            self, requests, concurrency=concurrency, is_ordered=ordered, timeout_s=timeout, patience_s=patience_s
        )

    def job(self, job_id: str) -> JobHandle:
        """Raises JobNotFound.

        >>> client.job(job.id).state.value
        'succeeded'
        """
        return JobHandle(self, self.call("GET", f"/v1/jobs/{job_id}"))

    def jobs(self, *, state: str | None = None, model: str | None = None, limit: int = 20) -> list[JobHandle]:
        """Your jobs, newest first, over as many pages as `limit` needs.

        >>> {one.data["model"] for one in client.jobs(state="succeeded", model="captions", limit=5)}
        {'captions'}
        """
        query = {name: value for name, value in (("state", state), ("model", model)) if value is not None}
        return [JobHandle(self, data) for data in self.pages("/v1/jobs", query, limit)]

    def pages(self, path: str, query: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
        """The first `limit` entries of a list, over as many pages as they need.

        >>> len(client.pages("/v1/jobs", {"state": "succeeded"}, 2))
        2
        """
        found, after = list[dict[str, Any]](), dict[str, str]()
        while len(found) < limit:
            params = {**query, **after, "limit": min(PAGE, limit - len(found))}
            page = self.call("GET", path, params=params)
            found += page["data"]
            if not page["has_more"]:
                break
            after = {"after": page["after"]}
        return found

    def models(self) -> list[dict[str, Any]]:
        """
        >>> [(model["id"], model["kind"]) for model in client.models()]
        [('shapes', 'image'), ('captions', 'text')]
        """
        return list(self.call("GET", "/v1/models")["data"])

    def status(self) -> dict[str, Any]:
        """Queues and workers of the fleet, now.

        >>> client.status()["is_suspended"]
        False
        """
        return self.call("GET", "/v1/status")

    def webhook_secret(self) -> str:
        """What your receiver verifies signatures with.

        >>> client.webhook_secret()
        'whsec_...'
        """
        return str(self.call("GET", "/v1/webhooks/default/secret")["key"])

    def redeliver(self, path: str, delivery_id: str | None = None) -> dict[str, Any]:
        """Send a webhook of the job or batch at this path once more, once however often the call is repeated.

        >>> client.redeliver(f"/v1/jobs/{told.id}")["event"]
        'succeeded'
        """
        body = {} if delivery_id is None else {"delivery_id": delivery_id}
        headers = {"idempotency-key": f'"{uuid.uuid4().hex}"'}
        return self.call("POST", f"{path}/redeliver", json=body, headers=headers)

    def hold(self, job_id: str, wait_s: float, until: float = math.inf) -> dict[str, Any]:
        """The job at its end, or as it is after `wait_s`; repeated, but not beyond `until` on the monotonic clock.

        >>> client.hold(job.id, 5)["state"]
        'succeeded'
        """
        number = 0
        while True:
            left_s = min(wait_s, max(0.0, until - time.monotonic()))
            options = {"params": {"wait": f"{left_s:.2f}"}, "timeout": httpx.Timeout(left_s + 15, connect=5)}
            answer = self._ask("GET", f"/v1/jobs/{job_id}", {"headers": self._auth, **options})
            if isinstance(answer, httpx.Response) and answer.is_success:
                data: dict[str, Any] = answer.json()
                return data
            number += 1
            pause_or_raise(answer, number, until, self._on_pause)

    def open_events(self, job_id: str, last_id: str) -> AbstractContextManager[httpx.Response]:
        """The stream of a job's events behind `last_id`; one try, whatever comes of it.

        >>> with client.open_events(job.id, "") as stream:
        ...     stream.headers["content-type"]
        'text/event-stream...'
        """
        headers = self._auth | ({"last-event-id": last_id} if last_id else {})
        timeout = httpx.Timeout(QUIET_S, connect=5)
        return self._http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers, timeout=timeout)

    def fetch(self, url: str) -> bytes:
        """What lies under a signed link. The API key is not sent along.

        >>> len(client.fetch(picture.outputs[0]["url"])) == picture.outputs[0]["bytes"]
        True
        """
        return self._answer("GET", url, {}).content

    def lines(self, path: str, **options: Any) -> list[dict[str, Any]]:
        """What a GET answers as lines of JSON.

        >>> [row["seq"] for row in client.lines(f"/v1/batches/{batch.id}/results")]
        [1, 2]
        """
        answer = self._answer("GET", path, {"headers": self._auth, **options})
        return [json.loads(row) for row in answer.content.splitlines()]

    def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """One call of the API, repeated while that may help; the JSON of its answer.

        >>> client.call("GET", "/v1/models/shapes")["id"]
        'shapes'
        """
        headers = {**self._auth, **options.pop("headers", {})}
        answer: dict[str, Any] = self._answer(method, path, {"headers": headers, **options}).json()
        return answer

    def _answer(self, method: str, url: str, options: dict[str, Any]) -> httpx.Response:
        number = 0
        while True:
            answer = self._ask(method, url, options)
            if isinstance(answer, httpx.Response) and answer.is_success:
                return answer
            number += 1
            pause_or_raise(answer, number, on_pause=self._on_pause)

    def _ask(self, method: str, url: str, options: dict[str, Any]) -> httpx.Response | httpx.TransportError:
        """One try."""
        try:
            return self._http.request(method, url, **options)
        except httpx.TransportError as err:
            return err


def _checked(url: str) -> str:
    """Raises InvalidRequest at once; httpx would say so after all retries."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"the API's address must be such as http://127.0.0.1:8080, got {url!r}")
    return url.rstrip("/")
