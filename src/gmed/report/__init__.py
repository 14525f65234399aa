"""Reports of a store: one self-contained HTML file, or tables for a paper."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.report.data import ReportData, collect
from gmed.report.edits import watch_edits
from gmed.report.html import html

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

__all__ = ["ReportData", "collect", "html", "watch_edits"]
