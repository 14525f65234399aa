"""Sweeps under way, as a store shows them to others."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gmed.results.claims import alive
from gmed.results.store import Store, Timing


@dataclass(frozen=True)
class RunStatus:
    """A run that a sweep set out to compute.

    Attributes
    ----------
    done
        How much of its stream it has learned from, in 0 .. 1; 1 for one that has ended.
    accuracy
        The final accuracy of one that has finished.
    error
        Why one that has failed did.
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
    """A sweep that is alive.

    Attributes
    ----------
    host
        Where it runs.
    began
        When, in seconds since 1970.
    runs
        What it set out to compute.
    """

    host: str
    began: float
    runs: list[RunStatus]


def active_sweeps(store: Store) -> list[SweepStatus]:
    """The sweeps that compute into a store now, the oldest first.

    >>> from gmed.engine import RunSpec
    >>> from gmed.results import SweepClaims
    >>> with Store(":memory:") as store, SweepClaims(store) as sweep:
    ...     _ = sweep.claim([RunSpec.make("split-mnist", "er", 0)])
    ...     [(run.method, run.seed, run.done) for found in active_sweeps(store) for run in found.runs]
    [('er', 0, 0.0)]
    """
    query = """
        SELECT planned.*, claims.sweep AS claimed, runs.status, runs.final_accuracy, runs.error
        FROM planned LEFT JOIN claims ON claims.key = planned.key AND claims.sweep = planned.sweep
        LEFT JOIN runs ON runs.key = planned.key
        WHERE planned.sweep = ? ORDER BY planned.rowid
    """
    with store.explained("cannot be read"):
        sweeps = store.database.execute("SELECT * FROM sweeps ORDER BY began").fetchall()
        found = []
        for sweep in sweeps:
            if alive(sweep["host"], sweep["process"], sweep["seen"]):
                runs = [_run(row) for row in store.database.execute(query, (sweep["id"],))]
                found.append(SweepStatus(sweep["host"].split(" ")[0], sweep["began"], runs))
    return found


def _run(row: Mapping[str, object]) -> RunStatus:
    names = str(row["benchmark"]), str(row["method"]), int(str(row["seed"]))
    if row["claimed"] is not None:  # it has not ended, whatever the store has of an earlier time
        total = int(str(row["total"]))
        return RunStatus(*names, int(str(row["seen"])) / total if total else 0.0)
    if row["status"] == "finished":
        accuracy = row["final_accuracy"]  # which is read without the rest of the row, and may be damaged
        return RunStatus(*names, 1.0, accuracy=accuracy if isinstance(accuracy, float) else math.nan)
    return RunStatus(*names, 1.0, error=str(row["error"] or ""))


def estimate_remaining(sweep: SweepStatus, timings: Sequence[Timing], now: float | None = None) -> float | None:
    """About how long a sweep will take from now on, or ``None`` before that can be told.

    What is left takes as long, for its cost, as what has been done took. A run costs what the store knows runs of its
    method on its benchmark to have taken; one of which it knows nothing costs as the others do on average.

    >>> timings = [Timing("", "b", "quick", "cpu", 1.0), Timing("", "b", "slow", "cpu", 3.0)]
    >>> runs = [RunStatus("b", "quick", 0, 1.0, accuracy=0.9), RunStatus("b", "slow", 0, 0.0)]
    >>> estimate_remaining(SweepStatus("here", 100.0, runs), timings, now=110.0)
    30.0
    """
    known: dict[tuple[str, str], list[float]] = {}
    for timing in timings:
        known.setdefault((timing.benchmark, timing.method), []).append(timing.seconds)
    kinds = {(run.benchmark, run.method) for run in sweep.runs}
    means = {kind: fmean(known[kind]) for kind in kinds if kind in known}
    usual = fmean(means.values()) if means else 1.0
    cost = [means.get((run.benchmark, run.method), usual) for run in sweep.runs]
    done = sum(each * run.done for each, run in zip(cost, sweep.runs, strict=True))
    passed = (time.time() if now is None else now) - sweep.began
    return passed * (sum(cost) - done) / done if done > 0 and passed > 0 else None
