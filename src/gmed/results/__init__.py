"""What runs found: the store, statistics and summaries."""

from gmed.results.markdown import markdown
from gmed.results.results import Failure, Published, Results, Row
from gmed.results.statistics import Difference, Gain, difference, paired_gain
from gmed.results.store import Store
from gmed.results.sweep import Sweep

__all__ = [
    "Difference",
    "Failure",
    "Gain",
    "Published",
    "Results",
    "Row",
    "Store",
    "Sweep",
    "difference",
    "markdown",
    "paired_gain",
]
