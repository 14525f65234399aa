"""Claims: which sweep computes which runs of a store, so that none is computed twice."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from uuid import uuid4

from gmed.engine import RunSpec
from gmed.results.store import Store

HEARTBEAT_SECONDS = 10.0
"""Seconds between two signs of life of a sweep."""

PROGRESS_SECONDS = 1.0
"""Seconds between two notes on how far runs have come, where they have."""

STALE_SECONDS = 60.0
"""Seconds without one after which a sweep on another machine counts as dead."""


LONGEST_NUMBER = 19
"""Digits in the number of a process."""


class SweepClaims:
    """A computation of runs into a store that others may be computing into too.

    What one sweep has claimed no other computes, as long as it lives. A sweep that was killed loses its claims: at
    once if it ran on this machine, after a minute without a sign of life elsewhere.

    Examples
    --------
    >>> with Store(":memory:") as store, SweepClaims(store) as sweep, SweepClaims(store) as other:
    ...     specs = [RunSpec.make("split-mnist", "er", seed) for seed in range(3)]
    ...     [len(sweep.claim(specs[:2])), len(other.claim(specs))]
    [2, 1]
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.host, self.process = this_host(), f"{this_process()} {uuid4().hex}"
        self._over = Event()
        self._told: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> SweepClaims:
        with self.store.explained("could not be changed"), self.store.transaction():
            self._register()
        if self.store.path != ":memory:":
            Thread(target=self._live, daemon=True).start()
        return self

    def _register(self) -> None:
        query = "INSERT INTO sweeps (host, process, seen, began) VALUES (?, ?, ?, ?)"
        now = time.time()
        self.number = self.store.database.execute(query, (self.host, self.process, now, now)).lastrowid

    def claim(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """Those of these runs that nobody else is computing: they are this sweep's now."""
        db = self.store.database
        with self.store.explained("could not be changed"), self.store.transaction():
            sweeps = [tuple(row) for row in db.execute("SELECT id, host, process, seen FROM sweeps")]
            if (self.number, self.process) not in {(number, process) for number, _, process, _ in sweeps}:
                self._register()  # somebody took this one for dead
            for number, host, process, seen in sweeps:
                if process != self.process and not alive(host, process, seen):
                    db.execute("DELETE FROM sweeps WHERE id = ? AND process = ?", (number, process))
            rows = [(spec.key, self.number) for spec in specs]
            db.executemany("INSERT OR IGNORE INTO claims (key, sweep) VALUES (?, ?)", rows)
            query = "SELECT key FROM claims WHERE sweep = ?"
            keys = {key for (key,) in db.execute(query, (self.number,))}
            ours = [spec for spec in specs if spec.key in keys]
            names = [(spec.key, self.number, spec.benchmark.name, spec.method.name, spec.seed) for spec in ours]
            query = "INSERT OR IGNORE INTO planned (key, sweep, benchmark, method, seed) VALUES (?, ?, ?, ?, ?)"
            db.executemany(query, names)
        return ours

    def tell(self, spec: RunSpec, seen: int, total: int) -> None:
        """Note how far a run has come, for whoever watches the store; written now and then, by another thread."""
        self._told[spec.key] = seen, total

    def _live(self) -> None:
        since = 0.0
        while not self._over.wait(PROGRESS_SECONDS):
            since += PROGRESS_SECONDS
            if not self._told and since < HEARTBEAT_SECONDS:
                continue
            told, self._told, since = self._told, {}, 0.0
            with suppress(sqlite3.Error), closing(sqlite3.connect(self.store.path, timeout=30)) as db, db:
                db.execute("PRAGMA synchronous = NORMAL")  # nothing is lost that the next note would not say
                db.execute("UPDATE sweeps SET seen = ? WHERE process = ?", (time.time(), self.process))
                rows = [(seen, total, key, self.number) for key, (seen, total) in told.items()]
                db.executemany("UPDATE planned SET seen = ?, total = ? WHERE key = ? AND sweep = ?", rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with suppress(sqlite3.Error), self.store.transaction():  # a claim that stays lapses with this process
            self.store.database.execute("DELETE FROM sweeps WHERE process = ?", (self.process,))


def this_host() -> str:
    """This machine, and where processes have numbers of their own (containers), that place on it."""
    try:
        place = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        place = ""
    return f"{socket.gethostname()} {place}".strip()


def this_process() -> str:
    """This process, told from all others that had or will have its number."""
    return f"{os.getpid()} {started(os.getpid())}"


def alive(host: str, process: str, seen: float) -> bool:
    """Whether a process that was seen then is still there, as far as can be told from here.

    A time more than a minute from now tells nothing, be it of the past or of the future: clocks agree better. What
    names no process is not there.
    """
    number, _, rest = process.partition(" ")
    since, _, _ = rest.partition(" ")
    if not number.isdecimal() or len(number) > LONGEST_NUMBER:
        return False
    if host == this_host() and since:
        return started(int(number)) == since
    return abs(time.time() - seen) < STALE_SECONDS


def started(process: int) -> str:
    """When a process started, in clock ticks since the machine did; empty where that cannot be told or it is gone."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *figures = text.rpartition(")")[2].split()
    return "" if state in "ZX" else figures[18]
