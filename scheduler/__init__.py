"""The control plane: leader lock, reaping, delayed work, limits. Never on the path of a job."""
