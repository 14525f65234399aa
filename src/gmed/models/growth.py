"""Models that grow: more outputs, or a new module for every task."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from torch.nn.utils.parametrize import is_parametrized

from gmed.errors import UsageError
from gmed.models.resnet import ResNet18


def output_layer(model: nn.Module) -> nn.Linear:
    """Return the linear layer whose outputs are the model's outputs.

    >>> output_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 5))).out_features
    5
    """
    layer = model
    while type(layer).forward is nn.Sequential.forward and len(layer):  # type: ignore[arg-type]
        layer = layer[-1]  # type: ignore[index]
    if type(layer).forward is ResNet18.forward:
        layer = layer.classifier  # type: ignore[assignment]
    if not isinstance(layer, nn.Linear):
        raise UsageError(
            f"a {type(model).__name__} cannot be given more outputs: only an nn.Sequential that ends in a linear layer "
            "can. Give it an output for every class from the start."
        )
    if is_parametrized(layer) or _used_elsewhere(layer, model):
        raise UsageError(
            f"a {type(model).__name__} whose last layer is shared or parametrized cannot be given more outputs. "
            "Give it an output for every class from the start."
        )
    return layer


def _used_elsewhere(layer: nn.Linear, model: nn.Module) -> bool:
    """Return whether the model uses this layer or its weight more than once."""
    layer_uses = sum(part is layer for m in model.modules() if isinstance(m, nn.Sequential) for part in m)
    weight_uses = sum(p is layer.weight for m in model.modules() for p in m._parameters.values())
    return layer_uses > 1 or weight_uses > 1


@torch.no_grad()
def expand_outputs(model: nn.Module, outputs: int) -> None:
    """Extend the model to this number of outputs; the new ones come last, and the existing ones do not change.

    >>> model = nn.Linear(3, 2)
    >>> x = torch.ones(1, 3)
    >>> before = model(x)
    >>> expand_outputs(model, 5)
    >>> model(x).shape, torch.allclose(model(x)[:, :2], before)
    (torch.Size([1, 5]), True)
    """
    layer = output_layer(model)
    if outputs < layer.out_features:
        raise UsageError(f"the model has {layer.out_features} outputs; they cannot be reduced to {outputs}")
    added = outputs - layer.out_features
    if added:
        like = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        new = nn.Linear(layer.in_features, added, bias=layer.bias is not None, **like)
        layer.weight = _append_rows(layer.weight, new.weight)
        if layer.bias is not None:
            layer.bias = _append_rows(layer.bias, new.bias)
        layer.out_features = outputs


def _append_rows(parameter: Tensor, rows: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.cat([parameter, rows]), requires_grad=parameter.requires_grad)


def components(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a network, or the blocks of a ResNet-18, each with the parameter-free layers that follow it.

    A model that is not known to be a sequence of layers is one component.

    >>> from gmed.models import MLP
    >>> [[type(layer).__name__ for layer in component] for component in components(MLP())]
    [['Flatten', 'Linear', 'ReLU'], ['Linear', 'ReLU'], ['Linear']]
    """
    if isinstance(model, ResNet18):
        first = nn.Sequential(model.conv1, model.bn1, nn.ReLU())
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
