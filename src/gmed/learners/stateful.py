"""The saved state of a learner: its model, memory, counters and optimizer, and the extras of its method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gmed.errors import UsageError
from gmed.io.state import read_state, write_state
from gmed.learners._locking import Lock, consistent_read, exclusive
from gmed.learners._validation import checked_logits
from gmed.learners.optimizer import OptimizerStep
from gmed.memory import Memory
from gmed.models.resnet import rename_old_keys
from gmed.registry import part_id

State = dict[str, Tensor]


class Stateful:
    """A learner's state as named tensors: saved, loaded and restored."""

    model: nn.Module
    memory: Memory | None
    optimizer: OptimizerStep | None
    seed: int
    steps: int
    _classes: int
    _shape: tuple[int, ...] | None
    _extras: Extras
    _lock: Lock

    @consistent_read
    def state_dict(self) -> State:
        """Return the whole state as named tensors; a learner built the same way can load it and continue exactly."""
        counters = {"steps": self.steps, "seed": self.seed, "classes": self._classes}
        state = {name: torch.tensor(number) for name, number in counters.items()}
        state["shape"] = torch.tensor(self._shape or (), dtype=torch.int64)
        state |= {f"model.{name}": t.detach() for name, t in self.model.state_dict().items()}
        if self.memory is not None:
            state |= {f"memory.{name}": t for name, t in self.memory.state_dict().items()}
        state |= {f"own.{name}": t for name, t in self.get_extra_state().items()}
        state |= {f"extra.{name}": t for name, t in self._extras.state_dict().items()}
        if self.optimizer is not None:
            state |= {f"optimizer.{name}": t for name, t in self.optimizer.state_dict().items()}
        return {name: t.clone() for name, t in state.items()}

    @exclusive
    def load_state_dict(self, state: State) -> None:
        """Load a state, including its seed. A state that does not fit changes nothing."""
        state = dict(state)
        rename_old_keys(state, [f"model.{name}" for name in self.model.state_dict()])
        _check(self, state)
        before = self.state_dict()
        try:
            restore(self, state)
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            restore(self, before)
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"this state does not fit the learner: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, atomically."""
        write_state(Path(path), self.state_dict(), {"learner": part_id(type(self))})

    def load(self, path: str | Path) -> None:
        """Load the state saved in a file by a learner that was built the same way. Reading it runs no code."""
        state, _ = read_state(Path(path), {"learner": part_id(type(self))})
        try:
            self.load_state_dict(state)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error

    def register_extra(self, name: str, value: Tensor | nn.Module) -> None:
        """Make a tensor or a module an attribute, and part of the learner's state.

        It is saved, loaded, restored when a step fails and moved with the model; a copy of the model, such as an
        averaged one, gets more outputs whenever the model does.
        """
        self._extras.register(name, value)

    def get_extra_state(self) -> State:
        """Return the state of a method besides its model, memory and counters, and what it registered."""
        return {}

    def set_extra_state(self, state: State) -> None:
        """Restore the state returned by :meth:`get_extra_state`."""


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
                f"{name!r} cannot be registered: it is no identifier, or is already an attribute; choose another name"
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


def restore(learner: Stateful, state: State) -> None:
    """Load a state into a learner without checks. An error on the way leaves it partly loaded."""
    like = next(learner.model.parameters())

    def part(prefix: str, device: torch.device = like.device) -> State:
        return {k.removeprefix(prefix): v.to(device) for k, v in state.items() if k.startswith(prefix)}

    if learner.memory is not None:
        learner.memory.load_state_dict(part("memory.", torch.device("cpu")))
        if learner.memory.is_allocated:
            learner.memory.to(like)
    learner.model.load_state_dict(part("model."))
    learner.steps, learner.seed, learner._classes = (int(state[name]) for name in ("steps", "seed", "classes"))
    learner._shape = tuple(state["shape"].tolist()) or None
    learner.set_extra_state(part("own."))
    learner._extras.load_state_dict(part("extra."))
    if learner.optimizer is not None:
        learner.optimizer.load_state_dict(part("optimizer."))
    elif part("optimizer."):
        raise UsageError("this state was saved with another optimizer; create the learner with that optimizer")
    if learner._shape is not None:
        _check_stream(learner, like.new_empty((1, *learner._shape)))


def _check(learner: Stateful, state: State) -> None:
    """Raise an error if a state was saved by another kind of learner, or is corrupt."""
    expected = {f"model.{name}": t for name, t in learner.model.state_dict().items()}
    counters = ["steps", "seed", "classes", *(["memory.seen"] if learner.memory is not None else [])]
    expected |= {name: torch.tensor(0) for name in counters}
    for name, current in expected.items():
        if name not in state:
            raise UsageError(f"this state has no {name}; it was saved by another kind of learner")
        saved = state[name]
        if saved.shape != current.shape:
            raise UsageError(f"{name} has shape {tuple(saved.shape)} in this state, {tuple(current.shape)} here")
        if saved.is_floating_point() != current.is_floating_point():
            raise UsageError(f"{name} is {saved.dtype} in this state, {current.dtype} here")
    if extra := sorted(name for name in state if name.startswith("model.") and name not in expected):
        raise UsageError(f"this state has {extra[0]}; it was saved with another model")
    if negative := [name for name in counters if int(state[name]) < 0]:
        raise UsageError(f"corrupt state: {negative[0]} is {int(state[negative[0]])}")
    for name, saved in state.items():
        if not torch.isfinite(saved).all() and torch.isfinite(expected.get(name, torch.zeros(()))).all():
            raise UsageError(f"corrupt state: {name} contains NaN or infinity")


def _check_stream(learner: Stateful, x: Tensor) -> None:
    """Raise an error if the examples and labels of a state do not fit the model."""
    classes = checked_logits(learner.model, x).shape[1]
    if learner._classes != classes:
        raise UsageError(f"this state has {learner._classes} classes, the model has {classes} outputs")
    if learner.memory is not None and learner.memory.is_allocated:
        slots = torch.from_numpy(learner.memory.occupied())
        labels = learner.memory.y.cpu()[slots]
        if learner.memory.x.shape[1:] != x.shape[1:] or bool(((labels < 0) | (labels >= classes)).any()):
            raise UsageError("corrupt state: its memory contains examples of another shape, or labels out of range")
