"""Every Redis key, queue name and time to live is born here.

RQ's own keys (`rq:`) follow RQ 3.0; genmill's (`gm:`) are described in docs/states.md. The Lua files get the same
prefixes as the table `K`, so that a key is spelled in one place only.
"""

from __future__ import annotations

import re
from enum import StrEnum


class JobClass(StrEnum):
    """Priority classes, most urgent first; each is an RQ queue of the same name."""

    P0 = "p0"
    P1 = "p1"
    P2 = "p2"
    P3 = "p3"


CALLBACKS = "callbacks"
"""The queue of webhook deliveries, and the batch key of its jobs."""

QUEUES = (*(c.value for c in JobClass), CALLBACKS)

CALL_BATCH_KEY = "call"
"""Batch key of jobs that name a plain function; they run one at a time."""

GENERATE = "worker.tasks.generate"
DELIVER = "worker.tasks.deliver"

CURVES_TTL_S = 7 * 24 * 3600
"""How long the fleet remembers a service curve that nobody measures any more, and how a model batched."""

MEMORY_TTL_S = 30 * 24 * 3600
"""How long the fleet remembers what a model takes of memory, and the switches between models."""

TOKEN_TTL_S = 60
"""How long a claim's token replays its answer; longer than any client retry."""

BATCH_JOB_TTL_S = 30
"""How long a line's job is kept once its result is in the batch's results; longer than a scheduler that lost its lead
may go on to believe in it, so that what it still submits is known."""

BATCH_SLACK_S = 24 * 3600
"""How much longer than its own time a batch is remembered while it runs, for the draining of what it has open."""

INTAKE_TTL_S = 3600
"""How long what an intake stored stays without a next part of it."""

HELD_TTL_S = 900
"""How long a retried request finds the job of the one whose client went away; longer than an answer is held."""

ATTENDED_TTL_S = 3
"""How long a held job counts as that of a client that is there, unless whoever holds it says so again."""

FILE_TTL_S = 3600
"""How long an upload stays whose facts never came; longer than storing it takes."""

RATE_WINDOW_S = 60
"""In which submissions are counted."""

USAGE_TTL_S = 400 * 24 * 3600
"""How long a day's use by tenant is kept: a year, and time to ask for it."""

AUDIT_TTL_S = 400 * 24 * 3600
AUDIT_MAXLEN = 10_000
"""Admin actions that are remembered, about; the log as a whole goes after `AUDIT_TTL_S` without one."""

KEY_USE_TTL_S = 400 * 24 * 3600
KEY_USE_EVERY_S = 60
"""An API key's last use is written no more often."""
TOKENS_TTL_S = 600
"""How long the deltas of a streamed text are kept after the last one; the whole text is in the result."""

MOST_DELTAS = 8_192
"""Deltas kept of one job: as many as the longest text has tokens, so that none is ever cut off."""

PREVIEW_TTL_S = 600

PROBE_TTL_S = 60

RESULT_STREAM_MAXLEN = 10
SCHEDULER_LOCK_TTL_S = 10

