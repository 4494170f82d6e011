"""HTTP in, JSON out: decode, validate, call the store, encode. Never imports torch."""
