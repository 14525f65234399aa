"""A store as a report that can be sent around: one HTML file, or tables for a paper."""

from gmed.report.data import Contents, find_contents, watch_edits
from gmed.report.html import html

__all__ = ["Contents", "find_contents", "html", "watch_edits"]
