"""Save a learner's state as named tensors, and load it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmed.errors import UsageError
from gmed.learners._validation import checked_logits

if TYPE_CHECKING:
    from gmed.learners.base import Learner

State = dict[str, Tensor]


def state_dict(learner: Learner) -> State:
    """Return the whole state of a learner; the tensors are copies."""
    counters = {"steps": learner.steps, "seed": learner.seed, "classes": learner._classes}
    state = {name: torch.tensor(number) for name, number in counters.items()}
    state["shape"] = torch.tensor(learner._shape or (), dtype=torch.int64)
    state |= {f"model.{name}": t.detach() for name, t in learner.model.state_dict().items()}
    if learner.memory is not None:
        state |= {f"memory.{name}": t for name, t in learner.memory.state_dict().items()}
    state |= {f"own.{name}": t for name, t in learner.get_extra_state().items()}
    state |= learner.extra_state()
    return {name: t.clone() for name, t in state.items()}


def load_state_dict(learner: Learner, state: State) -> None:
    """Load a state into a learner. A state that does not fit changes nothing."""
    _check(learner, state)
    before = state_dict(learner)
    try:
        restore(learner, state)
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        restore(learner, before)
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"this state does not fit the learner: {error}") from error


def restore(learner: Learner, state: State) -> None:
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


def _check(learner: Learner, state: State) -> None:
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


def _check_stream(learner: Learner, x: Tensor) -> None:
    """Raise an error if the examples and labels of a state do not fit the model."""
    classes = checked_logits(learner.model, x).shape[1]
    if learner._classes != classes:
        raise UsageError(f"this state has {learner._classes} classes, the model has {classes} outputs")
    if learner.memory is not None and learner.memory.is_allocated:
        slots = torch.from_numpy(learner.memory.occupied())
        labels = learner.memory.y.cpu()[slots]
        if learner.memory.x.shape[1:] != x.shape[1:] or bool(((labels < 0) | (labels >= classes)).any()):
            raise UsageError("corrupt state: its memory contains examples of another shape, or labels out of range")