PREFIXES = {
    # RQ's
    "job": "rq:job:",
    "queues": "rq:queues",
    "queue": "rq:queue:",
    "wip": "rq:wip:",
    "finished": "rq:finished:",
    "failed": "rq:failed:",
    "canceled": "rq:canceled:",
    "scheduled": "rq:scheduled:",
    "deferred": "rq:deferred:",
    "execution": "rq:execution:",
    "results": "rq:results:",
    "worker": "rq:worker:",
    "workers": "rq:workers",
    "suspended": "rq:suspended",
    "pubsub": "rq:pubsub:",
    # genmill's
    "lane": "gm:lane:",
    "ready": "gm:ready:",
    "act": "gm:act:",
    "parked": "gm:parked:",
    "parkings": "gm:parkings",
    "bkhead": "gm:bkhead:",
    "vt": "gm:vt",
    "vclock": "gm:vclock",
    "run": "gm:run:",
    "leases": "gm:leases",
    "waiting": "gm:waiting",
    "rate": "gm:rate:",
    "usage": "gm:usage:",
    "classes": "gm:classes",
    "pace": "gm:pace",
    "curves": "gm:curves",
    "memory": "gm:memory",
    "switches": "gm:switches",
    "batching": "gm:batching",
    "lim": "gm:lim",
    "limnow": "gm:lim:now",
    "limset": "gm:lim:set",
    "scratch": "gm:scratch",
    "ttl": "gm:ttl",
    "chained": "gm:chained",
    "wake": "gm:wake:",
    "token": "gm:token:",
    "idem": "gm:idem:",
    "held": "gm:held:",
    "attended": "gm:attended:",
    "list": "gm:list:",
    "file": "gm:file:",
    "files": "gm:files:",
    "fileshelf": "gm:fileshelf",
    "objectshelf": "gm:objectshelf",
    "apikeys": "gm:apikeys",
    "keyuse": "gm:keyuse:",
    "audit": "gm:audit",
    "probe": "gm:probe",
    "leader": "gm:leader",
    "epoch": "gm:epoch",
    "deliveries": "gm:deliveries:",
    "tokens": "gm:tokens:",
    "preview": "gm:preview:",
    "batch": "gm:batch:",
    "batchopen": "gm:batchopen:",
    "batchended": "gm:batchended:",
    "batchfaults": "gm:batchfaults:",
    "batchparts": "gm:batchparts:",
    "batchbody": "gm:batchbody:",
    "batchlist": "gm:batchlist:",
    "batches": "gm:batches",
    "shelf": "gm:shelf",
}

SUFFIXES = {"dependents": ":dependents", "dependencies": ":dependencies"}
"""RQ's sets beside a job's hash: `rq:job:<id>:dependents` wait for it, for `rq:job::<id>:dependencies` it waits."""


def job(job_id: str) -> str:
    return PREFIXES["job"] + job_id


def results(job_id: str) -> str:
    return PREFIXES["results"] + job_id


def ready(job_class: str, batch_key: str) -> str:
    return f"{PREFIXES['ready']}{job_class}:{batch_key}"


def batch_key_heads(job_class: str) -> str:
    return PREFIXES["bkhead"] + job_class


def wake(job_class: str) -> str:
    return PREFIXES["wake"] + job_class


def tenant_jobs(tenant: str) -> str:
    return PREFIXES["list"] + tenant


def held(tenant: str, body_hash: str) -> str:
    return f"{PREFIXES['held']}{tenant}:{body_hash}"


def attended(job_id: str) -> str:
    return PREFIXES["attended"] + job_id


def file(tenant: str, file_id: str) -> str:
    return f"{PREFIXES['file']}{tenant}:{file_id}"


def tenant_files(tenant: str) -> str:
    return PREFIXES["files"] + tenant


def run_scope(scope: str) -> str:
    return PREFIXES["run"] + scope


def usage(day: str) -> str:
    """`day` is YYYY-MM-DD, UTC."""
    return PREFIXES["usage"] + day


def key_use(digest: str) -> str:
    return PREFIXES["keyuse"] + digest


def rate(tenant: str) -> str:
    return PREFIXES["rate"] + tenant


def deliveries(job_id: str) -> str:
    return PREFIXES["deliveries"] + job_id


def tokens(job_id: str) -> str:
    return PREFIXES["tokens"] + job_id


def preview(job_id: str) -> str:
    return PREFIXES["preview"] + job_id


def batch(batch_id: str) -> str:
    return PREFIXES["batch"] + batch_id


def batch_open(batch_id: str) -> str:
    return PREFIXES["batchopen"] + batch_id


def batch_ended(batch_id: str) -> str:
    return PREFIXES["batchended"] + batch_id


def batch_faults(batch_id: str) -> str:
    return PREFIXES["batchfaults"] + batch_id


def batch_parts(batch_id: str) -> str:
    return PREFIXES["batchparts"] + batch_id


def tenant_batches(tenant: str) -> str:
    return PREFIXES["batchlist"] + tenant


def lua_prelude(script: str) -> str:
    """The table `K` for a Lua file, with the keys that it names, and the times to live that it shares with the rest.
    Raises KeyError where it names one that is not here."""
    known, named = PREFIXES | SUFFIXES, sorted(set(re.findall(r"\bK\.(\w+)", script)))
    pairs = ", ".join(f"{name}='{known[name]}'" for name in named)
    return f"local K = {{{pairs}}}\nlocal USAGE_TTL_S, RATE_WINDOW_S = {USAGE_TTL_S}, {RATE_WINDOW_S}\n"
