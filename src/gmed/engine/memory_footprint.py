"""The memory that a learner needs besides a plain network."""

from __future__ import annotations

from typing import NamedTuple

from gmed.engine.result import OverheadInUse
from gmed.learners import Learner


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
