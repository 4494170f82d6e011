"""Signed links to outputs and the secrets of webhooks; both derive from the one signing key."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from urllib.parse import quote, urlencode

from genmill.errors import Forbidden, OutputExpired
from genmill.settings import Settings


class Links:
    """Stateless: any process with the same `GENMILL_SECRET_KEY` makes and checks the same links.

    Raises SettingsInvalid at construction when there is no key.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._key = settings.signing_key()
        self._ttl_s = settings.url_ttl_s
        self._clock = clock
        self.base_url = settings.base_url

    def output_url(self, key: str) -> str:
        """A link that serves the stored object for `url_ttl_s` seconds."""
        expires = int(self._clock()) + self._ttl_s
        query = urlencode({"expires": expires, "signature": self._sign(key, str(expires))})
        return f"{self.base_url}/v1/outputs/{quote(key)}?{query}"

    def check(self, key: str, expires: str, signature: str) -> None:
        """Raises Forbidden for a link that was not made here, OutputExpired for one that was and is too old."""
        wanted = self._sign(key, expires)
        if not hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace")):
            raise Forbidden("The signature of this link is not valid")
        if int(expires) < self._clock():
            raise OutputExpired("This link has expired; read the job again for a fresh one")

    def job_url(self, job_id: str) -> str:
        return f"{self.base_url}/v1/jobs/{quote(job_id)}"

    def batch_url(self, batch_id: str) -> str:
        return f"{self.base_url}/v1/batches/{quote(batch_id)}"

    def prediction_url(self, job_id: str) -> str:
        return f"{self.base_url}/v1/predictions/{quote(job_id)}"

    def model_url(self, owner: str, name: str) -> str:
        return f"{self.base_url}/v1/models/{quote(owner)}/{quote(name)}"

    def file_url(self, file_id: str) -> str:
        return f"{self.base_url}/v1/files/{quote(file_id)}/content"

    def webhook_secret(self, tenant: str) -> str:
        """Standard Webhooks secret of the tenant: `whsec_` and 32 bytes in padded standard base64."""
        return "whsec_" + base64.b64encode(self._derive("webhook", tenant)).decode()

    def _sign(self, key: str, expires: str) -> str:
        return base64.urlsafe_b64encode(self._derive("output", f"{expires}\n{key}")).decode().rstrip("=")

    def _derive(self, purpose: str, text: str) -> bytes:
        message = f"genmill/{purpose}\n{text}".encode("utf-8", "replace")
        return hmac.new(self._key, message, hashlib.sha256).digest()
