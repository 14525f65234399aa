"""Threads of torch: calls use one thread, whatever the setting of the process."""

from __future__ import annotations

import os
from types import TracebackType

import torch

from gmed.errors import UsageError

VARIABLE = "GMED_THREADS"
"""The environment variable for a larger number of threads; 0 leaves torch's own setting."""


class limit_threads:  # noqa: N801 (used like a function)
    """Use at most ``count`` threads of torch in the block, by default :func:`num_threads`; then restore the number.

    Small products gain nothing from torch's thread pool, and on a busy machine they wait for it: a step becomes ten to
    thirty times slower. The order of sums, and so the last bits of a result, also depends on the number. The
    setting applies to the calling thread only. A nested block never raises the number.

    >>> torch.set_num_threads(2)
    >>> with limit_threads():
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads()
    2
    >>> torch.set_num_threads(1)
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = num_threads() if count is None else count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        if 0 < self.count < self.before:
            torch.set_num_threads(self.count)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if 0 < self.count < self.before:
            torch.set_num_threads(self.before)


def num_threads() -> int:
    """Return the number of threads that calls use: :data:`VARIABLE`, else one; 0 for torch's own setting."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return 1
    if not text.isdecimal() or len(text) > 4:
        raise UsageError(f"{VARIABLE} must be a number of threads, or 0 for torch's own setting, not {text!r}")
    return int(text)
