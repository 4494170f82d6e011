"""Are all custom_ids of a batch different? Found on disk, so that ten million of them need no memory."""

from __future__ import annotations

import hashlib
import heapq
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

BUCKETS = 64
"""Open files of one intake."""
DIGEST_BYTES = 12
"""96 bits: the odds that two of ten million different ids look alike are below 1 in 10**15."""
LINE_BYTES = 4
_ENTRY = DIGEST_BYTES + LINE_BYTES


class CustomIds:
    """Digests in BUCKETS files of a temporary folder; `twice` then takes one file at a time.

    16 bytes of disk for each line, 160 MB for ten million; in memory one file's lines, some 160,000 of them.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="genmill-batch-")
        self._files: dict[int, BinaryIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._folder.cleanup()

    def add(self, custom_id: str, line: int) -> None:
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
        self._file(digest[0] % BUCKETS).write(digest + line.to_bytes(LINE_BYTES, "big"))

    def twice(self, most: int) -> list[tuple[int, int]]:
        """(line, first line with the same custom_id), the first `most` of them by line."""
        return heapq.nsmallest(most, (pair for bucket in self._files for pair in self._twice_in(bucket)))

    def _file(self, bucket: int) -> BinaryIO:
        if bucket not in self._files:
            self._files[bucket] = (Path(self._folder.name) / f"{bucket:02x}").open("w+b", buffering=1 << 13)
        return self._files[bucket]

    def _twice_in(self, bucket: int) -> Iterator[tuple[int, int]]:
        file, first = self._files[bucket], dict[bytes, int]()
        file.seek(0)
        while entry := file.read(_ENTRY):
            digest, line = entry[:DIGEST_BYTES], int.from_bytes(entry[DIGEST_BYTES:], "big")
            if (known := first.setdefault(digest, line)) != line:
                yield line, known
