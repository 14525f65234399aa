"""What a learner keeps beyond a plain network."""

from __future__ import annotations

from typing import NamedTuple

from gmed.engine.result import OverheadInUse
from gmed.learners import Learner


class MemoryFootprint(NamedTuple):
    """The memory that a method takes besides the network that plain training would use.

    Attributes
    ----------
    examples
        As the paper counts: examples that there is room for, and added parameters as so many more, of four bytes each
        where a pixel and a label are one: 4 Δn / (c h w + 1).
    bytes
        What all of it takes in truth: stored examples with all that is kept of them, added parameters, and whatever
        else the learner keeps, such as the moments of its optimiser.
    """

    examples: float
    bytes: int

    @classmethod
    def of(cls, learner: Learner, to_float: int) -> MemoryFootprint:
        """Of a learner as it is now, whose examples have so many pixels.

        >>> import torch, gmed
        >>> learner = gmed.learners.ER(gmed.models.MLP(), lr=0.1, memory=gmed.memory.Reservoir(2))
        >>> learner.observe(torch.rand(5, 1, 28, 28), torch.arange(5))
        >>> MemoryFootprint.of(learner, 784)  # a slot: 784 pixels of 4 bytes, 3 numbers of 8
        Overhead(examples=2.0, bytes=6328)
        """
        added, like = learner.extra_parameters(), next(learner.model.parameters())
        examples = learner.memory_size() + 4 * added / (to_float + 1)
        kept = [
            *learner.get_extra_state().values(),
            *learner.extra_state().values(),
            *(learner.memory.state_dict().values() if learner.memory is not None else ()),
        ]
        return cls(examples, sum(tensor.nbytes for tensor in kept) + added * like.itemsize)

    def to_dict(self) -> OverheadInUse:
        """As results carry it."""
        return {"examples": round(self.examples, 1), "bytes": self.bytes}
