"""What one run found, as every file and every process has it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, TypedDict

from gmed.io.records import GREATEST, Amount, Count, Range, RecordError, Share, encode

ROUNDING = 1e-9
"""How far a mean may be from another computation of it."""


class PassesPerExample(TypedDict):
    """Examples that went through the model for every example of the stream, forward and back."""

    forward: Amount
    backward: Amount


class OverheadInUse(TypedDict):
    """Memory that the method took besides the plain network: in stored examples, as the paper counts, and in bytes."""

    examples: Amount
    bytes: Count


@dataclass(frozen=True)
class RunResult:
    """What one run found.

    Attributes
    ----------
    method
        Its shortest name: parameters appear where they differ from the benchmark's defaults.
    accuracy
        ``accuracy[i][j]``: test accuracy on task j at the i-th point of evaluation, in 0 .. 1. All classes
        compete; no task ids.
    final_accuracy
        The mean over tasks of the last row: the number the paper reports.
    pooled_accuracy
        The same over all test examples at once.
    steps
        Batches learned from.
    timings
        Seconds by stage: data, train, evaluate, and checkpoints where any were written; of runs computed together,
        each one's share.
    environment
        The device and the versions of everything that computed it; on a GPU how many runs were computed together and
        how, and of a resumed run where.
    untrained
        Test accuracy on each task before the first step; null in results from before it was measured.
    passes
        How many examples went through the model for every example of the stream, forward and backward; null in
        results from before they were counted.
    prequential
        The share of the stream that the learner's ``predict`` got right before it was learned from; null unless that
        was asked.
    memory
        ``memory[i][c]``: how many examples of class c were stored at the i-th point of evaluation; null where a method
        stores none, and in results from before they were counted.
    overhead
        The memory that the method took besides the plain network, in stored examples, as the paper counts, and in
        bytes; null in results from before it was counted.
    """

    benchmark: str
    method: str
    seed: Count
    accuracy: list[list[Share]]
    final_accuracy: Share
    pooled_accuracy: Share
    steps: Annotated[int, Range(1, GREATEST)]
    timings: dict[str, Amount]
    environment: dict[str, str]
    untrained: list[Share] | None = None
    passes: PassesPerExample | None = None
    prequential: Share | None = None
    memory: list[list[Count]] | None = None
    overhead: OverheadInUse | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return encode(self)

    def validate(self) -> None:
        """Refuse fields that do not agree.

        >>> RunResult("split-mnist", "er", 0, [[0.5, 0.7]], 0.9, 0.6, 500, {}, {}).validate()
        Traceback (most recent call last):
        gmed.io.records.RecordError: final_accuracy is 0.9, not the mean of its last accuracies
        """
        if len({len(row) for row in self.accuracy}) != 1 or not self.accuracy[-1]:
            raise RecordError("has another number of tasks at another point, or no point of evaluation", ".accuracy")
        last = self.accuracy[-1]
        if abs(fmean(last) - self.final_accuracy) > ROUNDING:
            raise RecordError(f"is {self.final_accuracy}, not the mean of its last accuracies", ".final_accuracy")
        if not min(last) - ROUNDING <= self.pooled_accuracy <= max(last) + ROUNDING:
            raise RecordError(f"is {self.pooled_accuracy}, outside its last accuracies", ".pooled_accuracy")
        if self.untrained is not None and len(self.untrained) != len(last):
            raise RecordError("has another number of tasks untrained", ".untrained")
        if self.memory is not None and (
            len(self.memory) != len(self.accuracy) or len({len(counts) for counts in self.memory}) != 1
        ):
            raise RecordError("has counts for other classes or points of evaluation", ".memory")
