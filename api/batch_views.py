"""The result of one line of a batch, as clients see it."""

from __future__ import annotations

import json

from genmill.links import Links
from genmill.views import output_view


def result_view(row: bytes, links: Links) -> bytes:
    """One line of the results, links in it signed afresh."""
    result = json.loads(row)
    result["outputs"] = [output_view(output, links) for output in result["outputs"]]
    return json.dumps(result, separators=(",", ":")).encode() + b"\n"
