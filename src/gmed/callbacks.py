"""Callbacks: what an experiment reports while it runs."""

from __future__ import annotations

from collections.abc import Sequence

from gmed.engine import Event, RunSpec


class Watcher:
    """Told what an experiment does while it does it; does nothing with it."""

    def preparing(self, done: int, total: int | None) -> None:
        """While data are decoded: how much of how much."""

    def start(self, todo: Sequence[RunSpec], kept: int) -> None:
        """Before the first run: the runs to compute, and how many were in the store already."""

    def event(self, event: Event) -> None:
        """Whenever something happened."""

    def watched(self, spec: RunSpec) -> None:
        """Whenever a run has ended that was made to be watched, and leaves no result."""

    def waiting(self, runs: int) -> None:
        """While nothing is left to do but wait for runs that another sweep is computing."""
