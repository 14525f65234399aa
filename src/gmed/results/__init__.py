"""Results of runs: the store, statistics and summaries."""

from gmed.results.claims import SweepClaims
from gmed.results.results import Failure, Published, Results, Row
from gmed.results.stats import Difference, Gain, difference, paired_gain
from gmed.results.store import Store
from gmed.results.tables import markdown

__all__ = [
    "Difference",
    "Failure",
    "Gain",
    "Published",
    "Results",
    "Row",
    "Store",
    "SweepClaims",
    "difference",
    "markdown",
    "paired_gain",
]
