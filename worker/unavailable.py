"""How a job ends, or where it goes, whose model is not there."""

from __future__ import annotations

from genmill.errors import GenmillError, InvalidJob, ModelUnavailable
from genmill.jobs import Claim
from worker.engines.base import Failed, Postponed
from worker.engines.faults import lacks_memory

MAX_POSTPONED, ELSEWHERE_S = 5, 5.0
"""How often, and for how long, a job is put off whose model does not load; see Residents.LOAD_RETRY_S."""


def unavailable(claim: Claim, error: Exception) -> Failed | Postponed:
    """Another worker may have the model; after so many that had not, the job ends. What the model's engine could do
    nowhere ends at once."""
    if isinstance(error, InvalidJob):
        return Failed(claim.job_id, error)
    failure = ModelUnavailable(f"{claim.batch_key}: {_told_of(error)}")
    failure.__cause__ = error
    if claim.postponed < MAX_POSTPONED:
        return Postponed(claim.job_id, ELSEWHERE_S, failure)
    return Failed(claim.job_id, failure)


def _told_of(error: Exception) -> str:
    """Why a model is not there, for a client. What a library says names files and hosts: that is for the log and RQ's
    tools alone."""
    if isinstance(error, GenmillError) and error.__cause__ is None:
        return error.detail
    if lacks_memory(error):
        return "there was no room for it on the device; the worker's log tells more"
    return "it could not be loaded; the worker's log tells why"
