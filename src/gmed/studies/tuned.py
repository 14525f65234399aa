from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from gmed.engine import TUNING
from gmed.errors import UsageError, unknown
from gmed.experiment import default_store
from gmed.plan import SIX, Planned
from gmed.results import Store
from gmed.results.tuning import GRIDS, candidates, scores
from gmed.studies.study import Asked, Finding, Number, Study

ROWS = {"er+gmed": "er+gmed, mir+gmed, gem+gmed", "er-aug+gmed": "er-aug+gmed"}
SEEDS = 5
"""At which ``gmed tune`` tries every candidate unless told otherwise."""


class Tuned(Study):
    """The hyper-parameters that ``gmed tune`` chose, as far as the store has what it tried; nothing is computed."""

    name = "tuned"
    title = "alpha and beta that gmed tune chose"
    where = "Table 6"

    def plan(self) -> list[Planned]:
        return [
            Planned(benchmark + TUNING, candidate, SEEDS)
            for benchmark in SIX
            for method in ROWS
            for candidate in candidates(benchmark, method).values()
        ]

    def carry_out(self, asked: Asked) -> Finding:
        if asked.quick or asked.seeds:
            raise UsageError(f"{self.name} reads what gmed tune tried; leave out --seeds and --quick")
        for name in asked.benchmarks:
            if name not in SIX:
                raise unknown(f"column of {self.where}:", name, SIX)
        found, path = Finding(self), asked.how.get("store") or default_store()
        with Store(path if Path(path).exists() else ":memory:") as store:
            for benchmark in asked.benchmarks or SIX:
                for method in ROWS:
                    found.numbers += self.numbers(store, benchmark, method)
        if any(number.n == 0 for number in found.numbers):
            found.notes.append("- not tuned yet: gmed tune BENCHMARK METHOD")
        return found

    def numbers(self, store: Store, benchmark: str, method: str) -> list[Number]:
        """Each hyper-parameter of a method on one benchmark; not a number, of no seeds, where it was not tuned."""
        names, seeds = tuple(GRIDS["gmed"]), 0
        best: tuple[float, ...] = (math.nan,) * len(names)
        with suppress(UsageError):  # it has not been tuned
            means, seeds = scores(store, benchmark, method)
            best = max(means, key=lambda point: means[point])
        published = [self.published(benchmark, name, ROWS[method])[0] for name in names]
        return [
            Number(benchmark, f"{name} of {method}", seeds, ours, math.nan, theirs)
            for name, ours, theirs in zip(names, best, published, strict=True)
        ]
