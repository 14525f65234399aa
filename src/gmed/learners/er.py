from __future__ import annotations

from torch import Tensor, nn

from gmed.editing import Edit
from gmed.errors import UsageError, whole_number
from gmed.learners.learner import Learner
from gmed.memory import Memory
from gmed.retrieval import uniform


class ER(Learner):
    """Experience replay, and with ``editing`` Algorithm 1 of the paper (ER+GMED).

    Parameters
    ----------
    model, lr, seed
        As in :class:`~gmed.learners.Learner`.
    memory
        Where examples are kept, such as ``gmed.memory.Reservoir(500)``. It belongs to this learner.
    editing
        How drawn examples are changed before they are replayed and written back, such as
        ``gmed.editing.GMED(alpha=5.0, beta=0.01)``; by default they are replayed as stored.
    replay_size
        How many stored examples are replayed per step; all of them while fewer are stored.

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

    memory: Memory

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: Memory,
        editing: Edit | None = None,
        replay_size: int = 10,
        seed: int = 0,
    ) -> None:
        if memory is None:
            raise UsageError("experience replay needs a memory, such as gmed.memory.Reservoir(500)")
        super().__init__(model, lr=lr, memory=memory, seed=seed)
        self.editing = editing
        self.replay_size = whole_number("replay_size", replay_size)

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)  # θ' = SGD(ℓ_stream, θ, τ), once somebody asks for it

        drawn = uniform(self.memory, self.replay_size, self.random("replay"))  # (x_m, y_m) ~ M
        x_m, y_m, k = self.memory.x[drawn], self.memory.y[drawn], self.memory.age[drawn]
        if self.editing and len(drawn):
            # x_m ← x_m + γ^k α ∇_x (d - β ℓ_before)
            x_m = self.editing.edit(x_m, y_m, k, ahead, self.replay_size, self.random("editing"))

        self.descend(ahead, x_m, y_m)  # θ ← SGD(ℓ({(x_m, y_m), (x, y)}), θ, τ)

        if self.editing and len(drawn):
            self.memory.replace(drawn, x_m)
        self.memory.insert(x, y, self.random("reservoir"))
