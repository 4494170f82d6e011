"""HTTP to addresses that tenants name: resolved once, checked, and connected to as checked.

The guard against requests into our own network (SSRF): every address that the host resolves to must be global,
the connection goes to a checked address, redirects are not followed, bodies are bounded, receivers' bodies are
never read, and a call is over by its deadline, however slowly the other side drips. `allow_private_urls` lifts the
address and port rules, for tests and closed networks.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

import httpcore
import httpx

from genmill.errors import DeliveryFailed, FieldFault, InputUnavailable, InvalidRequest
from genmill.settings import Settings

PORTS = frozenset({80, 443, 8080, 8443})
MAX_URL_CHARS = 2048
CONNECT_S = 5.0

_WEBHOOK = "/webhook"
"""The field that names the receiver."""

_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All that is routed; outside lie site-local, IPv4-compatible, local NAT64 and segment routing addresses."""
_DOCUMENTATION = IPv6Network("3fff::/20")
_RELAYS = IPv4Network("192.88.99.0/24")
_ISATAP = 0x00005EFE
_MOST_ADDRESSES = 2
_WIRE_ERRORS = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError)


@dataclass(frozen=True, slots=True)
class PostReply:
    """What a receiver answered; its body is not read. `retry_after_s` from Retry-After, in seconds from now."""

    status: int
    retry_after_s: float | None


class UrlNotAllowed(InvalidRequest):
    """This URL may not be called."""

    code = "url_not_allowed"


def check_webhook(url: str, settings: Settings) -> None:
    """Submit-time check. Raises UrlNotAllowed naming the rule. A resolver that does not answer is no fault of the
    request: the call itself checks again."""
    parsed = _checked_shape(url, settings, _WEBHOOK, is_http_fine=False)
    try:
        _addresses(parsed, settings, _WEBHOOK)
    except _Unresolved as err:
        if err.is_final:
            detail = f"the host {parsed.host!r} does not resolve"
            raise _fault(_WEBHOOK, detail, "a host that resolves", parsed.host) from None


def fetch(
    url: str, settings: Settings, max_bytes: int, pointer: str = "/input/init_image", *, timeout_s: float = 15.0
) -> bytes:
    """The body of a 200. `pointer`: the field that gives the URL. Raises UrlNotAllowed, or InputUnavailable for
    everything that went wrong on the way."""
    parsed = _checked_shape(url, settings, pointer, is_http_fine=True)
    try:
        with _answer("GET", parsed, settings, pointer, timeout_s) as response:
            if response.status != 200:
                raise InputUnavailable(f"{_shown(parsed)} answered {response.status}, wanted 200")
            return _bounded_body(response, max_bytes)
    except _Unresolved:
        raise InputUnavailable(f"the host {parsed.host!r} does not resolve") from None
    except _WIRE_ERRORS as err:
        raise InputUnavailable(f"{_shown(parsed)} could not be read: {type(err).__name__}") from None


def post(url: str, body: bytes, headers: Mapping[str, str], settings: Settings) -> PostReply:
    """Send these bytes once. Any answer is a PostReply, also 3xx to 5xx; no answer raises DeliveryFailed, an
    address that is not allowed UrlNotAllowed."""
    parsed = _checked_shape(url, settings, _WEBHOOK, is_http_fine=False)
    try:
        with _answer("POST", parsed, settings, _WEBHOOK, settings.callback_timeout_s, body, headers) as response:
            return PostReply(response.status, _retry_after_s(dict(_lower(response.headers)).get("retry-after")))
    except _Unresolved:
        raise DeliveryFailed(f"the host {parsed.host!r} does not resolve") from None
    except _WIRE_ERRORS as err:
        raise DeliveryFailed(f"no answer from {_shown(parsed)}: {type(err).__name__}") from None


class _Unresolved(Exception):
    def __init__(self, *, is_final: bool) -> None:
        self.is_final = is_final
        super().__init__()


def _checked_shape(url: str, settings: Settings, pointer: str, *, is_http_fine: bool) -> httpx.URL:
    """Everything that can be told from the text of the URL alone."""
    if len(url) > MAX_URL_CHARS:
        value = f"{len(url)} characters"
        raise _fault(pointer, f"the URL has {value}", f"{MAX_URL_CHARS} characters", value)
    try:
        parsed = httpx.URL(url)
        _ = parsed.host  # decoded as it is read: what says that it is IDNA need not be
    except (httpx.InvalidURL, ValueError):
        raise _fault(pointer, "this is not a URL", "a URL", url[:80]) from None
    is_http_fine = is_http_fine or settings.allow_http_webhooks or settings.allow_private_urls
    schemes = ("https", "http") if is_http_fine else ("https",)
    if parsed.scheme not in schemes or not parsed.host:
        limit, value = ", ".join(schemes), (_shown(parsed) if parsed.userinfo else url)[:80]
        hint = "" if is_http_fine else "; GENMILL_ALLOW_HTTP_WEBHOOKS=on allows http"
        raise _fault(pointer, f"the URL must start with {' or '.join(schemes)}{hint}", limit, value)
    if parsed.userinfo:
        raise _fault(pointer, "the URL must not carry a user name or password", "no user info", _shown(parsed))
    port = _port(parsed)
    if not 0 < port < 65536:
        raise _fault(pointer, f"there is no port {port}", "1..65535", f"{port}")
    if port not in PORTS and not settings.allow_private_urls:
        allowed = ", ".join(str(known) for known in sorted(PORTS))
        raise _fault(pointer, f"port {port} may not be called; allowed: {allowed}", allowed, f"{port}")
    return parsed


