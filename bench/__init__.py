"""Measurements, each a command that writes one JSON file."""
