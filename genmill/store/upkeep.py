"""What keeps the indexes over jobs true and small: for the doctor, and for the scheduler now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis.commands.core import Script

from genmill.store import encoding


class Upkeep:
    """All methods raise redis.exceptions.RedisError."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts

    def examine(self, job_ids: Sequence[str], *, mend: bool) -> list[tuple[str, str]]:
        """(job id, fault) of jobs that are not where their status says; with `mend` they are put there."""
        faults = self._scripts["examine"](args=[int(mend), *job_ids])
        return encoding.pairs(faults)

    def tidy(
        self, scopes: Sequence[str], lanes: Sequence[tuple[str, str, str]], *, mend: bool
    ) -> list[tuple[str, str]]:
        """(name, fault) of slots that no lease holds and of lanes (class, batch key, tenant) that no claim finds."""
        flat = [part for lane in lanes for part in lane]
        return encoding.pairs(self._scripts["tidy"](args=[int(mend), len(scopes), *scopes, *flat]))

    def forget_idle(self, cursor: int, most: int = 200) -> int:
        """Drop what is known of tenants that have begun anew by the time they come again; about so many are looked at.
        Returns the cursor to go on from, 0 once all were seen."""
        return int(self._scripts["forget"](args=[cursor, most]))