def _addresses(parsed: httpx.URL, settings: Settings, pointer: str) -> list[str]:
    """Every address of the host, all of them checked. Raises UrlNotAllowed, _Unresolved."""
    try:
        found = socket.getaddrinfo(parsed.raw_host.decode("ascii"), _port(parsed), type=socket.SOCK_STREAM)
    except socket.gaierror as err:
        raise _Unresolved(is_final=err.errno != socket.EAI_AGAIN) from None
    except (UnicodeError, OSError):
        raise _Unresolved(is_final=True) from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not settings.allow_private_urls and not all(is_global(address) for address in addresses):
        detail = f"{parsed.host!r} does not lie on the public internet; GENMILL_ALLOW_PRIVATE_URLS=on allows others"
        raise _fault(pointer, detail, "a global address", parsed.host)
    return addresses


def is_global(address: str) -> bool:
    """Whether an address, and the IPv4 address inside it if there is one, is reachable from everywhere."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv4Address):
        return _is_public(ip)
    if ip.ipv4_mapped is not None:
        return _is_public(ip.ipv4_mapped)
    if ip in _NAT64:
        return _is_public(_low_half(ip))
    is_unicast = ip in _GLOBAL_UNICAST and ip not in _DOCUMENTATION and ip.is_global
    return is_unicast and all(_is_public(one) for one in _embedded(ip))


def _is_public(ip: IPv4Address) -> bool:
    return ip.is_global and not ip.is_multicast and ip not in _RELAYS


def _embedded(ip: IPv6Address) -> list[IPv4Address]:
    """IPv4 addresses to which a tunnel would take a packet to this one: 6to4, Teredo, ISATAP."""
    inner = [ip.sixtofour, *(ip.teredo or ())]
    if int(ip) >> 32 & 0xFDFFFFFF == _ISATAP:
        inner.append(_low_half(ip))
    return [one for one in inner if one is not None]


def _low_half(ip: IPv6Address) -> IPv4Address:
    return IPv4Address(int(ip) & 0xFFFFFFFF)


class _Wire(httpcore.NetworkBackend):
    """Connects to the given addresses whatever the URL's host is; every wait ends at one deadline."""

    def __init__(self, addresses: list[str], deadline: float) -> None:
        self._addresses, self._deadline = addresses, deadline
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:  # fmt: skip
        for address in self._addresses:
            left_s = min(CONNECT_S, _left_s(self._deadline, timeout, httpcore.ConnectTimeout))
            try:
                stream = self._sockets.connect_tcp(address, port, left_s, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if address == self._addresses[-1]:
                    raise
            else:
                return _Stream(stream, self._deadline)
        raise httpcore.ConnectError(f"no address for {host}")


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left_s(self._deadline, timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left_s(self._deadline, timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = _left_s(self._deadline, timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left_s(deadline: float, timeout_s: float | None, too_late: type[httpcore.TimeoutException]) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise too_late
    return left_s if timeout_s is None else min(left_s, timeout_s)


@contextmanager
def _answer(
    method: str, parsed: httpx.URL, settings: Settings, pointer: str, timeout_s: float, body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[httpcore.Response]:  # fmt: skip
    """One request over a connection of its own, TLS by the URL's host; the response is not yet read."""
    deadline = time.monotonic() + timeout_s
    wire = _Wire(_addresses(parsed, settings, pointer)[:_MOST_ADDRESSES], deadline)
    own = {"user-agent": "genmill", "accept-encoding": "identity", "connection": "close"}
    sent = {**own, **dict(_lower((headers or {}).items())), "host": parsed.netloc.decode("ascii")}
    url = httpcore.URL(scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path)
    with (
        httpcore.ConnectionPool(ssl_context=_tls(), network_backend=wire) as pool,
        pool.stream(method, url, headers=list(sent.items()), content=body) as response,
    ):
        yield response


def _lower(pairs: Iterable[tuple[str | bytes, str | bytes]]) -> list[tuple[str, str]]:
    return [(_text(name).lower(), _text(value)) for name, value in pairs]


def _text(raw: str | bytes) -> str:
    return raw.decode("latin-1") if isinstance(raw, bytes) else raw


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _bounded_body(response: httpcore.Response, max_bytes: int) -> bytes:
    chunks, size = [], 0
    for chunk in response.iter_stream():
        size += len(chunk)
        if size > max_bytes:
            raise InputUnavailable(f"the answer is larger than {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _port(parsed: httpx.URL) -> int:
    return parsed.port if parsed.port is not None else (443 if parsed.scheme == "https" else 80)


def _shown(parsed: httpx.URL) -> str:
    """The URL without its query: that may hold secrets."""
    port = "" if parsed.port is None else f":{parsed.port}"
    return f"{parsed.scheme}://{parsed.host}{port}{parsed.path}"[:200]


def _retry_after_s(text: str | None) -> float | None:
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)  # however many digits: infinite at most
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _fault(pointer: str, detail: str, limit: str, value: str) -> UrlNotAllowed:
    return UrlNotAllowed(detail, faults=(FieldFault(pointer, detail, limit, value),))
