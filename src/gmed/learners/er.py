"""Experience replay."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from gmed.errors import check_int
from gmed.learners.replay import Replay, ReplayOptions
from gmed.memory import Reservoir
from gmed.registry import register


@register("er", memory=Reservoir, summary="experience replay from a reservoir")
class ER(Replay):
    """Experience replay, and with ``editing`` Algorithm 1 of the paper (ER+GMED): :meth:`Replay.step`.

    Parameters
    ----------
    model
        As in :class:`~gmed.learners.replay.Replay`.
    updates_per_batch
        Number of updates on each incoming batch. Each replays a new draw; only that of the first is edited.
    **replay
        All other options of :class:`~gmed.learners.replay.Replay`.

    Examples
    --------
    Any iterator of batches works; there are no task ids.

    >>> import torch, gmed
    >>> learner = gmed.learners.ER(gmed.models.MLP(), lr=0.05, memory=gmed.memory.Reservoir(500), seed=0)
    >>> for _ in range(3):
    ...     learner.observe(torch.rand(10, 1, 28, 28), torch.randint(10, (10,)))
    >>> len(learner.memory)
    30

    References
    ----------
    Robins, "Catastrophic forgetting, rehearsal and pseudorehearsal", Connection Science 7(2), 1995.
    Rolnick et al., "Experience replay for continual learning", NeurIPS 2019.
    """

    id = "ER"
    capturable = True

    def __init__(self, model: nn.Module, *, updates_per_batch: int = 1, **replay: Unpack[ReplayOptions]) -> None:
        super().__init__(model, **replay)
        self.updates_per_batch = check_int("updates_per_batch", updates_per_batch)
        self.restores_parameters = self.updates_per_batch > 1
