"""`genmill up`: the whole of genmill on this machine, from embedded Valkey to the Procfile's processes."""
