"""What tests/genmill/test_modules.py starts: gives back what it was given."""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    print("reading", file=sys.stderr, flush=True)
    given = json.load(sys.stdin)
    if sys.argv[1:] == ["fail"]:
        raise ValueError("told to")
    print("done", file=sys.stderr, flush=True)
    print(json.dumps({"arguments": sys.argv[1:], "given": given}))
