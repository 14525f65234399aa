"""What a method keeps besides its model and memory: saved, restored, undone, moved and grown with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gmed.errors import UsageError


class Extras:
    """Tensors and modules that are attributes of a learner, by the names they were registered under.

    A tensor may be replaced by assigning another to the attribute; what counts is what the attribute holds.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self.names: list[str] = []

    def register(self, name: str, value: Tensor | nn.Module) -> None:
        if not isinstance(value, (Tensor, nn.Module)):
            raise UsageError(f"{name} must be a tensor or a module, not {type(value).__name__}")
        if not name.isidentifier() or hasattr(self._owner, name):
            raise UsageError(f"a learner cannot keep anything as {name!r}: choose a name that is free")
        self.names.append(name)
        setattr(self._owner, name, value)

    def items(self) -> list[tuple[str, Tensor | nn.Module]]:
        """Each with its name, as it is now."""
        return [(name, getattr(self._owner, name)) for name in self.names]

    def tensors(self) -> list[Tensor]:
        """All tensors, as they are: to be copied before a step that may fail."""
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
                    raise UsageError(f"this state has no {name}: it is another kind of learner's")
                kept = state.pop(name)
                if kept.dtype != value.dtype:
                    raise UsageError(f"{name} is {kept.dtype} in this state, {value.dtype} here")
                setattr(self._owner, name, kept.to(value.device))
            else:
                keys = [key for key in state if key.startswith(f"{name}.")]
                value.load_state_dict({key.removeprefix(f"{name}."): state.pop(key) for key in keys})
        if state:
            raise UsageError(f"this state has {min(state)}: it is another kind of learner's")

    def to(self, like: Tensor) -> None:
        """Have everything where the model is; what is not whole numbers in its type."""
        for name, value in self.items():
            if isinstance(value, Tensor):
                setattr(self._owner, name, value.to(like.device, like.dtype if value.is_floating_point() else None))
            elif any(_is_elsewhere(t, like) for t in _tensors(value).values()):
                value.to(like.device, like.dtype)

    def copies_of(self, model: nn.Module) -> list[nn.Module]:
        """Return the modules that are made like the model: of its class, with tensors of its names and shapes."""
        modules = [value for _, value in self.items() if isinstance(value, nn.Module)]
        return [one for one in modules if type(one) is type(model) and _shapes(one) == _shapes(model)]


def _tensors(value: Tensor | nn.Module) -> dict[str, Tensor]:
    return {"": value} if isinstance(value, Tensor) else dict(value.state_dict(keep_vars=True))


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in _tensors(module).items()}


def _is_elsewhere(tensor: Tensor, like: Tensor) -> bool:
    return tensor.device != like.device or (tensor.is_floating_point() and tensor.dtype != like.dtype)
