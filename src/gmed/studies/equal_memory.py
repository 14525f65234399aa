from __future__ import annotations

from gmed.results.metrics import Metrics
from gmed.studies.accuracy_table import AccuracyTable
from gmed.studies.study import Asked, Finding, Number

COUNTED_FOR = {"split-mnist-full": "split-mnist"}
"""Columns of ours that are another reading of one of the paper's."""


class EqualMemory(AccuracyTable):
    """Networks that grow and replay with as much memory: accuracies, and the memory that each took."""

    def carry_out(self, asked: Asked) -> Finding:  # type: ignore[override]
        table = super().carry_out(asked)
        found = Finding(self, asked.quick, table=table, missing=table.missing, failures=table.failures)
        for row in table.rows:
            cell = row.cell
            runs = [run for run in table.results.runs if (run.benchmark, run.method) == (cell.benchmark, cell.method)]
            metrics = [Metrics.of(run) for run in runs]
            theirs, *_ = self.published(
                COUNTED_FOR.get(cell.benchmark, cell.benchmark), "memory overhead in examples", cell.row
            )
            taken = [one.overhead for one in metrics]
            found.numbers += [
                Number.of(cell.benchmark, f"memory of {cell.method}, in examples", taken, theirs),
                Number.of(cell.benchmark, f"memory of {cell.method}, in MB", [one.overhead_mb for one in metrics]),
            ]
        found.notes.append("In examples: as the paper counts, a pixel being one byte. In MB: what it takes here.")
        return found
