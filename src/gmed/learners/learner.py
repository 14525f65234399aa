from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.errors import DivergedError, GmedError, InputError, UsageError, finite_number, whole_number
from gmed.learners.batch import Batch
from gmed.learners.decisions import AsTheyCome, Decide, Decisions, all_finite
from gmed.learners.exclusive import Lock, exclusive, waits_for_changes
from gmed.learners.extras import Extras
from gmed.learners.forgetting import Kept, asked_for
from gmed.learners.given import as_tensor
from gmed.learners.optimizer import MakeOptimizer, OptimizerStep
from gmed.learners.snapshot import Snapshot
from gmed.learners.state import read_state, write_state
from gmed.memory import Memory
from gmed.models import (
    LookAhead,
    Loss,
    Passes,
    evaluating,
    features,
    forward,
    gradient,
    grow_outputs,
    keeps_its_inputs,
    leaves_nothing_to_chance,
    running_statistics,
    same_chance,
    trainable,
    treats_examples_independently,
    unchanged_inputs,
)
from gmed.models.factored import descend, sum_of, witnesses
from gmed.randomness import generator, torch_seeded
from gmed.retrieval import uniform


class Learner(ABC):
    """A model that learns from a stream, one batch at a time, and can predict at any moment.

    A learner is its :meth:`step`; everything else here is what all of them share.

    A call that fails changes nothing, and Ctrl-C waits for the end of the step. One thread may learn while others
    predict, save or forget through the same learner: each call sees the learner before a step or after it, never
    within. That holds for calls of the learner, not for those of its ``model``.

    Parameters
    ----------
    model
        Any module from a batch of inputs to a (batch, classes) tensor of logits. It is trained in place, in
        the mode (training or evaluation) you leave it in.
    lr
        Learning rate of plain SGD.
    memory
        What the learner remembers, if anything.
    criterion
        Mean loss of a batch from ``(logits, labels)``.
    optimizer
        What makes the updates, by default plain SGD: a class of ``torch.optim``, or a ``functools.partial`` of one with
        its options. A look-ahead is a step of plain SGD at ``lr`` all the same.
    seed
        Every random choice the learner makes follows from it and from the number of the step.

    Attributes
    ----------
    steps
        How many batches have been observed.
    passes
        Where examples that ``observe`` sends through the model are counted, if they are.
    task_aware
        Whether ``observe`` takes, and the method needs, the number of the task a batch is from.
    restores_parameters
        Whether a step that fails puts parameters back: to be declared where something can fail after its first update.
    told
        Whether ``predict`` is to be told the task of a test, where a method has a use for it.
    foreseeable
        Whether :meth:`step` asks the host for nothing but what is :meth:`planned`. It is not inherited: a subclass
        declares it for itself, and so do memories and edits.
    """

    version = 1
    task_aware: ClassVar[bool] = False
    foreseeable: ClassVar[bool] = False
    updates_per_batch: int = 1
    restores_parameters: bool = False
    told: bool = False

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: Memory | None = None,
        criterion: Loss = cross_entropy,
        optimizer: MakeOptimizer | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
            raise UsageError(f"the model must be a module with parameters to train, not {type(model).__name__}")
        if memory is not None:
            if not isinstance(memory, Memory):
                raise UsageError(f"memory must be a memory such as Reservoir(500), not {memory!r}")
            memory.claim()
        self.model = model
        self.lr = finite_number("lr", lr, above=0)
        like = next(model.parameters())
        if not like.is_floating_point():
            raise UsageError(f"the model's parameters must be floating-point numbers, not {like.dtype}")
        if self.lr > (most := torch.finfo(like.dtype).max):
            raise UsageError(f"lr must be at most {most:g}, which the model's parameters can hold, not {lr!r}")
        self.memory = memory
        self.seed = whole_number("seed", seed, least=0)
        if self.seed >= 2**63:
            raise UsageError(f"seed must be below 2**63, not {seed!r}")
        if not callable(criterion):
            raise UsageError(f"criterion must be a function of logits and labels, not {criterion!r}")
        self.criterion = criterion
        self.optimizer = None if optimizer is None else OptimizerStep(optimizer, trainable(model).values(), self.lr)
        self.steps = 0
        self.decisions: Decisions = AsTheyCome()
        self.passes: Passes | None = None
        self._samples: dict[str, tuple[Tensor, Decide]] = {}  # the latest of each purpose, and how it is decided
        self._sums_exactly = treats_examples_independently(model)
        self._shape: tuple[int, ...] | None = None
        self._classes = 0
        self._leaves_inputs_alone = keeps_its_inputs(model)
        self._lock = Lock()
        self._extras = Extras(self)
        self._to_store: dict[str, Tensor] = {}  # of the incoming batch, by the name of a column of memory

    # ------------------------------------------------------------------ what a method is

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> None:
        """Learn from one checked batch."""

    def loss(self, stream: Batch, replay: Batch | None) -> Tensor:
        """Return what an update minimizes: the mean loss of the incoming batch plus that of the replayed examples.

        A method that learns from another loss overrides this. Edits look ahead by the same loss of the stream alone.

        Parameters
        ----------
        stream
            The incoming batch. ``stream.store(logits=stream.output)`` keeps more of it in memory.
        replay
            The replayed examples, with ``replay["logits"]``; ``None`` while memory is empty, and where the loss of the
            stream alone is asked for.
        """
        total = self.criterion(stream.output, stream.y)
        return total if replay is None else total + self.criterion(replay.output, replay.y)

    def register_extra(self, name: str, value: Tensor | nn.Module) -> None:
        """Keep a tensor or a module as an attribute, as a part of the learner.

        It is saved, loaded, undone when a step fails and moved with the model; a module of the model's class, such as
        an averaged copy, is given more outputs when the model is.
        """
        self._extras.register(name, value)

    @property
    def prediction_model(self) -> nn.Module:
        """The network that predictions are made with: the model, unless a method overrides this."""
        return self.model

    def random(self, purpose: str) -> np.random.Generator:
        """This step's random numbers for one purpose; no purpose disturbs another."""
        if not self.decisions.live:
            raise UsageError(f"{type(self).__name__} is declared foreseeable, but its step draws {purpose!r} unplanned")
        return generator(self.seed, purpose, self.steps)

    def planned(self, name: str, decide: Decide) -> Tensor:
        """What ``decide`` decides in this step, as a tensor where the model is.

        It may use this learner's random numbers and counters, nothing that the batch or the model computes: then
        many steps can be decided ahead, and a step computed without asking the host.
        """
        return self.decisions.take(name, decide, next(self.model.parameters()).device)

    def sample(self, count: int, purpose: str) -> Tensor:
        """Slots of so many stored examples, uniformly. Learners that draw as many for one purpose draw alike."""
        decide = partial(self._drawn, count, purpose)
        drawn = self.planned(purpose, decide)
        self._samples[purpose] = drawn, decide
        return drawn

    def as_drawn(self, slots: Tensor) -> Decide | None:
        """How chance decides on slots, if this is what :meth:`sample` gave: for decisions that depend on them."""
        return next((decide for drawn, decide in self._samples.values() if drawn is slots), None)

    def _drawn(self, count: int, purpose: str) -> NDArray[np.int64]:
        return uniform(self._own_memory().filled(), count, self.random(purpose))

    def offer(self, x: Tensor, y: Tensor, **columns: Tensor) -> None:
        """Offer a batch to memory, with what else it keeps of examples."""
        memory, columns = self._own_memory(), {**self._to_store, **columns}
        if memory.foreseeable:
            places = self.planned("reservoir", lambda: memory.places(memory.admit(y, self.random("reservoir"))))
            origin = self.planned("origin", lambda: memory.next_origins(len(y)))
            memory.store(places, origin, x=x, y=y, **columns)
        else:
            memory.insert(x, y, self.random("reservoir"), **columns)

    def can_be_decided_ahead(self) -> bool:
        """Whether every step of this learner, as it is put together, is foreseeable."""
        parts = [
            part
            for part in (self, self.memory, getattr(self, "editing", None), getattr(self, "retrieval", None))
            if part is not None
        ]
        declared = all("foreseeable" in vars(type(part)) and part.foreseeable for part in parts)
        usual = self.optimizer is None and self.criterion is cross_entropy and not self._extras.names
        return declared and usual and leaves_nothing_to_chance(self.model)

    def steady(self) -> bool:
        """Whether further steps of the same task are made of the same operations, so that they can be decided ahead."""
        return True

    def torch_random(self, purpose: str) -> torch.Generator:
        """The same for many numbers at once, drawn on the model's device."""
        device = next(self.model.parameters()).device
        return torch.Generator(device).manual_seed(int(self.random(purpose).integers(2**63 - 1)))

    def room(self) -> int:
        """How many examples it can keep."""
        return 0 if self.memory is None else self.memory.capacity

    def added_parameters(self) -> int:
        """Parameters that its model has beyond those of the network it is compared with."""
        return 0

    @property
    def step_size(self) -> float:
        """τ at this step."""
        return self.lr

    def look_ahead(self, x: Tensor, y: Tensor) -> LookAhead:
        """One step of plain SGD on the loss of an incoming batch, taken on paper only."""
        own = None if self._has_usual_loss else lambda output, labels: self.loss(Batch(x, labels, output), None)
        return LookAhead(self.model, x, y, lr=self.step_size, loss=self.criterion, stream_loss=own)

    @property
    def _has_usual_loss(self) -> bool:
        """Whether the loss of stream and replay is the sum of their own."""
        return type(self).loss is Learner.loss

    def descend(
        self, ahead: LookAhead, x_m: Tensor | None = None, y_m: Tensor | None = None, slots: Tensor | None = None
    ) -> None:
        """Take one step on the loss of stream and replay, the stream batch being that of ``ahead``.

        One forward over both together, so that batch-norm sees them together. Where examples do not influence
        each other and the look-ahead was taken, its stream gradient is used again: the same sum.

        Parameters
        ----------
        slots
            Where the replayed examples are stored, for a loss that asks for what was stored with them.
        """
        replays = x_m is not None and y_m is not None and len(y_m) > 0
        if replays and ahead.taken and self._sums_exactly and self._has_usual_loss:
            assert x_m is not None and y_m is not None
            replay_loss, replay_slope = ahead.loss_and_gradient(x_m, y_m)
            self.move(sum_of(replay_slope, ahead.stream_gradient), ahead.stream_loss + replay_loss)
            return
        stream, replay = self._stream_and_replay(ahead, x_m, y_m, slots) if replays else self._stream_and_replay(ahead)
        loss = self.loss(stream, replay)
        self._to_store = stream.to_store
        self.move(gradient(loss, ahead.current), loss)

    def _stream_and_replay(
        self, ahead: LookAhead, x_m: Tensor | None = None, y_m: Tensor | None = None, slots: Tensor | None = None
    ) -> tuple[Batch, Batch | None]:
        """Stream and replay with what the model gives for them."""
        if x_m is None or y_m is None:
            return Batch(ahead.x, ahead.y, self.model(ahead.x)), None
        ours, theirs = torch.split(self.model(torch.cat([ahead.x, x_m])), [len(ahead.y), len(y_m)])
        return Batch(ahead.x, ahead.y, ours), Batch(x_m, y_m, theirs, partial(self._stored, slots))

    def _stored(self, slots: Tensor | None, name: str) -> Tensor:
        """What memory keeps of examples under a name."""
        memory = self._own_memory()
        if slots is None or not memory.has_column(name):
            raise UsageError(
                f"nothing called {name!r} is stored with the replayed examples; store it first: "
                f"stream.store({name}=...)"
            )
        values: Tensor = getattr(memory, name)[slots]
        return values

    @torch.no_grad()
    def move(self, slope: Mapping[str, Tensor], loss: Tensor) -> None:
        """Take a step along a gradient, by default θ ← θ - τ slope, unless loss or slope is not finite."""
        self.check_finite(loss, slope)
        if self.optimizer is None:
            descend(trainable(self.model), slope, self.step_size)
        else:
            self.optimizer([slope.get(name) for name in trainable(self.model)], self.step_size / self.lr)

    @torch.no_grad()
    def check_finite(self, loss: Tensor, slope: Mapping[str, Tensor]) -> None:
        statistics = running_statistics(self.model) if self.decisions.live else {}
        if not self.decisions.sound(loss, chain(witnesses(slope), statistics.values())):
            what = f"the loss is {float(loss):g} and its gradient "
            what += "finite" if all_finite(witnesses(slope)) else "not finite"
            what += "" if all_finite(statistics.values()) else ", and batch-norm statistics are not finite"
            raise DivergedError(
                f"at step {self.steps} {what}; the step was not taken. "
                f"Lower lr (now {self.lr:g}) or the edit's stride, or scale the inputs down."
            )

    # ------------------------------------------------------------------ what a user calls

    @torch.enable_grad()
    def observe(self, x: Any, y: Any) -> None:
        """Learn from one batch.

        Parameters
        ----------
        x
            (n, ...) floating-point inputs; pixels scaled to [0, 1] for the published strides to make sense.
            They are moved to the model's device and type.
        y
            (n,) integer class labels.

        Raises
        ------
        InputError
            If the batch cannot be used; neither model nor memory has changed.
        DivergedError
            If the loss is not finite; the step was not taken.
        """
        self._learn(x, y)

    @exclusive
    def _learn(self, x: Any, y: Any, *task: int) -> None:
        if torch.is_inference_mode_enabled():
            raise InputError("learning needs gradients, which torch.inference_mode() rules out; leave it first")
        if not any(p.requires_grad for p in self.model.parameters()):
            raise InputError("every parameter of the model is frozen; set requires_grad of those it shall learn")
        x, y, classes = self._checked(x, y)
        self._extras.to(x)
        self._to_store = {}
        try:
            with self._all_or_nothing(), self._room_in_memory(x, y), self._own_randomness(), self._counting():
                self.step(x, y, *task)
        except ValueError as error:
            if isinstance(error, GmedError):
                raise
            raise InputError(f"the model cannot learn from a batch of shape {tuple(x.shape)}: {error}") from error
        self._shape, self._classes = tuple(x.shape[1:]), classes
        self.steps += 1

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """The class of each input, with the model in evaluation mode. Nothing is changed."""
        return self.logits(x).argmax(1)

    @waits_for_changes
    @torch.no_grad()
    def logits(self, x: Any) -> Tensor:
        """The model's output for each input, with the model in evaluation mode. Nothing is changed."""
        x = self._inputs(x)
        if self._leaves_inputs_alone:
            return self._evaluated(x, self.prediction_model)
        with unchanged_inputs(x) as (copy,):
            return self._evaluated(copy, self.prediction_model)

    @waits_for_changes
    @torch.no_grad()
    def features(self, x: Any) -> Tensor:
        """The input of the last linear layer for each input, with the model in evaluation mode. Nothing is changed.

        >>> import gmed
        >>> learner = gmed.learners.FineTune(gmed.models.MLP(4, 8, classes=2), lr=0.1)
        >>> learner.features(torch.rand(3, 4)).shape
        torch.Size([3, 8])
        """
        model, x = self.prediction_model, self._inputs(x)
        with evaluating(model), unchanged_inputs(x) as (copy,):
            return features(model, copy)

    @exclusive
    def forget(
        self,
        *,
        origin: int | Sequence[int] | None = None,
        label: int | Sequence[int] | None = None,
        where: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> int:
        """Remove stored examples from memory on request, and tell how many.

        Their values are overwritten in memory's tensors, so they are in no state or checkpoint written from now on;
        older files keep them, and so may memory that the process has given back. What was learned from them stays
        learned: the model's parameters, and what a method derives from many examples (the anchors and mean embeddings
        of HAL), do not change. The stream goes on as ever; who enters memory later is for each kind of memory to say.

        One of the three is given. Examples that are not stored are not an error: there is nothing of them to remove.

        Parameters
        ----------
        origin
            Which examples of the stream: 0 is the first one ever observed. This finds edited examples too.
        label
            Examples of which classes.
        where
            Called with all stored examples ``(x, y)`` as they are now, edited or not; says of each whether it goes.

        Examples
        --------
        >>> import torch, gmed
        >>> learner = gmed.learners.ER(gmed.models.MLP(), lr=0.05, memory=gmed.memory.Reservoir(500))
        >>> learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10))
        >>> learner.forget(origin=[0, 7]), learner.forget(label=3), learner.forget(where=lambda x, y: y > 7)
        (2, 1, 2)
        >>> learner.memory.y[learner.memory.filled()].tolist()
        [1, 2, 4, 5, 6]
        """
        kept = self.kept_examples()
        goes = asked_for(kept, origin=origin, label=label, where=where)
        if goes.any():
            self.discard(goes)
        return int(goes.sum())

    def kept_examples(self) -> Kept:
        """The examples it keeps for later, on which a request to forget is decided."""
        memory = self.memory
        if memory is None or not memory.ready:
            return Kept.none()
        held = torch.from_numpy(memory.filled()).to(memory.y.device)
        return Kept(memory.x[held], memory.y[held], memory.origin[held])

    def discard(self, goes: NDArray[np.bool_]) -> None:
        """Keep some of :meth:`kept_examples` no longer."""
        memory = self._own_memory()
        memory.remove(memory.filled()[goes])

    @property
    def classes(self) -> int:
        """How many classes the model tells apart; 0 as long as nothing was observed."""
        return self._classes

    @exclusive
    def grow(self, classes: int) -> None:
        """Have the model tell so many classes apart, the new ones behind the others.

        The outputs for the others and the memory stay as they are. Only models whose last layer is known to be
        linear can grow (:func:`gmed.models.grow_outputs`).

        >>> import gmed
        >>> learner = gmed.learners.FineTune(gmed.models.MLP(4, 8, classes=2), lr=0.1)
        >>> learner.observe(torch.rand(3, 4), torch.tensor([0, 1, 0]))
        >>> learner.grow(3)
        >>> learner.observe(torch.rand(3, 4), torch.tensor([0, 1, 2]))
        """
        with torch_seeded(self.seed, "new outputs", self.steps):
            grow_outputs(self.model, whole_number("classes", classes))
        with torch_seeded(self.seed, "new outputs", self.steps):
            self._extras.grow(self.model, classes)
        if self.optimizer is not None:
            self.optimizer.follow(trainable(self.model).values())
        if self._shape is not None:
            self._classes = classes

    # ------------------------------------------------------------------ state is data

    @waits_for_changes
    def state_dict(self) -> dict[str, Tensor]:
        """Everything the learner is, as named tensors: load it into a learner built alike to go on exactly."""
        counters = {"steps": self.steps, "seed": self.seed, "classes": self._classes}
        state = {name: torch.tensor(number) for name, number in counters.items()}
        state["shape"] = torch.tensor(self._shape or (), dtype=torch.int64)
        state |= {f"model.{name}": t.detach() for name, t in self.model.state_dict().items()}
        if self.memory is not None:
            state |= {f"memory.{name}": t for name, t in self.memory.state_dict().items()}
        state |= {f"own.{name}": t for name, t in self.own_state().items()}
        state |= self.extra_state()
        return {name: t.clone() for name, t in state.items()}

    @exclusive
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Become the learner whose state this is, its seed included. A state that does not fit changes nothing."""
        self._check_fits(state)
        before = self.state_dict()
        try:
            self._become(state)
        except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            self._become(before)
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"this state does not fit the learner: {error}") from error

    def _check_fits(self, state: dict[str, Tensor]) -> None:
        own = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        counters = ["steps", "seed", "classes", *(["memory.seen"] if self.memory is not None else [])]
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

    def _become(self, state: dict[str, Tensor]) -> None:
        like = next(self.model.parameters())

        def part(prefix: str, where: torch.device = like.device) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v.to(where) for k, v in state.items() if k.startswith(prefix)}

        if self.memory is not None:
            self.memory.load_state_dict(part("memory.", torch.device("cpu")))
            if self.memory.ready:
                self.memory.to(like)
        self.model.load_state_dict(part("model."))
        self.steps, self.seed, self._classes = (int(state[name]) for name in ("steps", "seed", "classes"))
        self._shape = tuple(state["shape"].tolist()) or None
        self.load_own_state(part("own."))
        self._extras.load_state_dict(part("extra."))
        if self.optimizer is not None:
            self.optimizer.load_state_dict(part("optimizer."))
        elif part("optimizer."):
            raise UsageError("this state is of a learner with another optimizer; build this one with it")
        if self._shape is not None:
            self._check_stream(like.new_empty((1, *self._shape)))

    def _check_stream(self, x: Tensor) -> None:
        """Make sure that a state's examples and labels are such as this model takes."""
        classes = self._evaluated(x).shape[1]
        if self._classes != classes:
            raise UsageError(f"this state is of {self._classes} classes, the model has {classes} outputs")
        if self.memory is not None and self.memory.ready:
            held = torch.from_numpy(self.memory.filled())
            labels = self.memory.y.cpu()[held]
            if self.memory.x.shape[1:] != x.shape[1:] or bool(((labels < 0) | (labels >= classes)).any()):
                raise UsageError("the memory in this state holds examples of another stream: it is damaged")

    def extra_state(self) -> dict[str, Tensor]:
        """Return what was registered with :meth:`register_extra`, and what the optimizer remembers."""
        state = {f"extra.{name}": t for name, t in self._extras.state_dict().items()}
        if self.optimizer is not None:
            state |= {f"optimizer.{name}": t for name, t in self.optimizer.state_dict().items()}
        return state

    def own_state(self) -> dict[str, Tensor]:
        """What a learner knows besides its model, memory and counters."""
        return {}

    def load_own_state(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Take it back."""

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file, whole or not at all."""
        write_state(Path(path), self.state_dict(), {"learner": type(self).__name__})

    def load(self, path: str | Path) -> None:
        """Become the learner saved in this file; this one must have been built alike. Reading runs no code."""
        state, _ = read_state(Path(path), {"learner": type(self).__name__})
        try:
            self.load_state_dict(state)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error

    # ------------------------------------------------------------------ checks

    def _inputs(self, given: Any) -> Tensor:
        x = as_tensor("x", given)
        if not x.is_floating_point():
            raise InputError(
                f"x holds {x.dtype}, floating-point values are needed. Pixels: scale them first, x.float() / 255."
            )
        if x.ndim < 2 or not len(x):
            raise InputError(f"x must be a batch of at least one example, not of shape {tuple(x.shape)}")
        if self._shape is not None and x.shape[1:] != self._shape:
            raise InputError(f"examples of shape {tuple(x.shape[1:])} do not fit this stream's {tuple(self._shape)}")
        like = next(self.model.parameters())
        if like.is_meta:
            raise InputError("the model is on the meta device, without values; give it some first: model.to_empty(...)")
        x = x.detach().to(device=like.device, dtype=like.dtype)
        if not all_finite([x]):
            where = (~torch.isfinite(x).flatten(1).all(1)).nonzero().flatten().tolist()
            raise InputError(
                f"x holds NaN or infinity (in {like.dtype}) in example(s) {where[:5]} of the batch. "
                "Drop or mend them before observing."
            )
        return x

    def _checked(self, x: Any, y: Any) -> tuple[Tensor, Tensor, int]:
        x = self._inputs(x).clone()  # the caller may change theirs later
        y = as_tensor("y", y)
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"y holds {y.dtype}, integer class labels are needed")
        if y.ndim != 1 or len(y) != len(x):
            raise InputError(f"y must hold one label per example: shape {tuple(y.shape)} for {len(x)} examples")
        y = y.detach().to(device=x.device, dtype=torch.int64, copy=True)
        classes = self._classes if self._shape is not None else self._count_classes(x)
        if int(y.min()) < 0 or int(y.max()) >= classes:
            raise InputError(
                f"labels run from {int(y.min())} to {int(y.max())}; the model has {classes} outputs, "
                f"so they must lie in 0 .. {classes - 1}"
            )
        return x, y, classes

    def _count_classes(self, x: Tensor) -> int:
        """Try the model on the first batch: do inputs of this shape fit, and how many classes come out?"""
        output = self._evaluated(x[:1].clone())
        if not output.requires_grad:
            raise InputError("the model's output does not depend on any parameter it could learn; is it detached?")
        if not self._leaves_inputs_alone:
            with unchanged_inputs(x) as (copy,):
                self._evaluated(copy[:1])
                if self.model.training:
                    self._tried(copy)
        return int(output.shape[1])

    @torch.no_grad()
    def _tried(self, x: Tensor) -> Tensor:
        """The model's output in the mode it is in; nothing of the model or of torch's generators changes."""
        with same_chance():
            return forward(self.model, trainable(self.model), x)

    def _evaluated(self, x: Tensor, model: nn.Module | None = None) -> Tensor:
        """The model's output in evaluation mode, or the error that says why it is of no use."""
        model = self.model if model is None else model
        try:
            with evaluating(model):
                output = model(x)
        except (RuntimeError, ValueError, TypeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise InputError(f"the model does not take inputs of shape {tuple(x.shape)}: {error}") from error
        wanted = f"the model must return a ({len(x)}, classes) tensor of logits for {len(x)} inputs"
        if not isinstance(output, Tensor):
            raise InputError(f"{wanted}, not {type(output).__name__}")
        if output.ndim != 2 or len(output) != len(x) or not output.shape[1]:
            raise InputError(f"{wanted}, not one of shape {tuple(output.shape)}")
        if not output.is_floating_point() or output.layout != torch.strided or output.device != x.device:
            kind = f"{output.dtype} ({output.layout}) on {output.device}"
            raise InputError(f"{wanted}: dense and floating-point on {x.device}, not {kind}")
        return output

    def _restores(self) -> bool:
        """Whether a step that fails puts parameters back."""
        return self.restores_parameters or self.updates_per_batch > 1

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """A step that fails leaves no trace: neither in batch-norm statistics and what the method keeps nor, where
        something can fail after its first update, in the parameters."""
        tensors = [*self.model.buffers(), *self._extras.tensors()]
        if self._restores():
            tensors += [*self.model.parameters(), *(self.optimizer.tensors() if self.optimizer is not None else ())]
        before, held = Snapshot(tensors), self._extras.items()
        remembered = self.optimizer.remembered() if self.optimizer is not None else set()
        try:
            yield
        except BaseException:
            for name, value in held:
                setattr(self, name, value)
            before.restore()
            if self.optimizer is not None and self._restores():
                self.optimizer.drop_all_but(remembered)
            raise

    @contextmanager
    def _room_in_memory(self, x: Tensor, y: Tensor) -> Iterator[None]:
        """Have memory where the model is, laid out for the first batch; a step that fails leaves no trace there."""
        if self.memory is None:
            yield
        elif self.memory.ready:
            self.memory.to(x)
            with self.memory.transaction():
                yield
        else:
            try:
                self.memory.lay_out(x, y)
                yield
            except BaseException:
                self.memory.clear()
                raise

    def _own_memory(self) -> Memory:
        assert self.memory is not None
        return self.memory

    def _counting(self) -> AbstractContextManager[None]:
        return nullcontext() if self.passes is None else self.passes.counting(self.model)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Dropout and the like draw from this learner's seed and step, not from what else the process does."""
        if leaves_nothing_to_chance(self.model):
            yield
        else:
            with torch_seeded(self.seed, "model", self.steps):
                yield
