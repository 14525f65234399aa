"""Results of runs: the store, statistics and summaries."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.results.claims import SweepClaims
from gmed.results.results import Failure, Published, Results, Row
from gmed.results.stats import Difference, Gain, difference, paired_gain
from gmed.results.store import Store
from gmed.results.tables import markdown

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

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
