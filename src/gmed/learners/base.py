"""The base class of learners: ``observe``, ``predict``, saving and loading, and the building blocks of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_attributes
from gmed.errors import DivergedError, GmedError, InputError, UsageError, check_float, check_int
from gmed.kernels.low_rank import add_grads, finite_checks, sgd_step
from gmed.kernels.relu_chain_compiled import fused_chain
from gmed.learners._locking import Lock, consistent_read, exclusive
from gmed.learners._rollback import Rollback
from gmed.learners._validation import check_inputs, check_labels, check_trainable, checked_logits, count_classes
from gmed.learners.batch import Batch
from gmed.learners.draws import RandomDraws, all_finite
from gmed.learners.optimizer import MakeOptimizer, OptimizerStep
from gmed.learners.removal import ExampleRemoval
from gmed.learners.stateful import Extras, Stateful
from gmed.memory import Memory
from gmed.models import (
    LookAhead,
    Loss,
    ModelInfo,
    PassCounter,
    eval_mode,
    expand_outputs,
    features,
    gradient,
    inspect_model,
    is_batch_independent,
    preserves_inputs,
    to_channels_last,
    trainable,
    unchanged_inputs,
    unwritten,
)
from gmed.rng import seeded_torch


@old_attributes(
    forget="remove_examples",
    grow="add_classes",
    step_size="lr_now",
    descend="sgd_step",
    move="apply_gradients",
    offer="add_to_memory",
    planned="draw",
    own_state="get_extra_state",
    load_own_state="set_extra_state",
    kept_examples="stored_examples",
    discard="drop_examples",
    room="memory_size",
    added_parameters="extra_parameters",
    can_be_decided_ahead="is_capturable",
    steady="has_static_graph",
    foreseeable="capturable",
    told="task_at_test",
)
class Learner(Stateful, ExampleRemoval, RandomDraws, ABC):
    """A model that learns from a stream, one batch at a time, and can predict at any moment.

    A learner is defined by its :meth:`step`; everything else here is shared by all learners.

    A call that fails changes nothing, and Ctrl-C waits for the end of the step. One thread may train a learner while
    others predict with it, save it or remove examples from it: each call sees the learner before or after a step, never
    in the middle of one. This holds for calls of the learner, not for direct calls of its ``model``.

    Parameters
    ----------
    model
        Any module from a batch of inputs to a (batch, classes) tensor of logits. It is trained in place, in
        the mode (training or evaluation) you leave it in.
    lr
        Learning rate of plain SGD.
    memory
        The memory in which the learner stores examples, if any.
    criterion
        Mean loss of a batch, a function of ``(logits, labels)``.
    optimizer
        The optimizer that makes the updates, by default plain SGD: a class of ``torch.optim``, or a
        ``functools.partial`` of one with its options. A look-ahead is a step of plain SGD at ``lr`` in any case.
    seed
        Random seed. Every random choice of the learner is determined by it and the number of the step.

    Attributes
    ----------
    steps
        Number of batches observed so far.
    passes
        Counter of the examples that ``observe`` passes through the model, or ``None``.
    task_aware
        Whether the method needs task ids: ``observe`` then takes the id of each batch.
    restores_parameters
        Whether a failed step restores the parameters. To be set where something can fail after the first update of a
        step. If the learner, its memory or its optimizer is defined outside this package, they are always restored.
    task_at_test
        Whether ``predict`` is given the task id of a test, where a method can use it.
    capturable
        Whether :meth:`step` can be captured as a CUDA graph: all it needs from the host it gets by :meth:`draw`. This
        is not inherited: a subclass declares it for itself, and so do memories and edits.
    """

    part_kind: ClassVar[str] = "method"
    id: ClassVar[str] = "Learner"
    version = 1
    task_aware: ClassVar[bool] = False
    capturable: ClassVar[bool] = False
    restores_parameters: bool = False
    task_at_test: bool = False

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
        super().__init__()
        if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
            raise UsageError(f"the model must be a module with parameters to train, not {type(model).__name__}")
        if memory is not None:
            if not isinstance(memory, Memory):
                raise UsageError(f"memory must be a gmed.memory.Memory such as Reservoir(500), not {memory!r}")
            memory.bind()
        self.model = to_channels_last(model)
        self.lr = check_float("lr", lr, greater_than=0)
        like = next(model.parameters())
        if not like.is_floating_point():
            raise UsageError(f"the model's parameters must be floating-point numbers, not {like.dtype}")
        if self.lr > (maximum := torch.finfo(like.dtype).max):
            raise UsageError(f"lr must be at most {maximum:g}, the maximum of {like.dtype}, not {lr!r}")
        self.memory = memory
        self.seed = check_int("seed", seed, minimum=0)
        if self.seed >= 2**63:
            raise UsageError(f"seed must be below 2**63, not {seed!r}")
        if not callable(criterion):
            raise UsageError(f"criterion must be a function of logits and labels, not {criterion!r}")
        self.criterion = criterion
        self.optimizer = None if optimizer is None else OptimizerStep(optimizer, trainable(model).values(), self.lr)
        self.steps = 0
        self.passes: PassCounter | None = None
        self._batch_independent = is_batch_independent(model)
        self._shape: tuple[int, ...] | None = None
        self._classes = 0
        self._preserves_inputs = preserves_inputs(model)
        fused_chain(model)  # compiles it, with the extra gmed[fast], before the first step
        self._model_info: ModelInfo | None = None  # of the model, during a step
        self._lock = Lock()
        self._extras = Extras(self)
        self._new_columns: dict[str, Tensor] = {}  # what memory stores with the incoming batch, by name of the column

    # ------------------------------------------------------------------ what defines a method

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> None:
        """Learn from one checked batch."""

    def loss(self, stream: Batch, replay: Batch | None) -> Tensor:
        """Return the loss of an update: the mean loss of the incoming batch plus that of the replayed examples.

        A method with another loss overrides this. The look-ahead uses the same loss, with the incoming batch alone.

        Parameters
        ----------
        stream
            The incoming batch. ``stream.store(logits=stream.output)`` stores its logits in memory too.
        replay
            The replayed examples, with ``replay["logits"]``; ``None`` while memory is empty and in the look-ahead.
        """
        total = self.criterion(stream.output, stream.y)
        return total if replay is None else total + self.criterion(replay.output, replay.y)

    @property
    def prediction_model(self) -> nn.Module:
        """The network that makes predictions: the model, unless a method overrides this."""
        return self.model

    # ------------------------------------------------------------------ the interface for users

    def observe(self, x: Any, y: Any) -> None:
        """Learn from one batch.

        Parameters
        ----------
        x
            (n, ...) floating-point inputs. The published strides assume pixels scaled to [0, 1].
            Inputs are moved to the model's device and dtype.
        y
            (n,) integer class labels.

        Raises
        ------
        InputError
            If the batch is invalid; neither model nor memory has changed.
        DivergedError
            If the loss is not finite; the step was not taken.
        """
        self._observe(x, y)

    @exclusive
    def update(self, x: Tensor, y: Tensor, *task: int) -> None:
        """Learn from one batch that is known to be valid, such as one of a benchmark.

        Like :meth:`observe`, but without the checks of the batch. Here too, a step that fails changes nothing.

        Parameters
        ----------
        x, y
            Finite floating-point inputs, and integer labels that the model has outputs for. The tensors must not be
            changed later. They are moved to the model's device and dtype.
        task
            The task id, for a task-aware learner.
        """
        like = next(self.model.parameters())
        x, y = x.to(like.device, like.dtype), y.to(like.device)
        self._update(x, y, self._num_outputs(x), *task)

    @torch.no_grad()
    def predict(self, x: Any) -> Tensor:
        """Return the predicted class of each input, with the model in evaluation mode. Nothing is changed."""
        return self.logits(x).argmax(1)

    @consistent_read
    @torch.no_grad()
    def logits(self, x: Any) -> Tensor:
        """Return the model's output for each input, with the model in evaluation mode. Nothing is changed."""
        x = self._checked_inputs(x)
        if self._preserves_inputs:
            return checked_logits(self.prediction_model, x)
        with unchanged_inputs(x) as (copy,):
            return checked_logits(self.prediction_model, copy)

    @consistent_read
    @torch.no_grad()
    def features(self, x: Any) -> Tensor:
        """Return the input of the last linear layer for each input, with the model in evaluation mode.

        Nothing is changed.

        >>> import gmed
        >>> learner = gmed.learners.FineTune(gmed.models.MLP(4, 8, classes=2), lr=0.1)
        >>> learner.features(torch.rand(3, 4)).shape
        torch.Size([3, 8])
        """
        model, x = self.prediction_model, self._checked_inputs(x)
        with eval_mode(model), unchanged_inputs(x) as (copy,):
            return features(model, copy)

    @exclusive
    def add_classes(self, classes: int) -> None:
        """Extend the model to this number of classes; the new ones come after the existing ones.

        The existing outputs and the memory do not change. Only models whose last layer is known to be linear can be
        extended (:func:`gmed.models.expand_outputs`).

        >>> import gmed
        >>> learner = gmed.learners.FineTune(gmed.models.MLP(4, 8, classes=2), lr=0.1)
        >>> learner.observe(torch.rand(3, 4), torch.tensor([0, 1, 0]))
        >>> learner.add_classes(3)
        >>> learner.observe(torch.rand(3, 4), torch.tensor([0, 1, 2]))
        """
        check_int("classes", classes)
        for model in (self.model, *self._extras.copies_of(self.model)):
            with seeded_torch(self.seed, "new outputs", self.steps):
                expand_outputs(model, classes)
        if self.optimizer is not None:
            self.optimizer.follow(trainable(self.model).values())
        if self._shape is not None:
            self._classes = classes

    @property
    def classes(self) -> int:
        """Number of classes of the model; 0 before the first batch."""
        return self._classes

    # ------------------------------------------------------------------ the building blocks of a step

    @property
    def lr_now(self) -> float:
        """τ, the learning rate at this step."""
        return self.lr

    def look_ahead(self, x: Tensor, y: Tensor) -> LookAhead:
        """Return the look-ahead, a trial step of plain SGD on the loss of an incoming batch; the model is unchanged."""
        custom = None if self._has_default_loss else lambda output, labels: self.loss(Batch(x, labels, output), None)
        info = self.model_info
        return LookAhead(self.model, x, y, lr=self.lr_now, loss=self.criterion, stream_loss=custom, info=info)

    def sgd_step(
        self, ahead: LookAhead, x_m: Tensor | None = None, y_m: Tensor | None = None, slots: Tensor | None = None
    ) -> None:
        """Take one step on the loss of the stream batch, which is that of ``ahead``, and the replayed examples.

        There is one forward pass over both, so that batch-norm sees them together. If examples do not influence each
        other and the look-ahead was computed, its stream gradient is reused: the sum is the same.

        Parameters
        ----------
        x_m, y_m
            The replayed examples, if there are any.
        slots
            The slots of the replayed examples, for a loss that reads what was stored with them.
        """
        replays = x_m is not None and y_m is not None and len(y_m) > 0
        if replays and ahead.is_computed and self._batch_independent and self._has_default_loss:
            assert x_m is not None and y_m is not None
            replay_loss, replay_grads = ahead.loss_and_gradient(x_m, y_m)
            self.apply_gradients(add_grads(replay_grads, ahead.stream_gradient), ahead.stream_loss + replay_loss)
            return
        if self._has_default_loss and self.optimizer is None:
            by_hand = ahead.joint_loss_and_gradient(*((x_m, y_m) if replays else (None, None)))
            if by_hand is not None:
                loss, grads = by_hand
                self.apply_gradients(grads, loss)
                return
        stream, replay = self._forward_batches(ahead, x_m, y_m, slots) if replays else self._forward_batches(ahead)
        loss = self.loss(stream, replay)
        self.apply_gradients(gradient(loss, ahead.theta), loss)

    @torch.no_grad()
    def apply_gradients(self, grads: Mapping[str, Tensor], loss: Tensor) -> None:
        """Take a step along a gradient, by default θ ← θ - τ grads; raise an error if the loss or it is not finite."""
        self.check_finite(loss, grads)
        if self.memory is not None:
            self.memory.check_columns(self._new_columns)  # to fail before the update if they cannot be stored
        if self.optimizer is None:
            sgd_step(self.model_info.parameters, grads, self.lr_now)
        else:
            self.optimizer([grads.get(name) for name in self.model_info.parameters], self.lr_now / self.lr)

    def check_finite(self, loss: Tensor, grads: Mapping[str, Tensor]) -> None:
        """Raise an error if the loss, its gradient or the batch-norm statistics are not finite."""
        statistics = self.model_info.batch_norm_buffers if self.draw_source.is_eager else []
        if not self.draw_source.accept_step(loss, chain(finite_checks(grads), statistics)):
            problem = f"the loss is {float(loss):g} and its gradient "
            problem += "finite" if all_finite(finite_checks(grads)) else "not finite"
            problem += "" if all_finite(statistics) else ", and batch-norm statistics are not finite"
            raise DivergedError(
                f"at step {self.steps} {problem}; the step was not taken. "
                f"Lower lr (now {self.lr:g}) or the edit's stride, or scale the inputs down."
            )

    def add_to_memory(self, x: Tensor, y: Tensor, **columns: Tensor) -> None:
        """Offer a batch to memory, with the further columns that it stores."""
        memory, columns = self._require_memory(), {**self._new_columns, **columns}
        if memory.capturable:
            rows = self.draw("reservoir", lambda: memory.target_rows(memory.select_slots(y, self.random("reservoir"))))
            stream_index = self.draw("origin", lambda: memory.next_stream_indices(len(y)))
            memory.store(rows, stream_index, x=x, y=y, **columns)
        else:
            memory.insert(x, y, self.random("reservoir"), **columns)

    @property
    def model_info(self) -> ModelInfo:
        """Information about the model: collected once per step, and on each access outside of steps."""
        return self._model_info or inspect_model(self.model)

    @property
    def arithmetic(self) -> str:
        """The method that computes the gradients of small batches: autograd, or a hand-differentiated chain."""
        chain = fused_chain(self.model) if self.criterion is cross_entropy and self._has_default_loss else None
        return "autograd" if chain is None else chain.arithmetic

    @property
    def _has_default_loss(self) -> bool:
        """Whether the loss of stream and replay is the sum of their losses."""
        return type(self).loss is Learner.loss

    def _forward_batches(
        self, ahead: LookAhead, x_m: Tensor | None = None, y_m: Tensor | None = None, slots: Tensor | None = None
    ) -> tuple[Batch, Batch | None]:
        """Return the stream batch and the replayed one, with the model's output for them."""
        if x_m is None or y_m is None:
            return self._stream_batch(ahead.x, ahead.y, self.model(ahead.x)), None
        output, output_m = torch.split(self.model(torch.cat([ahead.x, x_m])), [len(ahead.y), len(y_m)])
        return self._stream_batch(ahead.x, ahead.y, output), Batch(x_m, y_m, output_m, partial(self._stored, slots))

    def _stream_batch(self, x: Tensor, y: Tensor, output: Tensor) -> Batch:
        """Return the incoming batch; what a loss stores with it is stored in memory."""
        batch = Batch(x, y, output)
        self._new_columns = batch.new_columns
        return batch

    def _stored(self, slots: Tensor | None, name: str) -> Tensor:
        """Return the values in memory of examples in a column."""
        memory = self._require_memory()
        if slots is None or not memory.has_column(name):
            raise UsageError(
                f"no {name!r} is stored with the replayed examples; store it first: stream.store({name}=...)"
            )
        values: Tensor = getattr(memory, name)[slots]
        return values

    # ------------------------------------------------------------------ around a step

    @exclusive
    def _observe(self, x: Any, y: Any, *task: int) -> None:
        check_trainable(self.model)
        x = self._checked_inputs(x).clone()  # the caller may change the original later
        classes = self._num_outputs(x)
        self._update(x, check_labels(y, x, classes), classes, *task)

    def _update(self, x: Tensor, y: Tensor, classes: int, *task: int) -> None:
        """Take one step on a checked batch; a step that fails is rolled back."""
        if self._extras.names:
            self._extras.to(x)
        if self.optimizer is not None:
            self.optimizer.to_parameters()
        self._new_columns, self._device = {}, x.device
        self._model_info = inspect_model(self.model)
        try:
            with self._rollback(x, y), self._seeded_model(), self._count_passes(), unwritten(x), torch.enable_grad():
                self.step(x, y, *task)
        except ValueError as error:
            if isinstance(error, GmedError):
                raise
            raise InputError(f"the model cannot learn from a batch of shape {tuple(x.shape)}: {error}") from error
        finally:
            self._model_info = None
        self._shape, self._classes = tuple(x.shape[1:]), classes
        self.steps += 1

    def _checked_inputs(self, given: Any) -> Tensor:
        return check_inputs(self.model, given, self._shape)

    def _num_outputs(self, x: Tensor) -> int:
        return self._classes if self._shape is not None else count_classes(self.model, x)

    def _rollback(self, x: Tensor, y: Tensor) -> Rollback:
        return Rollback(self, x, y)

    def _seeded_model(self) -> AbstractContextManager[None]:
        """Seed the random numbers of the model (such as dropout) by this learner's seed and step."""
        return nullcontext() if self.model_info.deterministic else seeded_torch(self.seed, "model", self.steps)

    def _count_passes(self) -> AbstractContextManager[None]:
        return nullcontext() if self.passes is None else self.passes.counting(self.model)

    # ------------------------------------------------------------------ what some methods override

    def memory_size(self) -> int:
        """Return the number of examples that the learner can store."""
        return 0 if self.memory is None else self.memory.capacity

    def extra_parameters(self) -> int:
        """Return the number of parameters that its model has beyond those of the network it is compared with."""
        return 0

    def step_parts(self) -> tuple[Any, ...]:
        """Return the parts of a step that declare ``capturable``: the learner, its memory and the like, or ``None``."""
        return self, self.memory

    def is_capturable(self) -> bool:
        """Return whether every step of this learner, with all its parts, can be captured as a CUDA graph."""
        parts = [part for part in self.step_parts() if part is not None]
        declared = all("capturable" in vars(type(part)) and part.capturable for part in parts)
        default = self.optimizer is None and self.criterion is cross_entropy and not self._extras.names
        return declared and default and self.model_info.deterministic

    def has_static_graph(self) -> bool:
        """Return whether the next steps of this task consist of the same operations, so that one can be captured."""
        return True


class TaskAware(Learner):
    """A learner that needs the task id of each batch to learn from. Predictions need no task id."""

    task_aware: ClassVar[bool] = True

    def observe(self, x: Any, y: Any, task: int) -> None:  # type: ignore[override]
        """Learn from one batch of the task with this id (0, 1, ...)."""
        try:
            number = check_int("task", task, minimum=0)
        except UsageError as error:
            raise InputError(str(error)) from None
        self._observe(x, y, number)

    @abstractmethod
    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        """Learn from one checked batch of a task."""
