"""The tensors and modules that a method registers: saved, restored, rolled back, moved and grown with its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gmed.errors import UsageError


class Extras:
    """Tensors and modules that are attributes of a learner, by the names they were registered under.

    A tensor may be replaced by assigning another to the attribute: the current value of the attribute counts.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.names: list[str] = []

    def register(self, name: str, value: Tensor | nn.Module) -> None:
        """Make a value an attribute of the learner."""
        if not isinstance(value, (Tensor, nn.Module)):
            raise UsageError(f"{name} must be a tensor or a module, not {type(value).__name__}")
        if not name.isidentifier() or hasattr(self._owner, name):
            raise UsageError(
                f"{name!r} cannot be registered: it is no identifier or is already an attribute; choose another name"
            )
        self.names.append(name)
        setattr(self._owner, name, value)

    def items(self) -> list[tuple[str, Tensor | nn.Module]]:
        """Return the current values with their names."""
        return [(name, getattr(self._owner, name)) for name in self.names]

    def tensors(self) -> list[Tensor]:
        """Return all tensors, not copied; they are copied before a step that may fail."""
        return [t for _, value in self.items() for t in _tensors(value).values()]

    def state_dict(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}" if key else name: t.detach()
            for name, value in self.items()
            for key, t in _tensors(value).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        state = dict(state)
        for name, value in self.items():
            if isinstance(value, Tensor):
                if name not in state:
                    raise UsageError(f"this state has no {name}; it was saved by another kind of learner")
                saved = state.pop(name)
                if saved.dtype != value.dtype:
                    raise UsageError(f"{name} is {saved.dtype} in this state, {value.dtype} here")
                setattr(self._owner, name, saved.to(value.device))
            else:
                keys = [key for key in state if key.startswith(f"{name}.")]
                value.load_state_dict({key.removeprefix(f"{name}."): state.pop(key) for key in keys})
        if state:
            raise UsageError(f"this state has {min(state)}; it was saved by another kind of learner")

    def to(self, like: Tensor) -> None:
        """Move everything to the device of a tensor of the model, and floating-point tensors to its dtype."""
        for name, value in self.items():
            if isinstance(value, Tensor):
                setattr(self._owner, name, value.to(like.device, like.dtype if value.is_floating_point() else None))
            elif any(_needs_move(t, like) for t in _tensors(value).values()):
                value.to(like.device, like.dtype)

    def copies_of(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that are copies of the model: of its class, with tensors of the same names and shapes."""
        modules = [value for _, value in self.items() if isinstance(value, nn.Module)]
        return [module for module in modules if type(module) is type(model) and _shapes(module) == _shapes(model)]


def _tensors(value: Tensor | nn.Module) -> dict[str, Tensor]:
    return {"": value} if isinstance(value, Tensor) else dict(value.state_dict(keep_vars=True))


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in _tensors(module).items()}


def _needs_move(tensor: Tensor, like: Tensor) -> bool:
    return tensor.device != like.device or (tensor.is_floating_point() and tensor.dtype != like.dtype)
