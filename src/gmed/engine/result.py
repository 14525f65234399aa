"""The result of one run, in the form shared by files and processes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, NamedTuple, TypedDict

from gmed.io.records import GREATEST, Amount, Count, Range, RecordError, Share, encode
from gmed.learners import Learner

ROUNDING = 1e-9
"""Tolerance for rounding errors of the same mean."""


class PassesPerExample(TypedDict):
    """Examples passed through the model per example of the stream, forward and backward."""

    forward: Amount
    backward: Amount


class OverheadInUse(TypedDict):
    """Memory that the method used besides the plain network: in stored examples, as the paper counts, and in bytes."""

    examples: Amount
    bytes: Count


@dataclass(frozen=True)
class RunResult:
    """The result of one run.

    Attributes
    ----------
    method
        Its shortest name, with only those parameters that differ from the benchmark's defaults.
    accuracy
        ``accuracy[i][j]``: test accuracy on task j at the i-th point of evaluation, in 0 .. 1, among all classes and
        without task ids.
    final_accuracy
        The mean over tasks of the last row: the number the paper reports.
    pooled_accuracy
        The same, pooled over all test examples.
    steps
        Number of batches trained on.
    timings
        Seconds by stage: data, train, evaluate, and checkpoints if any were written; for runs trained together, the
        share of each run.
    environment
        The device and the versions of all software; on a GPU also how many runs were trained together and how; for
        a resumed run, the positions at which it was resumed.
    untrained
        Test accuracy on each task before the first step; null in results from before this was measured.
    passes
        Examples passed through the model per example of the stream, forward and backward; null in results from before
        they were counted.
    prequential
        The share of the stream that the learner's ``predict`` classified correctly before training on it; null unless
        requested.
    memory
        ``memory[i][c]``: number of examples of class c stored at the i-th point of evaluation; null for a method that
        stores none, and in results from before they were counted.
    overhead
        Memory that the method used besides the plain network, in stored examples, as the paper counts, and in bytes;
        null in results from before it was measured.
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
        """Raise an error if fields contradict each other.

        >>> RunResult("split-mnist", "er", 0, [[0.5, 0.7]], 0.9, 0.6, 500, {}, {}).validate()
        Traceback (most recent call last):
        gmed.io.records.RecordError: final_accuracy is 0.9, not the mean of the last row of accuracy
        """
        if len({len(row) for row in self.accuracy}) != 1 or not self.accuracy[-1]:
            raise RecordError(
                "must have the same number of tasks, at least one, at every point of evaluation", ".accuracy"
            )
        last = self.accuracy[-1]
        if abs(fmean(last) - self.final_accuracy) > ROUNDING:
            raise RecordError(f"is {self.final_accuracy}, not the mean of the last row of accuracy", ".final_accuracy")
        if not min(last) - ROUNDING <= self.pooled_accuracy <= max(last) + ROUNDING:
            raise RecordError(
                f"is {self.pooled_accuracy}, outside the range of the last row of accuracy", ".pooled_accuracy"
            )
        if self.untrained is not None and len(self.untrained) != len(last):
            raise RecordError("must have one accuracy for each task", ".untrained")
        if self.memory is not None and (
            len(self.memory) != len(self.accuracy) or len({len(counts) for counts in self.memory}) != 1
        ):
            raise RecordError(
                "must have one row for each point of evaluation, all with the same number of classes", ".memory"
            )


class MemoryFootprint(NamedTuple):
    """The memory that a method takes besides the network that plain training would use.

    Attributes
    ----------
    examples
        In examples, as the paper counts: the capacity of the memory, plus Δn added parameters as 4 Δn / (c h w + 1)
        examples, since a parameter takes four bytes, a pixel and a label one each.
    bytes
        The actual size: stored examples with everything stored about them, added parameters, and other state of the
        learner, such as the moments of its optimizer.
    """

    examples: float
    bytes: int

    @classmethod
    def of(cls, learner: Learner, to_float: int) -> MemoryFootprint:
        """Measure a learner in its present state, on examples with ``to_float`` pixels.

        >>> import torch, gmed
        >>> learner = gmed.learners.ER(gmed.models.MLP(), lr=0.1, memory=gmed.memory.Reservoir(2))
        >>> learner.observe(torch.rand(5, 1, 28, 28), torch.arange(5))
        >>> MemoryFootprint.of(learner, 784)  # a slot: 784 pixels of 4 bytes, 3 numbers of 8
        MemoryFootprint(examples=2.0, bytes=6328)
        """
        added, parameter = learner.extra_parameters(), next(learner.model.parameters())
        examples = learner.memory_size() + 4 * added / (to_float + 1)
        stored = [
            t
            for name, t in learner.state_dict().items()
            if name.startswith(("memory.", "own.", "extra.", "optimizer."))
        ]
        return cls(examples, sum(tensor.nbytes for tensor in stored) + added * parameter.itemsize)

    def to_dict(self) -> OverheadInUse:
        """Return it in the form that results store."""
        return {"examples": round(self.examples, 1), "bytes": self.bytes}
