from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_hyperparameters
from gmed.errors import UsageError, check_int
from gmed.learners.base import Learner
from gmed.learners.optimizer import MakeOptimizer
from gmed.memory import Memory, Reservoir
from gmed.models import Loss, gradient, trainable
from gmed.registry import register


@register("agem", memory=Reservoir, summary="stream gradient, never against the memory's")
@old_hyperparameters(references="ref_batch_size")
class AGEM(Learner):
    """Averaged gradient episodic memory: learn from the stream alone, but never against the memory.

    The stream's gradient g is followed as it is where it does not raise the mean loss of some stored examples
    (g · g_ref >= 0), and otherwise without its part along g_ref.

    Parameters
    ----------
    model, lr, memory, criterion, optimizer, seed
        As in :class:`~gmed.learners.Learner`.
    ref_batch_size
        How many stored examples g_ref is computed on.

    References
    ----------
    Chaudhry, Ranzato, Rohrbach, Elhoseiny, "Efficient lifelong learning with A-GEM", ICLR 2019.
    """

    id = "AGEM"
    parameter_ids: ClassVar = {"ref_batch_size": "references"}
    capturable = True

    memory: Memory

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: Memory,
        ref_batch_size: int = 256,
        criterion: Loss = cross_entropy,
        optimizer: MakeOptimizer | None = None,
        seed: int = 0,
    ) -> None:
        if memory is None:
            raise UsageError("A-GEM needs a memory, such as gmed.memory.Reservoir(500)")
        super().__init__(model, lr=lr, memory=memory, criterion=criterion, optimizer=optimizer, seed=seed)
        self.ref_batch_size = check_int("ref_batch_size", ref_batch_size)

    def step(self, x: Tensor, y: Tensor) -> None:
        parameters = trainable(self.model)
        loss = self.loss(self._stream_batch(x, y, self.model(x)), None)
        grads = gradient(loss, parameters)
        drawn = self.sample_memory(self.ref_batch_size, "references")
        if len(drawn):
            ahead = self.look_ahead(self.memory.x[drawn], self.memory.y[drawn])
            grads = project(grads, dict(ahead.stream_gradient))
        self.apply_gradients(grads, loss)
        self.add_to_memory(x, y)


def project(g: dict[str, Tensor], g_ref: dict[str, Tensor]) -> dict[str, Tensor]:
    """G where it agrees with g_ref, else g - (g · g_ref / g_ref · g_ref) g_ref.

    >>> project({"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([0.0, 1.0])})
    {'w': tensor([1., 0.])}
    >>> project({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.0, 1.0])})
    {'w': tensor([1., 2.])}
    """
    along = torch.stack([(g[name] * g_ref[name]).sum() for name in g]).sum()
    length = torch.stack([(g_ref[name] ** 2).sum() for name in g]).sum()
    part = torch.where((along < 0) & (length > 0), along / length, torch.zeros_like(along))
    return {name: g[name] - part * g_ref[name] for name in g}
