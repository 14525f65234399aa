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
"""Seconds between two heartbeats of a sweep."""

PROGRESS_SECONDS = 1.0
"""Seconds between two writes of the progress of runs, where there was any."""

STALE_SECONDS = 60.0
"""Seconds without a heartbeat after which a sweep on another machine counts as dead."""

MAX_PID_DIGITS = 19
"""The most digits a process id can have."""


class SweepClaims:
    """A computation of runs into a store that other processes may be computing into too.

    As long as a sweep is alive, no other one computes the runs it has claimed. A sweep that was killed loses its
    claims: at once if it ran on this machine, otherwise after a minute without a heartbeat.

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
        self._stopped = Event()
        self._progress: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> SweepClaims:
        with self.store.wrap_errors("could not be changed"), self.store.transaction():
            self._register()
        if self.store.path != ":memory:":
            Thread(target=self._send_heartbeats, daemon=True).start()
        return self

    def _register(self) -> None:
        query = "INSERT INTO sweeps (host, process, seen, began) VALUES (?, ?, ?, ?)"
        now = time.time()
        self.number = self.store.database.execute(query, (self.host, self.process, now, now)).lastrowid

    def claim(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """Claim the runs that no other sweep is computing, and return them."""
        db = self.store.database
        with self.store.wrap_errors("could not be changed"), self.store.transaction():
            sweeps = [tuple(row) for row in db.execute("SELECT id, host, process, seen FROM sweeps")]
            if (self.number, self.process) not in {(number, process) for number, _, process, _ in sweeps}:
                self._register()  # another sweep took this one for dead
            for number, host, process, seen in sweeps:
                if process != self.process and not is_alive(host, process, seen):
                    db.execute("DELETE FROM sweeps WHERE id = ? AND process = ?", (number, process))
            rows = [(spec.key, self.number) for spec in specs]
            db.executemany("INSERT OR IGNORE INTO claims (key, sweep) VALUES (?, ?)", rows)
            query = "SELECT key FROM claims WHERE sweep = ?"
            keys = {key for (key,) in db.execute(query, (self.number,))}
            claimed = [spec for spec in specs if spec.key in keys]
            names = [(spec.key, self.number, spec.benchmark.name, spec.method.name, spec.seed) for spec in claimed]
            query = "INSERT OR IGNORE INTO planned (key, sweep, benchmark, method, seed) VALUES (?, ?, ?, ?, ?)"
            db.executemany(query, names)
        return claimed

    def report_progress(self, spec: RunSpec, seen: int, total: int) -> None:
        """Record the progress of a run for whoever watches the store; a thread writes it periodically."""
        self._progress[spec.key] = seen, total

    def _send_heartbeats(self) -> None:
        elapsed = 0.0
        while not self._stopped.wait(PROGRESS_SECONDS):
            elapsed += PROGRESS_SECONDS
            if not self._progress and elapsed < HEARTBEAT_SECONDS:
                continue
            progress, self._progress, elapsed = self._progress, {}, 0.0
            with suppress(sqlite3.Error), closing(sqlite3.connect(self.store.path, timeout=30)) as db, db:
                db.execute("PRAGMA synchronous = NORMAL")  # a lost update is repeated by the next one
                db.execute("UPDATE sweeps SET seen = ? WHERE process = ?", (time.time(), self.process))
                rows = [(seen, total, key, self.number) for key, (seen, total) in progress.items()]
                db.executemany("UPDATE planned SET seen = ?, total = ? WHERE key = ? AND sweep = ?", rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        with suppress(sqlite3.Error), self.store.transaction():  # a claim that is not deleted expires with this process
            self.store.database.execute("DELETE FROM sweeps WHERE process = ?", (self.process,))


def this_host() -> str:
    """Return the name of this machine and, in a container, of its process namespace."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {namespace}".strip()


def this_process() -> str:
    """Return the id of this process with its start time, which no other process shares."""
    return f"{os.getpid()} {process_start_time(os.getpid())}"


def is_alive(host: str, process: str, seen: float) -> bool:
    """Return whether a process that was last seen at that time is still running, as far as this one can tell.

    A process of another machine counts as dead when its last heartbeat is more than a minute from now, in the past or
    in the future. So does one whose id is invalid.
    """
    number, _, rest = process.partition(" ")
    since, _, _ = rest.partition(" ")
    if not number.isdecimal() or len(number) > MAX_PID_DIGITS:
        return False
    if host == this_host() and since:
        return process_start_time(int(number)) == since
    return abs(time.time() - seen) < STALE_SECONDS


def process_start_time(process: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if that is unknown or the process has ended."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
