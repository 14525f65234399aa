"""Properties of a model that follow from its layers. Nothing is assumed about unknown layers.

Every function inspects the model as it is now. A learner inspects its model once per step (:func:`inspect_model`), so a
new hook, a frozen parameter or a replaced layer takes effect in the next step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor, nn

from gmed.models.batch_norm import BatchNorm

M = TypeVar("M", bound=type[nn.Module])

_BATCH_INDEPENDENT = {
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
_DETERMINISTIC = _BATCH_INDEPENDENT | {
    module.forward
    for module in (
        nn.Module,  # a module without forward is only a container
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.InstanceNorm2d,
        BatchNorm,
    )
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNorm)


def deterministic(module: M) -> M:
    """Declare that the forward of a class of modules draws no random numbers and writes into no input."""
    _DETERMINISTIC.add(module.forward)
    return module


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module is a batch-norm layer."""
    return type(module) in _BATCH_NORMS


@dataclass(frozen=True)
class ModelInfo:
    """Information about a model, collected in one pass over its modules.

    Attributes
    ----------
    parameters
        The trainable parameters, by name, in the order of ``model.named_parameters()``.
    buffers
        All buffers.
    batch_norm_buffers
        The running means and variances of batch-norm layers.
    deterministic
        Whether the model is known to draw no random numbers, whatever its mode.
    """

    parameters: dict[str, Tensor]
    buffers: list[Tensor]
    batch_norm_buffers: list[Tensor]
    deterministic: bool


def inspect_model(model: nn.Module) -> ModelInfo:
    """Return the information about a model as it is now.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    >>> info = inspect_model(model)
    >>> list(info.parameters), len(info.buffers), len(info.batch_norm_buffers), info.deterministic
    (['0.weight', '0.bias', '1.weight', '1.bias'], 3, 2, False)
    """
    info = ModelInfo({}, [], [], True)
    deterministic = True
    seen: set[int] = set()
    stack = [("", model)]
    while stack:
        name, module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        prefix = f"{name}." if name else ""
        for key, p in module._parameters.items():
            if p is not None and p.requires_grad and id(p) not in seen:
                seen.add(id(p))
                info.parameters[prefix + key] = p
        if module._buffers:
            buffers = [buffer for buffer in module._buffers.values() if buffer is not None]
            info.buffers.extend(buffers)
            if buffers and is_batch_norm(module):
                info.batch_norm_buffers.extend(buffer for buffer in buffers if buffer.is_floating_point())
        deterministic = deterministic and type(module).forward in _DETERMINISTIC and is_unmodified(module)
        if module._modules:
            children = reversed(module._modules.items())
            stack.extend((prefix + key, child) for key, child in children if child is not None)
    return info if deterministic else replace(info, deterministic=False)


def is_batch_independent(model: nn.Module) -> bool:
    """Return whether each output is known to depend on its own input alone, not on the batch or on random numbers.

    Then the gradient of a sum of losses is the sum of their gradients, whichever batches these were computed in.
    Only models of known layers qualify; a model with batch-norm, dropout or a custom forward does not.

    >>> is_batch_independent(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    >>> is_batch_independent(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    False
    """
    return flatten_sequential(model) is not None


def flatten_sequential(model: nn.Module) -> dict[str, nn.Module] | None:
    """Return the layers of a batch-independent model, by name and in order, or ``None`` for any other model.

    >>> list(flatten_sequential(nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))))
    ['0', '1.0', '1.1']
    >>> flatten_sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) is None
    True
    """
    if not is_unmodified(model) or _forward(model) not in _BATCH_INDEPENDENT or _mixes_examples(model):
        return None
    if not isinstance(model, nn.Sequential):
        return None if model._modules else {"": model}
    layers: dict[str, nn.Module] = {}
    for name, part in model._modules.items():
        inside = flatten_sequential(part) if part is not None else None
        if inside is None:
            return None
        layers |= {f"{name}.{inner}" if inner else name: layer for inner, layer in inside.items()}
    return layers


def is_deterministic(model: nn.Module) -> bool:
    """Return whether the model is known to draw no random numbers, whatever its mode.

    >>> is_deterministic(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    True
    >>> is_deterministic(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    False
    """
    return inspect_model(model).deterministic


def preserves_inputs(model: nn.Module) -> bool:
    """Return whether the model is known not to write into its input.

    >>> preserves_inputs(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    True
    >>> preserves_inputs(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)))
    False
    """
    return is_deterministic(model) and not any(getattr(m, "inplace", False) for m in model.modules())


def is_unmodified(module: nn.Module) -> bool:
    """Return whether the module has no hooks and its own ``forward``.

    >>> layer = nn.Linear(2, 2)
    >>> is_unmodified(layer)
    True
    >>> _ = layer.register_forward_hook(print)
    >>> is_unmodified(layer)
    False
    """
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters, by name, in the order of ``model.named_parameters()``.

    >>> list(trainable(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))))
    ['0.weight', '0.bias', '1.weight']
    """
    return inspect_model(model).parameters


def _forward(module: nn.Module) -> object:
    return type(module).forward


def _mixes_examples(module: nn.Module) -> bool:
    return isinstance(module, nn.Flatten) and module.start_dim < 1
