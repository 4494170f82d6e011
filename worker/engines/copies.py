"""A pipeline copy for each image: shared weights behind stand-ins, its own scheduler, generator and count of steps."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from genmill.extras import LoraSet, set_of
from genmill.inputs import SchedulerName
from worker.engines.base import EngineJob
from worker.engines.berths import Steps
from worker.engines.components import Components
from worker.engines.prototypes import Prototypes
from worker.engines.schedulers import make_scheduler, with_known_levels


class Copies:
    """Of one model's pipelines, whose scheduler as it was loaded is `own_scheduler`."""

    def __init__(self, prototypes: Prototypes, components: Components, own_scheduler: Any) -> None:
        self._prototypes, self._components, self._own_scheduler = prototypes, components, own_scheduler
        self._schedulers: dict[tuple[SchedulerName, bool], Any] = {}

    def of(self, job: EngineJob, index: int, in_use: Collection[LoraSet]) -> tuple[Any, dict[str, Any]]:
        """The copy for the job's image `index`, and the arguments of its call; its `progress_bar` is a Steps.
        `in_use`: the sets of adapters of those on board. Raises InvalidJob, ModelUnavailable."""
        asked = self._prototypes.asked_of(job)
        pipe = copy.copy(self._prototypes.of(job))
        own = self._components.of(set_of(asked.loras), asked.control.name if asked.control else None, in_use)
        # not by setattr, which would write the stand-ins' names into the pipeline's config
        vars(pipe).update(own)
        scheduler = self._scheduler(asked.scheduler, from_image=job.init_image is not None)
        vars(pipe).update(scheduler=copy.deepcopy(scheduler), progress_bar=Steps(asked.steps))
        return pipe, self._prototypes.arguments(job, index)

    def _scheduler(self, name: SchedulerName, *, from_image: bool) -> Any:
        key = (name, from_image)
        if key not in self._schedulers:
            made = make_scheduler(self._own_scheduler, name, from_image=from_image)
            self._schedulers[key] = with_known_levels(made)
        return self._schedulers[key]
