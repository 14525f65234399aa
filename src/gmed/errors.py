"""Errors that a user can act on; any other exception that escapes is a bug."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING

from gmed.deprecated import old_names

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


class GmedError(Exception):
    """Base class of all expected errors; the message says what is wrong, where, and what to do."""


class UsageError(GmedError, ValueError):
    """An unknown name, an invalid parameter or an impossible combination."""


class InputError(GmedError, ValueError):
    """A batch that a learner or an edit cannot use; nothing has changed."""


class DataError(GmedError):
    """A data file that is missing, truncated or altered."""


class StoreError(GmedError):
    """A results store that cannot be opened, read or written."""


class DivergedError(GmedError, ArithmeticError):
    """A training step whose loss is not finite; the step was not made."""


class GmedWarning(UserWarning):
    """Base class of warnings that the command line prints on one line; the message says what to do."""


def check_int(name: str, value: object, minimum: int = 1, maximum: int | None = None) -> int:
    """Return ``value`` as an int, or raise an error that says what it must be.

    >>> check_int("steps", 3)
    3
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise UsageError(f"{name} must be an integer of at least {minimum}, not {short(value)}")
    if maximum is not None and number > maximum:
        raise UsageError(f"{name} must be an integer of at most {maximum:,}, not {short(value)}")
    return number


def check_float(name: str, value: object, *, greater_than: float = -math.inf) -> float:
    """Return ``value`` as a float, or raise an error that says what it must be.

    >>> check_float("lr", 1, greater_than=0)
    1.0
    """
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > greater_than):
        bound = "" if greater_than == -math.inf else f" above {greater_than:g}"
        raise UsageError(f"{name} must be a finite number{bound}, not {short(value)}")
    return number


@contextmanager
def named(path: Path, name: str) -> Iterator[None]:
    """Make errors name ``name`` instead of the temporary file that replaces it.

    >>> with named(Path("copies/rows.csv"), "standard input"):
    ...     raise DataError("copies/rows.csv: the table has no rows.")
    Traceback (most recent call last):
    ...
    gmed.errors.DataError: standard input: the table has no rows.
    """
    try:
        yield
    except GmedError as error:
        raise type(error)(str(error).replace(str(path), name)) from error


def alternatives(names: Sequence[str]) -> str:
    """Return names as a list of alternatives.

    >>> alternatives(["a"]), alternatives(["a", "b", "c"])
    ('a', 'a, b or c')
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def unknown(kind: str, name: str, valid: Iterable[str]) -> UsageError:
    """Return the error for a name that does not exist, with the most similar names that do.

    >>> str(unknown("method", "er+gmde", ["er", "er+gmed"]))
    "unknown method 'er+gmde'; did you mean 'er+gmed' or 'er'?"
    """
    valid = sorted(valid)
    matches = get_close_matches(name.lower(), valid, n=3, cutoff=0.4)
    if matches:
        hint = f"did you mean {alternatives([repr(match) for match in matches])}?"
    elif valid:
        hint = "valid: " + ", ".join(valid)
    else:
        hint = "none are available"
    return UsageError(f"unknown {kind} {name!r}; {hint}")
