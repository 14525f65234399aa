"""Status of the sweeps that are computing into a store."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

from gmed.results.claims import is_alive
from gmed.results.store import Store, Timing


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
    """Return the sweeps that are computing into a store now, the oldest first.

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
    """Return how many runs of a sweep were stored since it began, finished or failed, whether it still runs or not."""
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
