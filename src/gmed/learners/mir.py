"""Maximally interfered retrieval (Aljundi et al., 2019)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn

from gmed.deprecated import old_hyperparameters
from gmed.errors import check_int
from gmed.learners.replay import EditedReplayOptions, Replay
from gmed.memory import Reservoir
from gmed.models import LookAhead
from gmed.registry import register
from gmed.retrieval import most_interfered


@register(
    "mir",
    memory=Reservoir,
    summary="replays examples the incoming batch would harm most",
    on_benchmarks={"split-mini-imagenet": {"subsample": 25}},
)
@old_hyperparameters(candidates="subsample")
class MIR(Replay):
    """Maximally interfered retrieval, and with ``editing`` Algorithm 3 of the paper (MIR+GMED).

    It replays the stored examples whose loss the incoming batch would increase most. The edit is applied to examples
    drawn independently, so that retrieval and editing do not influence each other; retrieved examples are not edited.

    Parameters
    ----------
    model
        As in :class:`~gmed.learners.replay.Replay`.
    subsample
        Number of stored examples that are scored to select those to replay.
    extra_batches
        Number of further batches that are retrieved in the same way, each from new candidates, and replayed too.
    **replay
        All other options of :class:`~gmed.learners.replay.Replay` except ``retrieval``.

    References
    ----------
    Aljundi et al., "Online continual learning with maximally interfered retrieval", NeurIPS 2019.
    """

    id = "MIR"
    parameter_ids: ClassVar = {"subsample": "candidates"}
    capturable = True

    def __init__(
        self,
        model: nn.Module,
        *,
        subsample: int = 50,
        extra_batches: int = 0,
        **replay: Unpack[EditedReplayOptions],
    ) -> None:
        super().__init__(model, **replay)
        self.subsample = check_int("subsample", subsample)
        self.extra_batches = check_int("extra_batches", extra_batches, minimum=0)

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)  # θ', for the edit and for retrieval
        edited = self.edit(self.sample("edited"), ahead)  # (x_e, y_e) ~ M
        retrieved = torch.cat([self.retrieve_interfered(ahead, batch) for batch in range(1 + self.extra_batches)])
        x_m, y_m = self.memory.examples(retrieved)

        self.sgd_step(ahead, x_m, y_m, retrieved)
        self.write_back(edited)
        self.update_memory(x, y)

    def retrieve_interfered(self, ahead: LookAhead, batch: int) -> Tensor:
        """Return the slots of (x_m, y_m) ← MIR-retrieve(M, θ)."""
        candidates = self.sample_memory(self.subsample, f"candidates {batch}")
        return most_interfered(self.memory, candidates, self.replay_size, ahead)
