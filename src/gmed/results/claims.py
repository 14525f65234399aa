"""Sweeps that write into a store: which sweep has claimed which run, so that none is done twice, and their progress."""

from __future__ import annotations

import math
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from types import TracebackType
from uuid import uuid4

from gmed.engine import RunSpec
from gmed.results.store import Store, Timing

HEARTBEAT_SECONDS = 10.0
"""Seconds between two heartbeats of a sweep."""

PROGRESS_SECONDS = 1.0
"""Seconds between two writes of the progress of runs, if there was any."""

STALE_SECONDS = 60.0
"""Seconds without a heartbeat after which a sweep on another machine counts as dead."""

MAX_PID_DIGITS = 19
"""The most digits a process id can have."""


class SweepClaims:
    """A sweep that writes runs into a store, which other sweeps may be using at the same time.

    As long as a sweep is alive, no other one executes the runs it has claimed. A sweep that was killed loses its
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
        """Claim the runs that no other sweep has claimed, and return them."""
        db = self.store.database
        with self.store.wrap_errors("could not be changed"), self.store.transaction():
            sweeps = [tuple(row) for row in db.execute("SELECT id, host, process, seen FROM sweeps")]
            if (self.number, self.process) not in {(number, process) for number, _, process, _ in sweeps}:
                self._register()  # another sweep has declared this one dead
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
        """Record the progress of a run for gmed watch; a thread writes it periodically."""
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


@dataclass(frozen=True)
class RunStatus:
    """A run of a sweep, with its progress.

    Attributes
    ----------
    done
        The share of its stream that it has learned from, in 0 .. 1; 1 for a run that has ended.
    accuracy
        The final accuracy, if it has finished.
    error
        The error, if it has failed.
    """

    benchmark: str
    method: str
    seed: int
    done: float
    accuracy: float | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.accuracy is not None or self.error is not None


@dataclass(frozen=True)
class SweepStatus:
    """A sweep that is running.

    Attributes
    ----------
    host
        The machine it runs on.
    began
        When it began, in seconds since 1970.
    runs
        Its planned runs.
    """

    host: str
    began: float
    runs: list[RunStatus]


def active_sweeps(store: Store) -> list[SweepStatus]:
    """Return the sweeps that are now running on a store, the oldest first.

    >>> from gmed.engine import RunSpec
    >>> from gmed.results import SweepClaims
    >>> with Store(":memory:") as store, SweepClaims(store) as sweep:
    ...     _ = sweep.claim([RunSpec.make("split-mnist", "er", 0)])
    ...     [(run.method, run.seed, run.done) for status in active_sweeps(store) for run in status.runs]
    [('er', 0, 0.0)]
    """
    query = """
        SELECT planned.*, claims.sweep AS claimed, runs.status, runs.final_accuracy, runs.error
        FROM planned LEFT JOIN claims ON claims.key = planned.key AND claims.sweep = planned.sweep
        LEFT JOIN runs ON runs.key = planned.key
        WHERE planned.sweep = ? ORDER BY planned.rowid
    """
    with store.wrap_errors("cannot be read"):
        sweeps = store.database.execute("SELECT * FROM sweeps ORDER BY began").fetchall()
        active = []
        for sweep in sweeps:
            if is_alive(sweep["host"], sweep["process"], sweep["seen"]):
                runs = [_run_status(row) for row in store.database.execute(query, (sweep["id"],))]
                active.append(SweepStatus(sweep["host"].split(" ")[0], sweep["began"], runs))
    return active


def count_ended(store: Store, sweep: SweepStatus) -> int:
    """Return the number of runs of a sweep that finished or failed since it began; it may have ended."""
    began = datetime.fromtimestamp(int(sweep.began), UTC).isoformat(timespec="seconds")
    query = """
        SELECT count(DISTINCT key) FROM runs WHERE benchmark = ? AND method = ? AND seed = ? AND recorded >= ?
    """
    with store.wrap_errors("cannot be read"):
        counts = [
            store.database.execute(query, (run.benchmark, run.method, run.seed, began)).fetchone()[0]
            for run in sweep.runs
        ]
    return sum(counts)


def _run_status(row: Mapping[str, object]) -> RunStatus:
    identity = str(row["benchmark"]), str(row["method"]), int(str(row["seed"]))
    if row["claimed"] is not None:  # still running, whatever the store has from before
        total = int(str(row["total"]))
        return RunStatus(*identity, int(str(row["seen"])) / total if total else 0.0)
    if row["status"] == "finished":
        accuracy = row["final_accuracy"]  # not validated with the rest of the row, so it may be damaged
        return RunStatus(*identity, 1.0, accuracy=accuracy if isinstance(accuracy, float) else math.nan)
    return RunStatus(*identity, 1.0, error=str(row["error"] or ""))


def estimate_remaining(sweep: SweepStatus, timings: Sequence[Timing], now: float | None = None) -> float | None:
    """Estimate the remaining seconds of a sweep; return ``None`` while that is impossible.

    The rest is assumed to advance at the average speed so far. The cost of a run is the mean time of stored runs of its
    method on its benchmark, or the mean cost of the other runs where there are none.

    >>> timings = [Timing("", "b", "quick", "cpu", 1.0), Timing("", "b", "slow", "cpu", 3.0)]
    >>> runs = [RunStatus("b", "quick", 0, 1.0, accuracy=0.9), RunStatus("b", "slow", 0, 0.0)]
    >>> estimate_remaining(SweepStatus("here", 100.0, runs), timings, now=110.0)
    30.0
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    for timing in timings:
        seconds.setdefault((timing.benchmark, timing.method), []).append(timing.seconds)
    pairs = {(run.benchmark, run.method) for run in sweep.runs}
    means = {pair: fmean(seconds[pair]) for pair in pairs if pair in seconds}
    default = fmean(means.values()) if means else 1.0
    cost = [means.get((run.benchmark, run.method), default) for run in sweep.runs]
    done = sum(weight * run.done for weight, run in zip(cost, sweep.runs, strict=True))
    elapsed = (time.time() if now is None else now) - sweep.began
    return elapsed * (sum(cost) - done) / done if done > 0 and elapsed > 0 else None
