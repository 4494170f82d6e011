"""Free ports on this machine."""

from __future__ import annotations

import errno
import socket


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    return why_not(host, port) is None


def why_not(host: str, port: int) -> str | None:
    """Why no server can listen there now; None where one can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as err:
            if err.errno == errno.EADDRINUSE:
                return f"port {port} on {host} is in use; choose another with --port"
            return f"cannot listen on {host}, port {port}: {err.strerror or err}"
    return None


def pick_port(wanted: int | None = None, host: str = "127.0.0.1") -> int:
    """The wanted port where it is free, else any free one."""
    if wanted is not None and is_free(host, wanted):
        return wanted
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
