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
    """Experience replay from a memory that keeps examples whose gradients differ (GSS-Greedy).

    After the update, a full memory considers the incoming batch only if its gradient points against those of random
    batches of stored examples, all of them; then each of its examples competes for a slot with the score it has against
    the same batches.

    Parameters
    ----------
    model
        As in :class:`~gmed.learners.ER`.
    updates_per_batch
        As in :class:`~gmed.learners.ER`; three, as its authors run it on MNIST.
    n_compare
        How many random batches of ``replay_size`` stored examples, no example in two of them, the incoming ones are
        compared with.
    **replay
        Everything else that :class:`~gmed.learners.replay.Replay` takes; the memory is a
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
        """One plus the largest cosine of each example's gradient with those of stored batches; for a batch that a full
        memory does not consider, infinity.
        """
        stored = self.memory_gradients()
        if not len(stored):
            return torch.ones(len(y), dtype=torch.float64, device=x.device)
        full = len(self.memory) == self.memory.capacity
        if full and float((stored @ normalized_gradient(self.model, x, y, self.criterion)).max()) >= 0:
            return torch.full((len(y),), torch.inf, dtype=torch.float64, device=x.device)
        rows = [normalized_gradient(self.model, x[i : i + 1], y[i : i + 1], self.criterion) for i in range(len(y))]
        each = torch.stack(rows)
        return 1 + (each @ stored.T).amax(1).double().nan_to_num(nan=1.0)  # unknown counts as redundant

    def memory_gradients(self) -> Tensor:
        """Directions of random batches of stored examples, one a row."""
        order = torch.from_numpy(self.random("compared").permutation(self.memory.occupied())).to(self.memory.y.device)
        batches = torch.split(order, self.replay_size)[: self.n_compare] if len(order) else ()
        m = self.memory
        rows = [normalized_gradient(self.model, m.x[slots], m.y[slots], self.criterion) for slots in batches]
        return torch.stack(rows) if rows else m.x.new_zeros(0, 0)


def normalized_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """The gradient of the mean loss of a batch, flat and of length 1; batch-norm and dropout as in evaluation."""
    with eval_mode(model):
        grads = gradient(loss(model(x), y), trainable(model))
    return normalize(torch.cat([g.flatten() for g in grads.values()]), dim=0)
