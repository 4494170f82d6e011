"""What is wrong with one field of a request; the errors (genmill/errors.py) carry some of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class FieldFault:
    """What is wrong with one field: where (JSON pointer), why, which limit, which value; of a file, in which line."""

    pointer: str
    detail: str
    limit: str | None = None
    value: str | None = None
    line: int | None = None

    def as_json(self) -> dict[str, str | int]:
        return {name: part for name, part in asdict(self).items() if part is not None}
