"""Progressive networks: one column for every task (Rusu et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gmed.models.growth import components, mean_log_probs, reinitialized
from gmed.models.introspection import deterministic


@deterministic
class ProgressiveNet(nn.Module):
    """Networks (columns) of which only the last is trained; every component also reads the features of the preceding
    component in the earlier columns, each with a trainable weight.

    Examples
    --------
    >>> from gmed.models import MLP
    >>> net = ProgressiveNet(MLP())
    >>> net.add()
    >>> net.gates[0].shape  # for the inputs of the second and third layer, from one earlier column
    torch.Size([2, 1])
    >>> net(torch.zeros(3, 1, 28, 28), column=0).shape
    torch.Size([3, 10])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.columns = nn.ModuleList([nn.ModuleList(components(model))])
        self.gates = nn.ParameterList()

    def add(self) -> None:
        """Add a column, and freeze the earlier ones."""
        like = next(self.parameters())
        last = self.columns[-1]
        assert isinstance(last, nn.ModuleList)
        self.columns.append(nn.ModuleList([reinitialized(component) for component in last]))
        gates = torch.zeros(len(last) - 1, len(self.columns) - 1, device=like.device, dtype=like.dtype)
        self.gates.append(nn.Parameter(gates))
        self._freeze()

    def truncate(self, columns: int) -> None:
        """Remove all but the first columns; the last of these is trained again."""
        del self.columns[columns:]
        self.gates = nn.ParameterList(list(self.gates)[: columns - 1])
        self._freeze()

    def forward(self, x: Tensor, column: int | None = None) -> Tensor:
        """Return the logits of a column or, without a column, the log of the mean of all their probabilities."""
        features: list[list[Tensor]] = []  # by column, the output of each of its components
        for number, modules in enumerate(self._columns_up_to(column)):
            h, outputs = x, list[Tensor]()
            for depth, component in enumerate(modules):
                if depth and number:
                    weights = self.gates[number - 1][depth - 1]
                    h = h + sum(weights[k] * earlier[depth - 1] for k, earlier in enumerate(features))
                h = component(h)
                outputs.append(h)
            features.append(outputs)
        return features[-1][-1] if column is not None else mean_log_probs([outputs[-1] for outputs in features])

    def _columns_up_to(self, column: int | None) -> list[nn.ModuleList]:
        end = len(self.columns) if column is None else column + 1
        return [modules for modules in self.columns[:end] if isinstance(modules, nn.ModuleList)]

    def _freeze(self) -> None:
        for column in self.columns:
            column.train(column is self.columns[-1]).requires_grad_(column is self.columns[-1])
        for number, gates in enumerate(self.gates, 2):
            gates.requires_grad_(number == len(self.columns))
