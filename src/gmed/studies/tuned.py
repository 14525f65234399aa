from __future__ import annotations

import math
from dataclasses import replace

from gmed.engine import TUNING
from gmed.errors import UsageError, unknown
from gmed.experiment import default_store
from gmed.plan import SIX, Planned, compute
from gmed.results import Store
from gmed.results.tuning import GRIDS, candidates, scores
from gmed.studies.study import Asked, Finding, Number, Study

ROWS = {"er+gmed": "er+gmed, mir+gmed, gem+gmed", "er-aug+gmed": "er-aug+gmed"}
SEEDS = 5
"""At which ``gmed tune`` tries every candidate unless told otherwise."""


class Tuned(Study):
    """The hyper-parameters that ``gmed tune`` chooses: it tries what the store does not have yet."""

    name = "tuned"
    title = "alpha and beta that gmed tune chooses"
    where = "Table 6"

    def plan(self) -> list[Planned]:
        return [
            Planned(benchmark + TUNING, candidate, SEEDS)
            for benchmark in SIX
            for method in ROWS
            for candidate in candidates(benchmark, method).values()
        ]

    def carry_out(self, asked: Asked) -> Finding:
        for name in asked.benchmarks:
            if name not in SIX:
                raise unknown(f"column of {self.where}:", name, SIX)
        if asked.how.get("store", "") is None:
            raise UsageError(f"{self.name} keeps what it tries in a store; give one")
        chosen = self.chosen(replace(asked, benchmarks=[name + TUNING for name in asked.benchmarks]))
        results = compute(chosen.planned, asked.watcher, **asked.how)
        missing = {name.removesuffix(TUNING): why for name, why in chosen.missing.items()}
        found = Finding(self, asked.quick, missing=missing, failures=results.failures)
        with Store(asked.how.get("store") or default_store()) as store:
            for benchmark in chosen.benchmarks:
                for method in ROWS:
                    try:
                        found.numbers += self.numbers(store, benchmark.removesuffix(TUNING), method)
                    except UsageError as error:  # a candidate failed at every seed
                        found.notes.append(str(error))
        found.notes.append("The best of the paper's grid on held-out examples of the first three tasks; n: seeds.")
        return found

    def numbers(self, store: Store, benchmark: str, method: str) -> list[Number]:
        """Each hyper-parameter of a method on one benchmark."""
        names = tuple(GRIDS["gmed"])
        means, seeds = scores(store, benchmark, method)
        best = max(means, key=lambda point: means[point])
        published = [self.published(benchmark, name, ROWS[method])[0] for name in names]
        return [
            Number(benchmark, f"{name} of {method}", seeds, ours, math.nan, theirs)
            for name, ours, theirs in zip(names, best, published, strict=True)
        ]
