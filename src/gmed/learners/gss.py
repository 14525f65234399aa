"""Gradient-based sample selection, GSS-Greedy (Aljundi et al., 2019)."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from gmed.deprecated import old_hyperparameters
from gmed.errors import UsageError, check_int
from gmed.learners.er import ER
from gmed.learners.replay import ReplayOptions
from gmed.memory import GSSGreedy
from gmed.models import Loss, eval_mode, gradient, trainable
from gmed.registry import register


@register("gss", memory=GSSGreedy, summary="memory of examples whose gradients differ")
@old_hyperparameters(compared="n_compare")
class GSS(ER):
    """Experience replay from a memory of examples whose gradients differ (GSS-Greedy).

    After the update, a full memory considers the incoming batch only if its gradient has a negative cosine with those
    of all of several random batches of stored examples; then each of its examples competes for a slot, with its score
    against the same batches.

    Parameters
    ----------
    model
        As in :class:`~gmed.learners.ER`.
    updates_per_batch
        As in :class:`~gmed.learners.ER`; by default three, as in the authors' runs on MNIST.
    n_compare
        Number of disjoint random batches of ``replay_size`` stored examples that the incoming ones are compared with.
    **replay
        All other options of :class:`~gmed.learners.replay.Replay`; the memory must be a
        :class:`~gmed.memory.GSSGreedy`.

    References
    ----------
    Aljundi, Lin, Goujaud, Bengio, "Gradient based sample selection for online continual learning", NeurIPS 2019.
    """

    id = "GSS"
    parameter_ids: ClassVar = {"n_compare": "compared"}
    version = 2
    memory: GSSGreedy

    def __init__(
        self, model: nn.Module, *, updates_per_batch: int = 3, n_compare: int = 10, **replay: Unpack[ReplayOptions]
    ) -> None:
        if not isinstance(replay.get("memory"), GSSGreedy):
            raise UsageError(f"GSS needs a GSSGreedy memory, not {replay.get('memory')!r}")
        super().__init__(model, updates_per_batch=updates_per_batch, **replay)
        self.n_compare = check_int("n_compare", n_compare)

    def update_memory(self, x: Tensor, y: Tensor, **columns: Tensor) -> None:
        super().update_memory(x, y, score=self.scores(x, y), **columns)

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the score of each example: one plus the largest cosine of its gradient with those of stored batches.

        The scores of a batch that a full memory does not consider are infinite.
        """
        stored = self.memory_gradients()
        if not len(stored):
            return torch.ones(len(y), dtype=torch.float64, device=x.device)
        full = len(self.memory) == self.memory.capacity
        if full and float((stored @ normalized_gradient(self.model, x, y, self.criterion)).max()) >= 0:
            return torch.full((len(y),), torch.inf, dtype=torch.float64, device=x.device)
        rows = [normalized_gradient(self.model, x[i : i + 1], y[i : i + 1], self.criterion) for i in range(len(y))]
        incoming = torch.stack(rows)
        return 1 + (incoming @ stored.T).amax(1).double().nan_to_num(nan=1.0)  # undefined counts as redundant

    def memory_gradients(self) -> Tensor:
        """Return the normalized gradients of random batches of stored examples, one per row."""
        order = torch.from_numpy(self.random("compared").permutation(self.memory.occupied())).to(self.memory.y.device)
        batches = torch.split(order, self.replay_size)[: self.n_compare] if len(order) else ()
        m = self.memory
        rows = [normalized_gradient(self.model, m.x[slots], m.y[slots], self.criterion) for slots in batches]
        return torch.stack(rows) if rows else m.x.new_zeros(0, 0)


def normalized_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Return the gradient of the mean loss of a batch as a vector of norm 1, with the model in evaluation mode."""
    with eval_mode(model):
        grads = gradient(loss(model(x), y), trainable(model))
    return normalize(torch.cat([g.flatten() for g in grads.values()]), dim=0)
