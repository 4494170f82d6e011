"""Batches: many jobs handed in as the lines of one file, kept in the storage, fed through a window, collected again.

A dialect brings a `LineParser` and its own view of a `BatchRecord`; everything between is the same for all.
"""

from genmill.batches.intake import BatchOrder, Intake, LineParser, Place
from genmill.batches.ledger import Ledger
from genmill.batches.lines import Line
from genmill.batches.parts import LineParts, ResultParts
from genmill.batches.records import BatchRecord
from genmill.batches.states import BatchState

__all__ = [
    "BatchOrder", "BatchRecord", "BatchState", "Intake", "Ledger", "Line", "LineParser", "LineParts", "Place",
    "ResultParts",
]  # fmt: skip
