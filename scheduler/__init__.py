"""The control plane: leader lock, reaping, delayed work, limits, batches. Never on the path of a job."""
