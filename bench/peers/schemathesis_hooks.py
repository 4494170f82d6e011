"""What schemathesis needs to be told: how lines of JSON are written and read, and which key it must not take back.

Runs in its own environment.
"""

import json
import os

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/jsonl")
def write_lines(_context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.deserializer("application/x-ndjson")
def read_lines(_context, response):
    """Text where they are none: a file's content is whatever was sent, and no list of results."""
    try:
        return [json.loads(line) for line in response.content.splitlines()]
    except ValueError:
        return response.content.decode("latin-1")


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """All calls after one that took back its own key would be answered 401."""
    if case.path_parameters and case.path_parameters.get("key_id") == os.environ["BENCH_KEY_ID"]:
        case.path_parameters["key_id"] = "absent"
