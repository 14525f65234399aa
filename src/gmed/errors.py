"""The errors a user can act on. Anything else that escapes is a bug."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class GmedError(Exception):
    """Base of every error raised on purpose; its message says what was wrong, where, and what to do."""


class UsageError(GmedError, ValueError):
    """An unknown name, a bad parameter or an impossible combination."""


class InputError(GmedError, ValueError):
    """A batch that a learner or an edit cannot use. Nothing was changed by it."""


class DataError(GmedError):
    """A data file is missing, truncated or altered."""


class StoreError(GmedError):
    """The results store cannot be opened, read or written."""


class DivergedError(GmedError):
    """The loss of a training step is not finite. The step was not taken."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, naming the nearest ones that do.

    >>> str(unknown("method", "er+gmde", ["er", "er+gmed"]))
    "unknown method 'er+gmde'; did you mean 'er+gmed' or 'er'?"
    """
    valid = sorted(valid)
    near = get_close_matches(name, valid, n=3, cutoff=0.4)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    elif valid:
        hint = "valid: " + ", ".join(valid)
    else:
        hint = "there are none"
    return UsageError(f"unknown {kind} {name!r}; {hint}")
