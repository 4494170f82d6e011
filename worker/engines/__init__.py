"""Engines turn admitted jobs into outputs; the only folder that imports torch."""
