from __future__ import annotations

from typing import ClassVar

from gmed.paper.analysis import prediction_change
from gmed.plan import Planned
from gmed.studies.study import Asked, Finding, Number, Study
from gmed.studies.watched_runs import watched

BENCHMARKS = ("split-mnist", "rotated-mnist", "split-cifar10", "split-mini-imagenet")
RATE = "prediction change in %"


class PredictionChange(Study):
    """How many stored examples are classified otherwise than they were before they were edited."""

    name = "prediction-change"
    title = "predictions that the edits change"
    where = "Table 16"
    observes: ClassVar[str] = "prediction-change-1"

    def plan(self) -> list[Planned]:
        return [Planned(benchmark, "er+gmed") for benchmark in BENCHMARKS]

    def carry_out(self, asked: Asked) -> Finding:
        chosen = self.chosen(asked)
        found = Finding(self, asked.quick, missing=chosen.missing)
        for one in chosen.planned:
            rates = [100 * share for share in watched(prediction_change, one, asked, keep_as=self.observes)]
            found.numbers.append(Number.of(one.benchmark, RATE, rates, *self.published(one.benchmark, RATE)))
        found.notes.append("Of all examples in memory after training; the paper does not say over how many runs.")
        return found
