"""Replay and GMED as a plugin for the strategies of Avalanche."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gmed.editing import Edit
from gmed.errors import InputError, UsageError, check_float
from gmed.learners import ER
from gmed.learners.replay import EditedBatch
from gmed.memory import Memory
from gmed.models import LookAhead
from gmed.retrieval import Retrieval

try:
    from avalanche.core import SupervisedPlugin
    from avalanche.models.utils import is_multi_task_module
except (ImportError, RuntimeError) as error:  # RuntimeError: raised by a torchvision that does not match torch
    hint = "pip install 'gmed[avalanche]', with a torchvision built for your torch"
    raise UsageError(f"the Avalanche plugin needs Avalanche, which cannot be imported ({error}): {hint}") from error

__all__ = ["GMEDPlugin"]


class _Step(NamedTuple):
    """The state of a step, from the forward pass to the update."""

    x: Tensor
    y: Tensor
    edited: EditedBatch
    y_m: Tensor
    output_m: Tensor | None = None


class GMEDPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Experience replay with an edited memory, for a strategy such as ``Naive`` on a stream seen once.

    It adds a step of :class:`gmed.learners.ER` to a strategy. Before the strategy's forward pass it draws stored
    examples, edits them and appends them to the batch; after the pass it removes them again, so that the strategy, its
    metrics and other plugins see only the incoming batch. The loss is the mean over the batch plus the mean over the
    replayed examples. After the update the edited examples are written back and the batch is offered to the memory.

    Task labels and boundaries are not used. A strategy with several epochs over experiences of one batch each is
    equivalent to ``ER`` with ``updates_per_batch``: it edits in the first epoch and stores in the last.

    Parameters
    ----------
    memory, editing, replay_size, retrieval, seed
        As in :class:`gmed.learners.ER`. Without ``editing`` it is plain experience replay.
    lr
        The learning rate of the look-ahead, which is a step of plain SGD. By default the current learning rate of the
        strategy's optimizer, which must then be SGD.

    Attributes
    ----------
    learner
        The replay learner, created with the first experience; its model is the strategy's.

    Examples
    --------
    >>> import torch, gmed
    >>> from avalanche.training import Naive
    >>> from gmed.avalanche import GMEDPlugin
    >>> model = gmed.models.MLP()
    >>> plugin = GMEDPlugin(gmed.memory.Reservoir(500), gmed.editing.GMED(alpha=5.0, beta=0.01))
    >>> strategy = Naive(
    ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), train_mb_size=10, plugins=[plugin]
    ... )
    """

    def __init__(
        self,
        memory: Memory,
        editing: Edit | None = None,
        *,
        replay_size: int = 10,
        retrieval: Retrieval | None = None,
        lr: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.memory = memory
        self.lr = None if lr is None else check_float("lr", lr, greater_than=0)
        self.learner: ER | None = None
        self._options: dict[str, Any] = {
            "memory": memory,
            "editing": editing,
            "replay_size": replay_size,
            "retrieval": retrieval,
            "seed": seed,
        }
        self._step: _Step | None = None

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Check that replay is compatible with the strategy."""
        if is_multi_task_module(strategy.model):
            raise UsageError("the model needs task labels, which the memory does not store; use a model without them")
        if getattr(strategy._criterion, "reduction", "mean") != "mean":
            raise UsageError(f"the criterion must be a mean over examples, not {strategy._criterion.reduction!r}")

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Check that examples are seen once, or one batch at a time."""
        if strategy.train_epochs > 1 and len(strategy.dataloader) > 1:
            raise UsageError(
                f"{strategy.train_epochs} epochs over an experience of {len(strategy.dataloader)} batches are not "
                "online; choose one epoch, or experiences of one batch each (split_online_stream)"
            )
        if self.learner is None:
            self.learner = ER(strategy.model, lr=self._lookahead_lr(strategy), **self._options)

    def before_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Draw and edit stored examples, and append them to the batch."""
        learner, memory = self._learner(), self.memory
        x, y = strategy.mb_x, strategy.mb_y
        self._check_batch(x, y)
        if memory.is_allocated:
            memory.to(x)
        else:
            memory.allocate(x, y)
        learner.model, learner.lr = strategy.model, self._lookahead_lr(strategy)
        lookahead = LookAhead(strategy.model, x, y, lr=learner.lr, loss=strategy._criterion)
        if epoch := strategy.clock.train_exp_epochs:
            drawn = learner.retrieve(lookahead, f"replay {epoch}")
            edited = EditedBatch(drawn, memory.x[drawn])
        else:
            drawn = learner.retrieve(lookahead)
            edited = learner.edit(drawn, lookahead)
        self._step = _Step(x, y, edited, memory.y[drawn])
        strategy.mbatch[0] = torch.cat([x, edited.x[: len(drawn)]])

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Separate the batch from the replayed examples."""
        step = self._current()
        output, replayed = torch.split(strategy.mb_output, [len(step.y), len(step.y_m)])
        self._step = step._replace(output_m=replayed)
        strategy.mbatch[0], strategy.mb_output = step.x, output

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the loss of the replayed examples."""
        step = self._current()
        if len(step.y_m):
            strategy.loss += strategy._criterion(step.output_m, step.y_m)

    def before_update(self, strategy: Any, **kwargs: Any) -> None:
        """Refuse an update that is not finite."""
        grads = {name: p.grad for name, p in strategy.model.named_parameters() if p.grad is not None}
        self._learner().check_finite(strategy.loss.detach(), grads)

    def after_update(self, strategy: Any, **kwargs: Any) -> None:
        """Write edited examples back and offer the batch to memory."""
        learner, step = self._learner(), self._current()
        if strategy.clock.train_exp_epochs == 0:
            learner.write_back(step.edited)
        if strategy.clock.train_exp_epochs == strategy.train_epochs - 1:
            learner.update_memory(step.x, step.y)
            learner.steps += 1
        self._step = None

    def _lookahead_lr(self, strategy: Any) -> float:
        """Return the learning rate of the look-ahead, τ."""
        if self.lr is not None:
            return self.lr
        optimizer = strategy.optimizer
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        if not isinstance(optimizer, torch.optim.SGD) or len(rates) != 1:
            kind = type(optimizer).__name__ + (f" with learning rates {sorted(rates)}" if len(rates) > 1 else "")
            raise UsageError(
                f"the look-ahead is a step of plain SGD, but the optimizer is {kind}; set GMEDPlugin(lr=...)"
            )
        return rates.pop()

    def _check_batch(self, x: Tensor, y: Tensor) -> None:
        if not x.is_floating_point():
            raise InputError(f"inputs must be floating-point tensors, not {x.dtype}; add a transform such as ToTensor")
        if y.dtype != torch.int64 or y.shape != (len(x),):
            raise InputError(f"targets must be one class label per example, not {y.dtype} {tuple(y.shape)}")
        if self.memory.is_allocated and x.shape[1:] != self.memory.x.shape[1:]:
            stored = tuple(self.memory.x.shape[1:])
            raise InputError(
                f"examples have shape {tuple(x.shape[1:])}, stored ones {stored}; all must have the same shape"
            )

    def _learner(self) -> ER:
        assert self.learner is not None
        return self.learner

    def _current(self) -> _Step:
        assert self._step is not None
        return self._step
