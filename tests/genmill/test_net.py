"""The guard against requests into our own network, against resolvers and servers that misbehave."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from genmill import net
from genmill.errors import DeliveryFailed, InputUnavailable
from genmill.settings import Settings, load_settings
from tests.fleet import free_port

STRICT = load_settings()
OPEN = load_settings(allow_private_urls=True, callback_timeout_s=1)

PRIVATE = [
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",  # noqa: S104 - addresses to refuse
    "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::",
    "64:ff9b::7f00:1", "64:ff9b::a00:1", "ff02::1", "fe80::1%1", "::127.0.0.1", "::10.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b:1::7f00:1", "fec0::1", "fd00:ec2::254", "2001:db8::1", "3fff::1", "5f00::1", "100::1", "2001:0:7f00:1::",
    "2620:fe::5efe:7f00:1", "2620:fe::200:5efe:a00:1", "2002:a00:1::", "240.0.0.1", "198.18.0.1", "192.0.0.170",
    "192.0.2.1", "192.88.99.1", "203.0.113.5", "64:ff9b::a9fe:a9fe",
]  # fmt: skip


RESOLVE = socket.getaddrinfo


def resolving_to(*addresses: str) -> Callable[..., Any]:
    """A resolver that knows hooks.example; addresses resolve to themselves, as ever."""

    def resolve(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        if host != "hooks.example":
            return list(RESOLVE(host, port, *args, **options))
        return [(socket.AF_INET6 if ":" in a else socket.AF_INET, 1, 6, "", (a, port)) for a in addresses]

    return resolve


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert not net.is_global(address)


@pytest.mark.parametrize("address", ["9.9.9.9", "2620:fe::fe", "::ffff:9.9.9.9", "64:ff9b::909:909", "2a00:1450::1"])
def test_global_addresses(address: str) -> None:
    assert net.is_global(address)


BAD_URLS = [
    "", "nothing", "ftp://9.9.9.9/", "file:///etc/passwd", "https://", "https://user:pw@9.9.9.9/", "https://9.9.9.9:22/",
    "https://9.9.9.9:6379/", "https://127.0.0.1/", "https://[::1]/", "https://localhost/", "https://2130706433/",
    "https://0x7f.1/", "https://[::ffff:127.0.0.1]/", "https://9.9.9.9:99999/", "https://" + "a" * 3000,
    "https://127.1/", "https://0177.0.0.1/", "https://localhost./", "https://[::127.0.0.1]/", "https://[::ffff:7f00:1]/",
    "https://[64:ff9b::7f00:1]/", "https://[fec0::1]/", "https://0/", "https://127.0.0.1:443/", "https://9.9.9.9:0/",
    "https://\uff19.9.9.9:22/", "https://\uff11\uff12\uff17.0.0.1/", "https://169.254.169.254/latest", "https://a@9.9.9.9/",
    "gopher://9.9.9.9/",
    "https://xn--a/", "https://xn--/", "https://a.xn--ls8h=/",
    "https://exa mple/", "https://\x00/", "//9.9.9.9/", "https:9.9.9.9", "http://9.9.9.9/", "javascript:alert(1)",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_webhooks(url: str) -> None:
    with pytest.raises(net.UrlNotAllowed) as caught:
        net.check_webhook(url, STRICT)
    (fault,) = caught.value.faults
    assert fault.pointer == "/webhook"
    assert fault.limit


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", "https://9.9.9.9:0/"])
def test_a_port_that_is_none_is_refused_wherever_all_are_allowed(url: str) -> None:
    with pytest.raises(net.UrlNotAllowed, match="there is no port"):
        net.check_webhook(url, OPEN)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("https://9.9.9.9/hook?x=1", STRICT),
        ("http://9.9.9.9/", load_settings(allow_http_webhooks=True)),
        ("http://127.0.0.1:1234/", OPEN),
        ("http://localhost:1234/", OPEN),
    ],
)
def test_good_webhooks(url: str, settings: Settings) -> None:
    net.check_webhook(url, settings)


def test_one_private_address_among_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving_to("9.9.9.9", "127.0.0.1"))
    with pytest.raises(net.UrlNotAllowed, match="public internet"):
        net.check_webhook("https://hooks.example/", STRICT)


@pytest.mark.parametrize(("errno", "is_fault"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)])
def test_names_that_do_not_resolve(errno: int, is_fault: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(errno, "no")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    if is_fault:
        with pytest.raises(net.UrlNotAllowed, match="does not resolve"):
            net.check_webhook("https://hooks.example/", STRICT)
    else:
        net.check_webhook("https://hooks.example/", STRICT)
    with pytest.raises(DeliveryFailed, match="does not resolve"):
        net.post("https://hooks.example/", b"", {}, STRICT)
    with pytest.raises(InputUnavailable, match="does not resolve"):
        net.fetch("https://hooks.example/", STRICT, 10)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers by path; keeps what it was sent in `server.seen`."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        self.server.seen.append((self.path, dict(self.headers), body))  # type: ignore[attr-defined]  # the test's own server
        self._answer()

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers), b""))  # type: ignore[attr-defined]  # the test's own server
        self._answer()

    def _answer(self) -> None:
        name, _, rest = self.path.strip("/").partition("/")
        if name == "slow":
            time.sleep(1.5)
        self.send_response(int(name) if name.isdecimal() else 200)
        if rest:
            self.send_header("retry-after", rest.replace("_", " ").replace("..", ","))
        if name == "302":
            self.send_header("location", "/200")
        body = b"x" * 1000
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the caller does not read bodies

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = Server(("127.0.0.1", 0), Receiver)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_post_sends_exactly_these_bytes(receiver: Any) -> None:
    url = f"http://localhost:{receiver.server_port}/200"
    assert net.post(url, b'{"a": 1}', {"webhook-id": "m1"}, OPEN) == net.PostReply(200, None)
    ((_, headers, body),) = receiver.seen
    assert body == b'{"a": 1}'
    assert headers["webhook-id"] == "m1"
    assert headers["host"] == f"localhost:{receiver.server_port}"


@pytest.mark.parametrize("status", [302, 410, 500])
def test_any_answer_is_a_reply_and_redirects_are_not_followed(status: int, receiver: Any) -> None:
    assert net.post(f"http://127.0.0.1:{receiver.server_port}/{status}", b"", {}, OPEN).status == status
    assert len(receiver.seen) == 1


def test_retry_after(receiver: Any) -> None:
    base = f"http://127.0.0.1:{receiver.server_port}/503"
    assert net.post(f"{base}/17", b"", {}, OPEN).retry_after_s == 17
    later = (
        format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True).replace(" ", "_").replace(",", "..")
    )
    seconds = net.post(f"{base}/{later}", b"", {}, OPEN).retry_after_s
    assert seconds is not None
    assert 55 < seconds <= 60
    for no_date in ("soon", "Mon,_01_Jan_99999999999999999999_00:00:00_GMT"):
        assert net.post(f"{base}/{no_date.replace(',', '..')}", b"", {}, OPEN).retry_after_s is None


def test_no_answer_is_a_failed_delivery(receiver: Any) -> None:
    for url in (f"http://127.0.0.1:{receiver.server_port}/slow", f"http://127.0.0.1:{free_port()}/"):
        with pytest.raises(DeliveryFailed, match="no answer"):
            net.post(url, b"", {}, OPEN)


@pytest.mark.parametrize("drip", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n"])
def test_a_receiver_that_drips_holds_nobody_past_the_deadline(drip: bytes) -> None:
    """Each byte comes within any read timeout; the call still ends in time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()

        def drip_on() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(drip)
                while not is_over.wait(0.05):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip_on)
        thread.start()
        started = time.monotonic()
        with pytest.raises(InputUnavailable, match="Timeout"):
            net.fetch(f"http://127.0.0.1:{server.getsockname()[1]}/", OPEN, 10_000, timeout_s=0.5)
        assert time.monotonic() - started < 1.5
        is_over.set()
        thread.join()


