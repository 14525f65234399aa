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
