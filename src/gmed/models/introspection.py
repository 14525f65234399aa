"""What is known of a model from the layers it is made of. A layer that is not known may do anything.

Every function reads the model as it is now, in one pass over its modules: a hook, a frozen parameter or another layer
counts from the next step on.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from gmed.models.batch_norm import BatchNorm

M = TypeVar("M", bound=type[nn.Module])

_ONE_BY_ONE = {
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
_DETERMINISTIC = _ONE_BY_ONE | {
    module.forward
    for module in (
        nn.Module,  # what has no forward only holds others
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
    return type(module) in _BATCH_NORMS


def treats_examples_independently(model: nn.Module) -> bool:
    """Whether the output for one example is known not to depend on the rest of the batch or on chance.

    Then the gradient of a sum of losses is the sum of gradients, whichever batches they were computed in.
    Only models made of known layers qualify; a model with batch-norm, dropout or a forward of its own does not.

    >>> treats_examples_independently(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    >>> treats_examples_independently(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    False
    """
    return in_a_row(model) is not None


def in_a_row(model: nn.Module) -> dict[str, nn.Module] | None:
    """The layers of a model that treats examples independently, by name and in order; ``None`` of any other model.

    >>> list(in_a_row(nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))))
    ['0', '1.0', '1.1']
    >>> in_a_row(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) is None
    True
    """
    if not as_built(model) or _forward(model) not in _ONE_BY_ONE or _mixes_examples(model):
        return None
    if not isinstance(model, nn.Sequential):
        return None if model._modules else {"": model}
    layers: dict[str, nn.Module] = {}
    for name, part in model._modules.items():
        inside = in_a_row(part) if part is not None else None
        if inside is None:
            return None
        layers |= {f"{name}.{inner}" if inner else name: layer for inner, layer in inside.items()}
    return layers


def is_deterministic(model: nn.Module) -> bool:
    """Whether the model is known to draw no random numbers, whatever its mode.

    >>> is_deterministic(ResNet18())
    True
    >>> is_deterministic(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    False
    """
    return all(as_built(m) and _forward(m) in _DETERMINISTIC for m in all_modules(model))


def keeps_its_inputs(model: nn.Module) -> bool:
    """Whether the model is known not to write into the tensor it is given.

    >>> keeps_its_inputs(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    True
    >>> keeps_its_inputs(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)))
    False
    """
    return is_deterministic(model) and not any(getattr(m, "inplace", False) for m in model.modules())


def as_built(module: nn.Module) -> bool:
    """Whether nothing listens to a module from outside or was put in the place of its forward.

    >>> layer = nn.Linear(2, 2)
    >>> as_built(layer)
    True
    >>> _ = layer.register_forward_hook(print)
    >>> as_built(layer)
    False
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not (any(hooks) or "forward" in vars(module))


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return ``list(model.modules())``, in half the time.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    >>> all_modules(model) == list(model.modules())
    True
    """
    found: dict[int, nn.Module] = {}
    _add_modules(model, found)
    return list(found.values())


def _add_modules(module: nn.Module, found: dict[int, nn.Module]) -> None:
    found[id(module)] = module
    for inner in module._modules.values():
        if inner is not None and id(inner) not in found:
            _add_modules(inner, found)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters an update may change, by name, in the order of ``model.named_parameters()``.

    >>> list(trainable(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))))
    ['0.weight', '0.bias', '1.weight']
    """
    parameters: dict[str, Tensor] = {}
    _collect(model, "", parameters, set())
    return parameters


def _collect(module: nn.Module, prefix: str, parameters: dict[str, Tensor], seen: set[int]) -> None:
    """Add the trainable parameters of a module and all inside: a quarter of the time of ``named_parameters``."""
    seen.add(id(module))
    for name, p in module._parameters.items():
        if p is not None and p.requires_grad and id(p) not in seen:
            seen.add(id(p))
            parameters[prefix + name] = p
    for name, inner in module._modules.items():
        if inner is not None and id(inner) not in seen:
            _collect(inner, f"{prefix}{name}.", parameters, seen)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The means and variances that batch-norm layers keep."""
    return [
        statistic
        for module in all_modules(model)
        if is_batch_norm(module)
        for statistic in module._buffers.values()
        if statistic is not None and statistic.is_floating_point()
    ]


def _forward(module: nn.Module) -> object:
    return type(module).forward


def _mixes_examples(module: nn.Module) -> bool:
    return isinstance(module, nn.Flatten) and module.start_dim < 1
