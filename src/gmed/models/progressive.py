"""Progressive networks: one column for every task (Rusu et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gmed.models.components import components, mean_log_probs, reinitialized
from gmed.models.introspection import deterministic


@deterministic
class ProgressiveNet(nn.Module):
    """Networks side by side, of which only the last learns; every component also reads, each with a learnable weight,
    what the component before it gives in the earlier columns.

    Examples
    --------
    >>> from gmed.models import MLP
    >>> columns = ProgressiveNet(MLP())
    >>> columns.add()
    >>> columns.gates[0].shape  # before each of two further layers, of one earlier column
    torch.Size([2, 1])
    >>> columns(torch.zeros(3, 1, 28, 28), column=0).shape
    torch.Size([3, 10])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.columns = nn.ModuleList([nn.ModuleList(components(model))])
        self.gates = nn.ParameterList()

    def add(self) -> None:
        """A further column; those before it stay as they are from now on."""
        like = next(self.parameters())
        last = self.columns[-1]
        assert isinstance(last, nn.ModuleList)
        self.columns.append(nn.ModuleList([reinitialized(component) for component in last]))
        gates = torch.zeros(len(last) - 1, len(self.columns) - 1, device=like.device, dtype=like.dtype)
        self.gates.append(nn.Parameter(gates))
        self._freeze()

    def truncate(self, columns: int) -> None:
        """Only the first so many, of which the last learns."""
        del self.columns[columns:]
        kept = list(self.gates)[: columns - 1]
        self.gates = nn.ParameterList(kept)
        self._freeze()

    def forward(self, x: Tensor, column: int | None = None) -> Tensor:
        """The logits of one column or, if none is named, of the mean of all columns' probabilities."""
        given: list[list[Tensor]] = []  # by column, what each of its components gives
        for number, parts in enumerate(self._wanted(column)):
            h, own = x, list[Tensor]()
            for level, component in enumerate(parts):
                if level and number:
                    weights = self.gates[number - 1][level - 1]
                    h = h + sum(weights[k] * earlier[level - 1] for k, earlier in enumerate(given))
                h = component(h)
                own.append(h)
            given.append(own)
        return given[-1][-1] if column is not None else mean_log_probs([levels[-1] for levels in given])

    def _wanted(self, column: int | None) -> list[nn.ModuleList]:
        last = len(self.columns) if column is None else column + 1
        return [parts for parts in self.columns[:last] if isinstance(parts, nn.ModuleList)]

    def _freeze(self) -> None:
        for parts in self.columns:
            parts.train(parts is self.columns[-1]).requires_grad_(parts is self.columns[-1])
        for number, gates in enumerate(self.gates, 2):
            gates.requires_grad_(number == len(self.columns))
