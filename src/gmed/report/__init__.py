"""Reports of a store: one self-contained HTML file, or tables for a paper."""

from gmed.report.data import ReportData, collect, watch_edits
from gmed.report.html import html

__all__ = ["ReportData", "collect", "html", "watch_edits"]
