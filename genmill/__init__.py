"""The contract that api, worker and scheduler share: jobs, queue, storage, models, client."""

__version__ = "0.1.0"
