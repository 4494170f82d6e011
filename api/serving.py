"""How gunicorn serves the API, wherever it is started: `gunicorn -c python:api.serving --bind ... api.wsgi:app`.

A thread that waits costs some kilobytes, so there is one for each held answer and each stream of events, and spare
ones that no waiting takes away from those who submit.
"""

from __future__ import annotations

from api.desk import MOST_AT_WORK
from api.streams import MOST_STREAMS
from api.waiting import MOST_WAITERS

worker_class = "gthread"
threads = MOST_WAITERS + MOST_STREAMS + 2 * MOST_AT_WORK
worker_connections = threads + 1_000
"""Connections that are kept open between requests come on top."""
keepalive = 15
"""Seconds that a connection without a request is kept. Longer than clients keep theirs (httpx: 5) and than a
Retry-After of ours: gunicorn's 2 ended just as a client that waited 2 seconds sent its next try, which was lost."""
timeout = 90
graceful_timeout = 5
control_socket_disable = True
