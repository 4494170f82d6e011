"""The little world that the shipped models draw: a caption grammar, a renderer, and a checker of pixels."""
