"""The published numbers."""

from gmed.paper.published import published

__all__ = ["published"]
