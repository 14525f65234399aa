"""Data sets as task-free streams: what is seen, in which order, and what it is tested on."""

from gmed.streams.permuted import permuted
from gmed.streams.rotated import rotated
from gmed.streams.split import split, tasked
from gmed.streams.stream import Examples, Stream, pixels
from gmed.streams.variants import fuzzy, iid, validation_stream

__all__ = [
    "Examples",
    "Stream",
    "fuzzy",
    "iid",
    "permuted",
    "pixels",
    "rotated",
    "split",
    "tasked",
    "validation_stream",
]
