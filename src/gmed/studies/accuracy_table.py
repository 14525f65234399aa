from __future__ import annotations

from gmed.paper.targets import Target
from gmed.plan import Planned
from gmed.reproduce import Reproduction, planned, reproduce
from gmed.studies.study import Asked, Study


class AccuracyTable(Study):
    """A table of accuracies.

    >>> from gmed.paper.targets import get_target
    >>> AccuracyTable(get_target("gss")).where
    'Table 17'
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name, self.title, self.where = target.name, target.title, target.table

    def plan(self) -> list[Planned]:
        return planned(self.target)

    def carry_out(self, asked: Asked) -> Reproduction:
        return reproduce(
            self.name,
            benchmarks=asked.benchmarks,
            seeds=asked.seeds,
            quick=asked.quick,
            watcher=asked.watcher,
            **asked.how,
        )
