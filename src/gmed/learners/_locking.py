"""Locking: a call that changes a learner is not interrupted, and other threads never see an intermediate state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

from gmed.io.signals import hold_interrupts
from gmed.kernels.threads import limit_threads

P = ParamSpec("P")
R = TypeVar("R")


class Lock:
    """A re-entrant lock. An object that has one can be copied and pickled: the copy gets a new lock.

    >>> import copy
    >>> lock = Lock()
    >>> with lock:
    ...     copy.deepcopy(lock) is lock
    False
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


class Locked(Protocol):
    """Something with a lock."""

    _lock: Lock


S = TypeVar("S", bound=Locked)


def exclusive(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method exclusive: while it runs, other exclusive calls wait, and so does Ctrl-C."""

    @wraps(method)
    def run_alone(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with hold_interrupts(), self._lock, limit_threads():
            return method(self, *args, **kwargs)

    return run_alone


def consistent_read(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method that only reads wait for exclusive calls of other threads; Ctrl-C may interrupt it."""

    @wraps(method)
    def run_between_changes(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with alone(self._lock), limit_threads():
            return method(self, *args, **kwargs)

    return run_between_changes


@contextmanager
def alone(lock: Lock) -> Iterator[None]:
    """Hold a lock inside the block. Ctrl-C at any moment never leaves the lock held."""
    with lock._lock:  # the lock of the interpreter: no signal is handled between acquiring it and entering the block
        yield
