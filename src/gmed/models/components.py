"""A model as components in a row, and models that have several of each."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from gmed.models.resnet import ResNet18


def components(model: nn.Module) -> list[nn.Module]:
    """The layers of a network, or the blocks of a ResNet-18, each with what follows it and has no parameters.

    A model that is not known to be made of layers in a row is one component.

    >>> from gmed.models import MLP
    >>> [[type(layer).__name__ for layer in component] for component in components(MLP())]
    [['Flatten', 'Linear', 'ReLU'], ['Linear', 'ReLU'], ['Linear']]
    """
    if isinstance(model, ResNet18):
        first = nn.Sequential(model.first, model.norm, nn.ReLU())
        last = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), model.classifier)
        return [first, *model.blocks, last]
    if type(model).forward is not nn.Sequential.forward:
        return [model]
    found: list[list[nn.Module]] = [[]]
    for layer in model.children():
        learns = any(True for _ in layer.parameters())
        if learns and any(any(True for _ in other.parameters()) for other in found[-1]):
            found.append([])
        found[-1].append(layer)
    return [nn.Sequential(*layers) for layers in found]


def anew(component: nn.Module) -> nn.Module:
    """A component like this one, at first weights of its own."""
    made = deepcopy(component)
    for module in made.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    for parameter in made.parameters():
        parameter.requires_grad_(True)
    return made.train()


class Columns(nn.Module):
    """Networks side by side, of which only the last learns; every component also reads, each with a learnable weight,
    what the component before it gives in the earlier columns.

    Examples
    --------
    >>> from gmed.models import MLP
    >>> columns = Columns(MLP())
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
        self.columns.append(nn.ModuleList([anew(component) for component in last]))
        gates = torch.zeros(len(last) - 1, len(self.columns) - 1, device=like.device, dtype=like.dtype)
        self.gates.append(nn.Parameter(gates))
        self._freeze()

    def cut(self, columns: int) -> None:
        """Only the first so many, of which the last learns."""
        del self.columns[columns:]
        kept = list(self.gates)[: columns - 1]
        self.gates = nn.ParameterList(kept)
        self._freeze()

    def forward(self, x: Tensor, column: int | None = None) -> Tensor:
        """The logits of one column or, if none is named, of the mean of all columns' probabilities."""
        given: list[list[Tensor]] = []  # by column, what each of its components gives
        for number, parts in enumerate(self.columns if column is None else self.columns[: column + 1]):  # type: ignore[arg-type, misc]
            h, own = x, list[Tensor]()
            for level, component in enumerate(parts):
                if level and number:
                    weights = self.gates[number - 1][level - 1]
                    h = h + sum(weights[k] * earlier[level - 1] for k, earlier in enumerate(given))
                h = component(h)
                own.append(h)
            given.append(own)
        return given[-1][-1] if column is not None else mean_of([levels[-1] for levels in given])

    def _freeze(self) -> None:
        for parts in self.columns:
            parts.train(parts is self.columns[-1]).requires_grad_(parts is self.columns[-1])
        for number, gates in enumerate(self.gates, 2):
            gates.requires_grad_(number == len(self.columns))


class Compositions(nn.Module):
    """A network whose layers have several components each, and for every task weights of them.

    What a layer gives for a task is the sum of what its components give, weighted by a softmax over those that were
    there when the task was new.

    Examples
    --------
    >>> from gmed.models import MLP
    >>> compositions = Compositions(MLP())
    >>> compositions.add()
    >>> compositions.structure[1].shape  # three layers, two components
    torch.Size([3, 2])
    >>> compositions(torch.zeros(3, 1, 28, 28), task=1).shape
    torch.Size([3, 10])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList([component]) for component in components(model)])
        self.structure = nn.ParameterList([self._even(1)])

    def add(self) -> None:
        """A further task, with a component of its own in every layer."""
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            layer.append(anew(layer[0]))
        self.structure.append(self._even(len(self.structure) + 1))

    def cut(self, tasks: int) -> None:
        """Only the first so many."""
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleList)
            del layer[tasks:]
        self.structure = nn.ParameterList(list(self.structure)[:tasks])

    def forward(self, x: Tensor, task: int | None = None) -> Tensor:
        """The logits of one task's network or, if none is named, of the mean of all their probabilities."""
        if task is None:
            return mean_of([self._of(x, number) for number in range(len(self.structure))])
        return self._of(x, task)

    def _of(self, h: Tensor, task: int) -> Tensor:
        weights = torch.softmax(self.structure[task], 1)
        for level, layer in enumerate(self.layers):
            shares = zip(weights[level], layer, strict=False)  # type: ignore[call-overload]
            h = sum(weight * component(h) for weight, component in shares)
        return h

    def _even(self, components: int) -> nn.Parameter:
        like = next(self.parameters())
        return nn.Parameter(torch.zeros(len(self.layers), components, device=like.device, dtype=like.dtype))


def mean_of(logits: list[Tensor]) -> Tensor:
    """The logarithm of the mean probability of each class.

    >>> mean_of([torch.tensor([[0.0, 0.0]]), torch.tensor([[50.0, 0.0]])]).exp()
    tensor([[0.7500, 0.2500]])
    """
    return torch.logsumexp(log_softmax(torch.stack(logits), -1), 0) - math.log(len(logits))
