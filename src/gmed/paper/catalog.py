"""Catalog of the paper's tables of accuracies that can be reproduced by name, and the comparisons of each."""

from __future__ import annotations

from dataclasses import dataclass

from gmed.engine import get_benchmark, resolve
from gmed.errors import unknown
from gmed.paper.published import PREVIOUS_BEST, Cell, table


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes
    ----------
    name, title
        Its name in this package, and its content.
    table
        Its name in the paper.
    levels
        The p-values below which the paper marks an improvement, the largest first.
    against
        The edit that GMED is compared with; by default every edited method is compared with its unedited base.
    best
        Whether the best edited method is compared with the best unedited one.
    pairs
        Additional comparisons: pairs of rows, by their names in the paper, the first compared with the second.
    """

    name: str
    title: str
    table: str
    levels: tuple[float, ...] = (0.05,)
    against: str | None = None
    best: bool = False
    pairs: tuple[tuple[str, str], ...] = ()

    def cells(self) -> list[Cell]:
        """Return the cells that an implemented method can fill, with methods named as in results."""
        cells = []
        for cell in table(self.table):
            if cell.method != PREVIOUS_BEST:
                name = resolve(get_benchmark(cell.benchmark), cell.method).name
                cells.append(Cell(cell.row, cell.benchmark, name, cell.published))
        return cells

    def baseline(self, benchmark: str, method: str) -> str | None:
        """Return the method that this one is compared with, if any."""
        resolved = resolve(get_benchmark(benchmark), method)
        if resolved.edit is None or (self.against is not None and resolved.edit.name != "gmed"):
            return None
        return resolved.baseline_name if self.against is None else f"{resolved.baseline_name}+{self.against}"


TARGETS = {
    target.name: target
    for target in (
        PaperTable("main", "final accuracy of every method on six data sets", "Table 1", (0.1, 0.05), best=True),
        PaperTable(
            "equal-memory",
            "growing networks, and replay with equal memory",
            "Table 2",
            pairs=tuple(("ER+GMED", baseline) for baseline in ("CN-DPM", "Prog. NN", "CompCL")),
        ),
        PaperTable("fuzzy-short", "fuzzy task boundaries, three data sets", "Table 3"),
        PaperTable(
            "ablation",
            "other edits, and more replay",
            "Table 4",
            against="adv-edit",
            pairs=(
                ("ER + GMED", "ER + Random Edit"),
                ("MIR + GMED", "MIR + Random Edit"),
                ("MIR+Extra 1 batch", "MIR"),
                ("MIR+Extra 2 batches", "MIR"),
                ("MIR + GMED", "MIR+Extra 1 batch"),
            ),
        ),
        PaperTable(
            "steps",
            "several edit steps",
            "Table 5",
            pairs=(("3-step Edit", "1-step Edit"), ("5-step Edit", "1-step Edit")),
        ),
        PaperTable(
            "gamma",
            "decay of the edit step size",
            "Table 7",
            pairs=tuple(
                (f"{base} + GMED_γ=1.0", f"{base} + GMED_γ={gamma}") for base in ("ER", "MIR") for gamma in (0.9, 0.99)
            ),
        ),
        PaperTable("er-t", "GMED on ER with tricks", "Table 8"),
        PaperTable("fuzzy", "fuzzy task boundaries, six data sets", "Table 9"),
        PaperTable("task-aware", "methods that are given the task", "Table 10"),
        PaperTable(
            "write-back",
            "edits that are not written back",
            "Table 11",
            pairs=(("ER + GMED", "ER + GMED w/o writeback"),),
        ),
        PaperTable("full-mnist", "Split MNIST with all examples", "Table 12", (0.1, 0.01)),
        PaperTable("memory", "memory sizes", "Table 13"),
        PaperTable("optimal", "edits that see the past", "Table 14", pairs=(("ER+Optimal Editing", "ER+GMED"),)),
        PaperTable(
            "extra",
            "editing additional examples",
            "Table 15",
            pairs=tuple((f"+ {extra} examples", "ER+GMED (10 examples)") for extra in (3, 5, 10, 50)),
        ),
        PaperTable("gss", "GMED on another memory", "Table 17"),
    )
}


def get_target(name: str) -> PaperTable:
    """Return the target of this name.

    >>> gamma = get_target("gamma")
    >>> gamma.baseline("split-mnist", "mir+gmed(gamma=0.9)"), gamma.baseline("split-mnist", "er")
    ('mir', None)
    >>> get_target("ablation").baseline("rotated-mnist", "er+gmed")
    'er+adv-edit'
    """
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    return TARGETS[name]
