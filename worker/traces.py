"""What RQ's tools show of an error."""

from __future__ import annotations

import traceback

from genmill.errors import JobFailure


def trace(error: JobFailure) -> str:
    """The traceback, of what it comes from where that is known."""
    return "".join(traceback.format_exception(error.__cause__ or error))
