"""Compositional networks: components shared by tasks (Mendez and Eaton, ICLR 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gmed.models.growth import components, mean_log_probs, reinitialized
from gmed.models.introspection import deterministic


@deterministic
class CompositionalNet(nn.Module):
    """A network whose layers have several components each, which every task weights differently.

    The output of a layer for a task is the sum of its components' outputs, weighted by a softmax over the components
    that existed when the task began.

    Parameters
    ----------
    model
        The network of the first task.
    freeze_old
        Whether components are frozen once another one is added.

    Examples
    --------
    >>> from gmed.models import MLP
    >>> net = CompositionalNet(MLP())
    >>> net.add()
    >>> net.structure[1].shape  # three layers, two components
    torch.Size([3, 2])
    >>> net(torch.zeros(3, 1, 28, 28), task=1).shape
    torch.Size([3, 10])
    """

    def __init__(self, model: nn.Module, freeze_old: bool = True) -> None:
        super().__init__()
        self.freeze_old = freeze_old
        self.layers = nn.ModuleList([nn.ModuleList([component]) for component in components(model)])
        self.structure = nn.ParameterList([self._uniform(1)])

    def add(self) -> None:
        """Add a task, with a new component in every layer."""
        for layer in self._layers():
            layer.append(reinitialized(layer[0]))
        self.structure.append(self._uniform(len(self.structure) + 1))
        self._freeze()

    def truncate(self, tasks: int) -> None:
        """Remove all but the first tasks."""
        for layer in self._layers():
            del layer[tasks:]
        self.structure = nn.ParameterList(list(self.structure)[:tasks])
        self._freeze()

    def forward(self, x: Tensor, task: int | None = None) -> Tensor:
        """Return the logits of a task's network or, without a task, the log of the mean of all their probabilities."""
        if task is None:
            return mean_log_probs([self._forward_task(x, number) for number in range(len(self.structure))])
        return self._forward_task(x, task)

    def _forward_task(self, h: Tensor, task: int) -> Tensor:
        weights = torch.softmax(self.structure[task], 1)
        for index, layer in enumerate(self._layers()):
            outputs = [component(h) for component in layer[: task + 1]]
            h = torch.stack([weight * output for weight, output in zip(weights[index], outputs, strict=True)]).sum(0)
        return h

    def _layers(self) -> list[nn.ModuleList]:
        return [layer for layer in self.layers if isinstance(layer, nn.ModuleList)]

    def _freeze(self) -> None:
        for layer in self._layers():
            for number, component in enumerate(layer, 1):
                is_trained = number == len(self.structure) or not self.freeze_old
                component.train(is_trained).requires_grad_(is_trained)
        for number, weights in enumerate(self.structure, 1):
            weights.requires_grad_(number == len(self.structure))

    def _uniform(self, components: int) -> nn.Parameter:
        like = next(self.parameters())
        return nn.Parameter(torch.zeros(len(self.layers), components, device=like.device, dtype=like.dtype))
