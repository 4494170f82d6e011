"""A job, as the Python client holds it."""

from __future__ import annotations

import math
import mimetypes
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from genmill.errors import OutputExpired
from genmill.events import JobEvent
from genmill.following import follow
from genmill.jobs import JobState

if TYPE_CHECKING:
    from genmill.client import Client

HOLD_S = 30.0
"""How long one long poll is held."""


class JobHandle:
    """A job as it was when last read; `data` is the whole view of `GET /v1/jobs/{id}`.

    >>> job = client.submit("captions", {"prompt": "a red", "seed": 1})
    >>> job.wait(60).state
    <JobState.SUCCEEDED: 'succeeded'>
    """

    def __init__(self, client: Client, data: dict[str, Any]) -> None:
        self._client = client
        self.data = data

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r}, {self.state.value})"

    @property
    def id(self) -> str:
        """
        >>> client.job(job.id).id == job.id
        True
        """
        return str(self.data["id"])

    @property
    def state(self) -> JobState:
        """
        >>> job.state.value
        'succeeded'
        """
        return JobState(self.data["state"])

    @property
    def is_done(self) -> bool:
        """
        >>> job.is_done
        True
        """
        return self.state.is_terminal

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Images: url, content_type, width, height, bytes; of videos frames and fps, too. Links expire; `refresh`
        renews them.

        >>> [(output["content_type"], output["width"], output["height"]) for output in picture.outputs]
        [('image/png', 64, 64)]
        """
        return list(self.data["outputs"])

    @property
    def text(self) -> str | None:
        """What a text model wrote; None of pictures, and before the end.

        >>> client.submit("captions", {"prompt": "a red circle", "max_tokens": 4}).wait(60).text
        '...'
        """
        return str(self.data["text"]["text"]) if "text" in self.data else None

    def output(self, path: str = "text") -> dict[str, str]:
        """What the job will have made, for the input of another one: its `text`, or an image such as `outputs/0`.

        >>> picture = client.submit("shapes", {"prompt": job.output(), "seed": 7})
        >>> picture.wait(60).data["depends_on"] == [job.id]
        True
        """
        return {"from": f"job:{self.id}", "path": path}

    @property
    def error(self) -> dict[str, str] | None:
        """Code and message of a job that did not succeed.

        >>> job.error is None
        True
        """
        return dict(self.data["error"]) if self.data["error"] else None

    def refresh(self) -> Self:
        """Read the job anew.

        >>> picture.refresh().outputs[0]["url"]
        'http...'
        """
        self.data = self._client.call("GET", f"/v1/jobs/{self.id}")
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Return at the job's end, whichever it is. Raises TimeoutError after `timeout` seconds; where the server is
        away by then, what keeps it away.

        >>> client.submit("captions", {"prompt": "a red"}).wait(60).is_done
        True
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"job {self.id} is still {self.state.value} after {timeout} s")
            started = time.monotonic()
            self.data = self._client.hold(self.id, min(left_s, HOLD_S), deadline)
            if not self.is_done and time.monotonic() - started < min(left_s, HOLD_S) / 2:
                time.sleep(min(1.0, left_s))  # the server had no seat to hold this call in
        return self

    def events(self) -> Iterator[JobEvent]:
        """What happens to the job, to its end; goes on by itself after a lost connection. See genmill.following.

        >>> streamed = client.submit("captions", {"prompt": "a red circle"}, stream=True)
        >>> [event.data["state"] for event in streamed.events() if event.kind == "state"][-1]
        'succeeded'
        """
        yield from follow(self._client, self.id)
        self.refresh()

    def cancel(self) -> Self:
        """Ask for the job's cancellation; `data["cancel"]` tells what that did.

        >>> job.cancel().data["cancel"]
        'too_late'
        """
        self.data = self._client.call("POST", f"/v1/jobs/{self.id}/cancel")
        return self

    def deliveries(self) -> list[dict[str, Any]]:
        """What became of the job's webhooks, the latest first: id, event, state, attempts.

        >>> [(delivery["event"], delivery["state"]) for delivery in told.deliveries()]
        [('succeeded', 'delivered')]
        """
        return list(self._client.call("GET", f"/v1/jobs/{self.id}/deliveries")["data"])

    def redeliver(self, delivery_id: str | None = None) -> dict[str, Any]:
        """Send the job's latest webhook once more, or that of the id, under the same `webhook-id`. Returns the
        delivery; its `redelivery` is `pending` where it was under way anyway. Raises NothingToDeliver where none was
        due.

        >>> told.redeliver()["redelivery"]
        'queued'
        """
        return self._client.redeliver(f"/v1/jobs/{self.id}", delivery_id)

    def download(self) -> list[bytes]:
        """The bytes of every output, in order.

        >>> [body[:8] for body in picture.download()]
        [b'\\x89PNG\\r\\n\\x1a\\n']
        """
        try:
            return [self._client.fetch(output["url"]) for output in self.outputs]
        except OutputExpired:
            return [self._client.fetch(output["url"]) for output in self.refresh().outputs]

    def save(self, folder: str | Path) -> list[Path]:
        """Write every output as `<job id>-<n>.<suffix>`; makes the folder.

        >>> [path.suffix for path in picture.save(folder)]
        ['.png']
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number, (output, body) in enumerate(zip(self.outputs, self.download(), strict=True)):
            suffix = mimetypes.guess_extension(output.get("content_type", ""), strict=False) or ".bin"
            paths.append(folder / f"{self.id}-{number}{suffix}")
            paths[-1].write_bytes(body)
        return paths


def ids_of(jobs: str | JobHandle | Iterable[str | JobHandle]) -> list[str]:
    """The ids of one job or of several."""
    several = [jobs] if isinstance(jobs, str | JobHandle) else jobs
    return [one.id if isinstance(one, JobHandle) else one for one in several]
