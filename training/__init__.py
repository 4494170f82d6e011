"""Trains the two models that ship with genmill, and writes what their cards say."""
