"""A learner as named tensors, and back."""

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
    """Return everything a learner is; the tensors are copies."""
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
    """Have a learner become the one whose state this is. A state that does not fit changes nothing."""
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
    """Have a learner take over a state. What fails on the way leaves it between two states."""
    like = next(learner.model.parameters())

    def part(prefix: str, where: torch.device = like.device) -> State:
        return {k.removeprefix(prefix): v.to(where) for k, v in state.items() if k.startswith(prefix)}

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
        raise UsageError("this state is of a learner with another optimizer; build this one with it")
    if learner._shape is not None:
        _check_stream(learner, like.new_empty((1, *learner._shape)))


def _check(learner: Learner, state: State) -> None:
    """Refuse a state that is another learner's, or damaged."""
    own = {f"model.{name}": t for name, t in learner.model.state_dict().items()}
    counters = ["steps", "seed", "classes", *(["memory.seen"] if learner.memory is not None else [])]
    own |= {name: torch.tensor(0) for name in counters}
    for name, ours in own.items():
        if name not in state:
            raise UsageError(f"this state has no {name}: it is another kind of learner's")
        theirs = state[name]
        if theirs.shape != ours.shape:
            raise UsageError(f"{name} is {tuple(theirs.shape)} in this state, {tuple(ours.shape)} here")
        if theirs.is_floating_point() != ours.is_floating_point():
            raise UsageError(f"{name} is {theirs.dtype} in this state, {ours.dtype} here")
    if extra := sorted(name for name in state if name.startswith("model.") and name not in own):
        raise UsageError(f"this state has {extra[0]}: it is another model's")
    if negative := [name for name in counters if int(state[name]) < 0]:
        raise UsageError(f"{negative[0]} is {int(state[negative[0]])} in this state: it is damaged")
    for name, theirs in state.items():
        if not torch.isfinite(theirs).all() and torch.isfinite(own.get(name, torch.zeros(()))).all():
            raise UsageError(f"{name} holds NaN or infinity in this state: it is damaged")


def _check_stream(learner: Learner, x: Tensor) -> None:
    """Refuse a state whose examples and labels are not such as the model takes."""
    classes = checked_logits(learner.model, x).shape[1]
    if learner._classes != classes:
        raise UsageError(f"this state is of {learner._classes} classes, the model has {classes} outputs")
    if learner.memory is not None and learner.memory.is_allocated:
        held = torch.from_numpy(learner.memory.occupied())
        labels = learner.memory.y.cpu()[held]
        if learner.memory.x.shape[1:] != x.shape[1:] or bool(((labels < 0) | (labels >= classes)).any()):
            raise UsageError("the memory in this state holds examples of another stream: it is damaged")
