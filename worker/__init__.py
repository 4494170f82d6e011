"""The GPU box: claim -> run -> upload -> settle."""

from worker.batch_worker import BatchWorker

__all__ = ["BatchWorker"]
