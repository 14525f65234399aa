"""Models that are given more outputs while they learn."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from gmed.errors import UsageError
from gmed.models.resnet import ResNet18


def output_layer(model: nn.Module) -> nn.Linear:
    """The linear layer whose outputs are the model's.

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
            f"a {type(model).__name__} cannot be given more outputs: only a chain of layers (nn.Sequential) that ends "
            "in a linear one can. Give it an output for every class from the start."
        )
    if is_parametrized(layer) or _used_elsewhere(layer, model):
        raise UsageError(
            f"a {type(model).__name__} whose last layer is shared or parametrized cannot be given more outputs. "
            "Give it an output for every class from the start."
        )
    return layer


def _used_elsewhere(layer: nn.Linear, model: nn.Module) -> bool:
    """Whether another place in the model computes with this layer or with its weight."""
    in_chains = sum(part is layer for m in model.modules() if isinstance(m, nn.Sequential) for part in m)
    holders = sum(p is layer.weight for m in model.modules() for p in m._parameters.values())
    return in_chains > 1 or holders > 1


@torch.no_grad()
def expand_outputs(model: nn.Module, outputs: int) -> None:
    """Give the model so many outputs, the new ones behind the others; what those are computed from is left alone.

    >>> model = nn.Linear(3, 2)
    >>> x = torch.ones(1, 3)
    >>> before = model(x)
    >>> expand_outputs(model, 5)
    >>> model(x).shape, torch.allclose(model(x)[:, :2], before)
    (torch.Size([1, 5]), True)
    """
    layer = output_layer(model)
    if outputs < layer.out_features:
        raise UsageError(f"the model has {layer.out_features} outputs; it cannot be given {outputs}")
    added = outputs - layer.out_features
    if added:
        like = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        fresh = nn.Linear(layer.in_features, added, bias=layer.bias is not None, **like)
        layer.weight = _append_rows(layer.weight, fresh.weight)
        if layer.bias is not None:
            layer.bias = _append_rows(layer.bias, fresh.bias)
        layer.out_features = outputs


def _append_rows(held: Tensor, more: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.cat([held, more]), requires_grad=held.requires_grad)