def test_garbage_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"what?\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(DeliveryFailed, match="no answer"):
            net.post(f"http://127.0.0.1:{server.getsockname()[1]}/", b"{}", {}, OPEN)
        thread.join()


def test_the_second_address_is_tried(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving_to("127.0.0.9", "127.0.0.1"))
    assert net.post(f"http://hooks.example:{receiver.server_port}/200", b"", {}, OPEN).status == 200


def test_fetch_is_bounded(receiver: Any) -> None:
    base = f"http://127.0.0.1:{receiver.server_port}"
    assert net.fetch(f"{base}/200", OPEN, 1000) == b"x" * 1000
    with pytest.raises(InputUnavailable, match="larger than 999 bytes"):
        net.fetch(f"{base}/200", OPEN, 999)
    with pytest.raises(InputUnavailable, match="answered 302"):
        net.fetch(f"{base}/302", OPEN, 1000)
    with pytest.raises(InputUnavailable, match="could not be read"):
        net.fetch(f"{base}/slow", OPEN, 1000, timeout_s=0.3)


def test_the_checked_address_is_the_one_called(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that answers global first and private later gets no second question."""
    answers = iter([resolving_to("127.0.0.1"), resolving_to("127.0.0.2")])
    asked: list[str] = []

    def resolve(host: str, *rest: Any, **options: Any) -> list[Any]:
        if host != "hooks.example":
            return list(RESOLVE(host, *rest, **options))
        asked.append(host)
        return list(next(answers)(host, *rest, **options))

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(net, "is_global", lambda address: address == "127.0.0.1")
    url = f"http://hooks.example:{receiver.server_port}/200"
    monkeypatch.setattr(net, "PORTS", {receiver.server_port})
    settings = load_settings(allow_http_webhooks=True)
    assert net.post(url, b"", {}, settings).status == 200
    assert asked == ["hooks.example"]
    assert receiver.seen[0][1]["host"] == f"hooks.example:{receiver.server_port}"
    with pytest.raises(net.UrlNotAllowed):
        net.post(url, b"", {}, settings)
    assert len(receiver.seen) == 1


def test_no_proxy_of_the_environment_is_used(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"http://127.0.0.1:{receiver.server_port}"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
        monkeypatch.setenv(name.lower(), proxy)
    with pytest.raises(InputUnavailable):
        net.fetch(f"http://127.0.0.1:{free_port()}/", OPEN, 1000)
    assert receiver.seen == []


def test_from_many_threads(receiver: Any) -> None:
    url = f"http://127.0.0.1:{receiver.server_port}/200"
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda n: net.post(url, str(n).encode(), {}, OPEN).status, range(64)))
    assert replies == [200] * 64
    assert {body for _, _, body in receiver.seen} == {str(n).encode() for n in range(64)}


def test_the_certificate_must_be_the_hosts(receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS goes to the checked address with the host's own name in SNI."""
    monkeypatch.setattr(socket, "getaddrinfo", resolving_to("127.0.0.1"))
    names: list[str | None] = []
    context = net._tls()
    wrap = type(context).wrap_socket

    def note(self: Any, sock: Any, **options: Any) -> Any:
        names.append(options.get("server_hostname"))
        return wrap(self, sock, **options)

    monkeypatch.setattr(type(context), "wrap_socket", note)
    with pytest.raises(DeliveryFailed):
        net.post(f"https://hooks.example:{receiver.server_port}/", b"", {}, OPEN)
    assert names == ["hooks.example"]
    assert context.check_hostname
