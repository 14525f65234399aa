from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch

from gmed.errors import UsageError
from gmed.paper.analysis import EditedMemory, edited_memory
from gmed.plan import Planned
from gmed.studies.charts import Record
from gmed.studies.figure import Figure
from gmed.studies.study import Asked, Finding
from gmed.studies.watched_runs import watched

LABELS = (0, 1, 2, 3)
"""The classes of the first two tasks of Split MNIST."""


class EditedMemoryFigure(Figure):
    """A figure of what ER+GMED has in memory after one run, of the first two tasks; there is no smaller version."""

    stored: ClassVar[bool] = False

    def plan(self) -> list[Planned]:
        return [Planned("split-mnist", "er+gmed", seeds=1)]

    def carry_out(self, asked: Asked) -> Finding:
        if asked.seeds not in (None, 1):
            raise UsageError(f"{self.where} shows the memory of one run; leave out --seeds")
        return super().carry_out(replace(asked, seeds=1, quick=False))

    def find(self, asked: Asked) -> tuple[Finding, list[Record]]:
        (one,) = self.chosen(asked).planned
        (memory,) = watched(edited_memory, one, asked)
        return self.look_into(edited_examples(memory, LABELS))

    @abstractmethod
    def look_into(self, memory: EditedMemory) -> tuple[Finding, list[Record]]:
        """What is found in these examples, and all that is drawn of it."""


def edited_examples(memory: EditedMemory, labels: tuple[int, ...]) -> EditedMemory:
    """The examples with these labels that were edited at least once.

    >>> label, edit_count = torch.tensor([0, 7, 1, 0]), torch.tensor([1, 5, 2, 0])
    >>> memory = EditedMemory(torch.zeros(4, 1), torch.ones(4, 1), label, edit_count, torch.arange(4))
    >>> edited_examples(memory, (0, 1)).stream_index
    tensor([0, 2])
    """
    wanted = torch.isin(memory.label, torch.tensor(labels)) & (memory.edit_count > 0)
    return EditedMemory(*(column[wanted] for column in memory))
