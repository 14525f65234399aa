from __future__ import annotations

from torch import Tensor, nn

from gmed.editing import Edit
from gmed.errors import whole_number
from gmed.learners.replay import Replay
from gmed.memory import Memory
from gmed.retrieval import Retrieval


class ER(Replay):
    """Experience replay, and with ``editing`` Algorithm 1 of the paper (ER+GMED).

    Parameters
    ----------
    model, lr, memory, editing, replay_size, retrieval, seed
        As in :class:`~gmed.learners.replay.Replay`.
    updates_per_batch
        Updates made on each incoming batch; the replayed examples are drawn anew for each, and edited for the
        first alone.

    Examples
    --------
    Any iterator of batches will do; there are no task ids.

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

    foreseeable = True

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: Memory,
        editing: Edit | None = None,
        replay_size: int = 10,
        retrieval: Retrieval | None = None,
        updates_per_batch: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model, lr=lr, memory=memory, editing=editing, replay_size=replay_size, retrieval=retrieval, seed=seed
        )
        self.updates_per_batch = whole_number("updates_per_batch", updates_per_batch)

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)  # θ' = SGD(ℓ_stream, θ, τ), once somebody asks for it
        drawn = self.retrieved(ahead)  # (x_m, y_m) ~ M
        edited = self.edit(drawn, ahead)  # x_m ← x_m + γ^k α ∇_x (d - β ℓ_before)
        x_m, y_m = edited.x[: len(drawn)], self.memory.y[drawn]

        self.descend(ahead, x_m, y_m)  # θ ← SGD(ℓ({(x_m, y_m), (x, y)}), θ, τ)
        self.write_back(edited)  # replace (x_m, y_m) in M

        for again in range(1, self.updates_per_batch):
            ahead = self.look_ahead(x, y)
            drawn = self.retrieved(ahead, f"replay {again}")
            self.descend(ahead, self.memory.x[drawn], self.memory.y[drawn])
        self.remember(x, y)  # reservoir_update(x, y, M)
