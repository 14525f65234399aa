"""Averaged gradient episodic memory (Chaudhry et al., 2019)."""

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
from gmed.models import Loss, gradient
from gmed.registry import register


@register("agem", memory=Reservoir, summary="stream gradient, projected to protect the memory")
@old_hyperparameters(references="ref_batch_size")
class AGEM(Learner):
    """Averaged gradient episodic memory: learn from the stream alone, but not against the gradient of the memory.

    The update follows the stream's gradient g if that does not increase the mean loss of a batch of stored examples
    (g · g_ref >= 0), and otherwise g without its component along g_ref.

    Parameters
    ----------
    model, lr, memory, criterion, optimizer, seed
        As in :class:`~gmed.learners.Learner`.
    ref_batch_size
        Number of stored examples on which g_ref is computed.

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
            raise UsageError("A-GEM needs a memory such as gmed.memory.Reservoir(500)")
        super().__init__(model, lr=lr, memory=memory, criterion=criterion, optimizer=optimizer, seed=seed)
        self.ref_batch_size = check_int("ref_batch_size", ref_batch_size)

    def step(self, x: Tensor, y: Tensor) -> None:
        parameters = self.model_info.parameters
        loss = self.loss(self._stream_batch(x, y, self.model(x)), None)
        grads = gradient(loss, parameters)
        drawn = self.sample_memory(self.ref_batch_size, "references")
        if len(drawn):
            ahead = self.look_ahead(*self.memory.examples(drawn))
            grads = project(grads, dict(ahead.stream_gradient))
        self.apply_gradients(grads, loss)
        self.add_to_memory(x, y)


def project(g: dict[str, Tensor], g_ref: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return g if g · g_ref >= 0, else g - (g · g_ref / g_ref · g_ref) g_ref.

    >>> project({"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([0.0, 1.0])})
    {'w': tensor([1., 0.])}
    >>> project({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.0, 1.0])})
    {'w': tensor([1., 2.])}
    """
    dot = torch.stack([(g[name] * g_ref[name]).sum() for name in g]).sum()
    squared_norm = torch.stack([(g_ref[name] ** 2).sum() for name in g]).sum()
    coefficient = torch.where((dot < 0) & (squared_norm > 0), dot / squared_norm, torch.zeros_like(dot))
    return {name: g[name] - coefficient * g_ref[name] for name in g}
