"""The published numbers."""

from gmed.paper.numbers import published

__all__ = ["published"]
