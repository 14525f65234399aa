"""A model as a function of its parameters.

Parameters are plain values here (a dictionary of tensors): a model is evaluated at other parameters without
ever being overwritten and restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gmed.models.modes import still_statistics

Parameters = dict[str, Tensor]


def trainable(model: nn.Module) -> Parameters:
    """The parameters an update may change, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def forward(model: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The model's output at ``parameters``. Its buffers (batch-norm statistics) are left as they are.

    The model's mode is its own: in training mode batch-norm uses the statistics of this batch.
    """
    buffers = dict(model.named_buffers())
    if not buffers and all(parameters.get(name) is p for name, p in model.named_parameters()):
        own: Tensor = model(x)  # the same, without exchanging every parameter for itself
        return own
    with still_statistics(model) if buffers else nullcontext(set[str]()) as still:
        copies = {name: buffer.clone() for name, buffer in buffers.items() if name not in still}
        output: Tensor = functional_call(model, {**parameters, **copies}, (x,))
    return output


def gradient(loss: Tensor, parameters: Mapping[str, Tensor]) -> Parameters:
    """The gradient of ``loss`` by name; zero for a parameter it does not reach. ``.grad`` is never touched."""
    if not parameters:
        return {}
    grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), grads, strict=True)
    }
