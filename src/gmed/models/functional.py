"""A model as a function of its parameters.

Parameters are plain values here (a dictionary of tensors): a model is evaluated at other parameters without
ever being overwritten and restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

Parameters = dict[str, Tensor]

# Modules whose output for one example cannot depend on the rest of the batch or on chance.
_INDEPENDENT = {
    module.forward
    for module in (
        nn.Sequential,
        nn.Identity,
        nn.Flatten,
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.GELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Tanh,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d,
    )
}


def trainable(model: nn.Module) -> Parameters:
    """The parameters an update may change, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def forward(model: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The model's output at ``parameters``. Its buffers (batch-norm statistics) are left as they are.

    The model's mode is its own: in training mode batch-norm uses the statistics of this batch.
    """
    with still_statistics(model) as still:
        buffers = {name: b.clone() for name, b in model.named_buffers() if name not in still}
        output: Tensor = functional_call(model, {**parameters, **buffers}, (x,))
    return output


@contextmanager
def still_statistics(model: nn.Module) -> Iterator[set[str]]:
    """Inside, batch-norm layers that use the statistics of the batch do not keep them: the names of their buffers."""
    norms = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    }
    for norm in norms.values():
        norm.track_running_stats = False
    try:
        yield {f"{name}.{buffer}".lstrip(".") for name, norm in norms.items() for buffer, _ in norm.named_buffers()}
    finally:
        for norm in norms.values():
            norm.track_running_stats = True


def gradient(loss: Tensor, parameters: Mapping[str, Tensor]) -> Parameters:
    """The gradient of ``loss`` by name; zero for a parameter it does not reach. ``.grad`` is never touched."""
    if not parameters:
        return {}
    grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), grads, strict=True)
    }


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """Inside, a model that draws random numbers (dropout) draws; outside, nothing was drawn.

    Two passes made so from one state have the same masks, and differ by their parameters and inputs alone.
    """
    if treats_examples_independently(model):
        yield
    else:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; outside, every part of it is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def treats_examples_independently(model: nn.Module) -> bool:
    """Whether the output for one example is known not to depend on the rest of the batch or on chance.

    Then the gradient of a sum of losses is the sum of gradients, whichever batches they were computed in.
    Only models made of known layers qualify; a model with batch-norm, dropout or a forward of its own does not.

    >>> treats_examples_independently(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    >>> treats_examples_independently(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    False
    """
    return all(map(_independent, model.modules()))


def _independent(module: nn.Module) -> bool:
    changed = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    if isinstance(module, nn.Flatten) and module.start_dim < 1:
        return False
    return type(module).forward in _INDEPENDENT and not changed
