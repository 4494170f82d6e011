"""The command `genmill`."""

from genmill.cli.app import cli, main

__all__ = ["cli", "main"]
