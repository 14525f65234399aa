"""Data sets as task-free streams: the training examples in order, and a test set per task."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.streams.permuted import permuted
from gmed.streams.rotated import rotated
from gmed.streams.split import by_task, split
from gmed.streams.stream import Examples, Stream, to_float
from gmed.streams.variants import fuzzy, iid, validation_stream

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


__all__ = [
    "Examples",
    "Stream",
    "by_task",
    "fuzzy",
    "iid",
    "permuted",
    "rotated",
    "split",
    "to_float",
    "validation_stream",
]
