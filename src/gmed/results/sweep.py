from __future__ import annotations

import os
import socket
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

from gmed.engine import RunSpec
from gmed.results.store import Store

SIGN_OF_LIFE = 10.0
"""Seconds between two signs of life of a sweep."""

GIVEN_UP = 60.0
"""Seconds without one after which a sweep on another machine counts as dead."""


class Sweep:
    """A computation of runs into a store that others may be computing into too.

    What one sweep has claimed no other computes, as long as it lives. A sweep that was killed loses its claims: at
    once if it ran on this machine, after a minute without a sign of life elsewhere.

    Examples
    --------
    >>> with Store(":memory:") as store, Sweep(store) as sweep, Sweep(store) as other:
    ...     specs = [RunSpec.make("split-mnist", "er", seed) for seed in range(3)]
    ...     [len(sweep.claim(specs[:2])), len(other.claim(specs))]
    [2, 1]
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._over = Event()

    def __enter__(self) -> Sweep:
        with self.store.transaction():
            query = "INSERT INTO sweeps (host, process, seen) VALUES (?, ?, ?)"
            self.number = self.store.database.execute(
                query, (socket.gethostname(), this_process(), time.time())
            ).lastrowid
        if self.store.path != ":memory:":
            self._pulse = Thread(target=self._live, daemon=True)
            self._pulse.start()
        return self

    def claim(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """Those of these runs that nobody else is computing: they are this sweep's now."""
        db = self.store.database
        with self.store.transaction():
            for number, host, process, seen in db.execute("SELECT id, host, process, seen FROM sweeps").fetchall():
                if number != self.number and not alive(host, process, seen):
                    db.execute("DELETE FROM sweeps WHERE id = ?", (number,))
            rows = [(spec.key, self.number) for spec in specs]
            db.executemany("INSERT OR IGNORE INTO claims (key, sweep) VALUES (?, ?)", rows)
            query = "SELECT key FROM claims WHERE sweep = ?"
            ours = {key for (key,) in db.execute(query, (self.number,))}
        return [spec for spec in specs if spec.key in ours]

    def _live(self) -> None:
        while not self._over.wait(SIGN_OF_LIFE):
            with suppress(sqlite3.Error), sqlite3.connect(self.store.path, timeout=30) as db:
                db.execute("UPDATE sweeps SET seen = ? WHERE id = ?", (time.time(), self.number))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with suppress(sqlite3.Error), self.store.transaction():  # a claim that stays lapses with this process
            self.store.database.execute("DELETE FROM sweeps WHERE id = ?", (self.number,))


def this_process() -> str:
    """This process, told from all others that had or will have its number."""
    return f"{os.getpid()} {started(os.getpid())}"


def alive(host: str, process: str, seen: float) -> bool:
    """Whether a process that was seen then is still there, as far as can be told from here."""
    number, since = process.split(" ", 1)
    if host == socket.gethostname() and since:
        return started(int(number)) == since
    return time.time() - seen < GIVEN_UP


def started(process: int) -> str:
    """When a process started, in clock ticks since the machine did; empty where that cannot be told or it is gone."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        state, *figures = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else figures[18]
