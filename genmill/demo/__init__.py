"""`genmill demo`: the whole of genmill at work on real jobs, measured against plain pipeline calls."""
