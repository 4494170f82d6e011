"""A backfill from this machine: a file of lines as a batch, its outputs as files; goes on after whatever ended it."""
