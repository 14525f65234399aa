"""A model as a sequence of components, for networks that grow."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from gmed.models.resnet import ResNet18


def components(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a network, or the blocks of a ResNet-18, each with the parameter-free layers that follow it.

    A model that is not known to be a sequence of layers is one component.

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
    groups: list[list[nn.Module]] = [[]]
    for layer in model.children():
        has_parameters = any(True for _ in layer.parameters())
        if has_parameters and any(any(True for _ in other.parameters()) for other in groups[-1]):
            groups.append([])
        groups[-1].append(layer)
    return [nn.Sequential(*layers) for layers in groups]


def reinitialized(component: nn.Module) -> nn.Module:
    """Return a copy of a component with new initial weights, which do not depend on its device."""
    like = next(component.parameters())
    copy = deepcopy(component).cpu()
    for module in copy.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    for parameter in copy.parameters():
        parameter.requires_grad_(True)
    return copy.to(like.device).train()


def mean_log_probs(logits: list[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability of each class.

    >>> mean_log_probs([torch.tensor([[0.0, 0.0]]), torch.tensor([[50.0, 0.0]])]).exp()
    tensor([[0.7500, 0.2500]])
    """
    return torch.logsumexp(log_softmax(torch.stack(logits), -1), 0) - math.log(len(logits))
