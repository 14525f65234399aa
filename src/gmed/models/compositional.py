"""Compositional networks: components shared by tasks (Mendez and Eaton, ICLR 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gmed.models.components import components, mean_log_probs, reinitialized
from gmed.models.introspection import deterministic


@deterministic
class CompositionalNet(nn.Module):
    """A network whose layers have several components each, and for every task weights of them.

    What a layer gives for a task is the sum of what its components give, weighted by a softmax over those that were
    there when the task was new.

    Parameters
    ----------
    model
        The network that it begins with.
    freeze_old
        Whether components are frozen once another one is added.

    Examples
    --------
    >>> from gmed.models import MLP
    >>> compositions = CompositionalNet(MLP())
    >>> compositions.add()
    >>> compositions.structure[1].shape  # three layers, two components
    torch.Size([3, 2])
    >>> compositions(torch.zeros(3, 1, 28, 28), task=1).shape
    torch.Size([3, 10])
    """

    def __init__(self, model: nn.Module, freeze_old: bool = True) -> None:
        super().__init__()
        self.freeze_old = freeze_old
        self.layers = nn.ModuleList([nn.ModuleList([component]) for component in components(model)])
        self.structure = nn.ParameterList([self._even(1)])

    def add(self) -> None:
        """A further task, with a component of its own in every layer."""
        for layer in self._pools():
            layer.append(reinitialized(layer[0]))
        self.structure.append(self._even(len(self.structure) + 1))
        self._freeze()

    def truncate(self, tasks: int) -> None:
        """Only the first so many."""
        for layer in self._pools():
            del layer[tasks:]
        self.structure = nn.ParameterList(list(self.structure)[:tasks])
        self._freeze()

    def forward(self, x: Tensor, task: int | None = None) -> Tensor:
        """The logits of one task's network or, if none is named, of the mean of all their probabilities."""
        if task is None:
            return mean_log_probs([self._of(x, number) for number in range(len(self.structure))])
        return self._of(x, task)

    def _of(self, h: Tensor, task: int) -> Tensor:
        weights = torch.softmax(self.structure[task], 1)
        for level, layer in enumerate(self._pools()):
            given = [component(h) for component in layer[: task + 1]]
            h = torch.stack([weight * part for weight, part in zip(weights[level], given, strict=True)]).sum(0)
        return h

    def _pools(self) -> list[nn.ModuleList]:
        return [layer for layer in self.layers if isinstance(layer, nn.ModuleList)]

    def _freeze(self) -> None:
        for layer in self._pools():
            for number, component in enumerate(layer, 1):
                learns = number == len(self.structure) or not self.freeze_old
                component.train(learns).requires_grad_(learns)
        for number, weights in enumerate(self.structure, 1):
            weights.requires_grad_(number == len(self.structure))

    def _even(self, components: int) -> nn.Parameter:
        like = next(self.parameters())
        return nn.Parameter(torch.zeros(len(self.layers), components, device=like.device, dtype=like.dtype))
