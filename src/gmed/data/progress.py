from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int | None], None]
"""Told how much is done and, where that is known, of how much."""


def unwatched(done: int, total: int | None) -> None:
    """The progress of something nobody watches."""
