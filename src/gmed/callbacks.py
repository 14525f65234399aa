"""Callbacks: what an experiment reports while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gmed.deprecated import old_attributes, old_names
from gmed.engine import Event, RunSpec

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


@old_attributes(
    preparing="on_data_progress",
    start="on_start",
    event="on_event",
    watched="on_probe",
    waiting="on_wait",
)
class Callback:
    """Follow an experiment while it runs. This one does nothing; subclasses override what they need."""

    def on_data_progress(self, done: int, total: int | None) -> None:
        """Handle progress in decoding the data: the amount done, and the total."""

    def on_start(self, todo: Sequence[RunSpec], stored: int) -> None:
        """Handle the start: the remaining runs, and the number of runs already in the store."""

    def on_event(self, event: Event) -> None:
        """Handle progress, an evaluation, a result or a failure of a run."""

    def on_probe(self, spec: RunSpec) -> None:
        """Handle the end of a run that was made for a probe and leaves no result."""

    def on_wait(self, runs: int) -> None:
        """Handle a wait for runs of another sweep."""
