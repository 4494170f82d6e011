"""Outputs as files named by their custom_id, each there whole or not at all."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from genmill.durable_files import write_whole

LONGEST_NAME = 180
"""Bytes; file systems take 255, and a number and a suffix follow."""


def write_outputs(result: dict[str, Any], folder: Path, fetch: Callable[[str], bytes]) -> list[str]:
    """The outputs of one result: `<custom_id>.png` or `.txt`; several are numbered, `<custom_id>+0.png`. Returns the
    names. An output that is there in its size, from a run that was killed before it could say so, is left as it is."""
    stem = file_stem(result["custom_id"])
    if "text" in result:
        write_whole(folder / f"{stem}.txt", result["text"]["text"].encode("utf-8", "surrogatepass"))
        return [f"{stem}.txt"]
    outputs = result["outputs"]
    names = [f"{stem}{f'+{n}' if len(outputs) > 1 else ''}{_suffix(output)}" for n, output in enumerate(outputs)]
    for name, output in zip(names, outputs, strict=True):
        if not _is_there(folder / name, output.get("bytes")):
            write_whole(folder / name, fetch(output["url"]))
    return names


def file_stem(custom_id: str) -> str:
    """Different for different ids: what is no letter, digit, `_`, `.`, `-` or `~` is percent-encoded; a long one is
    cut and told apart by its digest. Neither `+` nor `=` stands in an encoded id."""
    stem = quote(custom_id, safe="", errors="surrogatepass")
    if stem.startswith("."):
        stem = "%2E" + stem[1:]
    if len(stem) > LONGEST_NAME:
        digest = hashlib.sha256(custom_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        stem = f"{stem[: LONGEST_NAME - 33]}={digest}"
    return stem


def _suffix(output: dict[str, Any]) -> str:
    return mimetypes.guess_extension(output.get("content_type", "")) or ".bin"


def _is_there(path: Path, size: int | None) -> bool:
    return size is not None and path.is_file() and path.stat().st_size == size
