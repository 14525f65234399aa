"""Hindsight anchor learning (Chaudhry et al., 2021)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.errors import DivergedError, check_float, check_int
from gmed.learners.base import TaskAware
from gmed.learners.draws import all_finite
from gmed.learners.replay import PlainReplayOptions, Replay
from gmed.memory import Reservoir
from gmed.models import features, forward, gradient
from gmed.registry import register


@register("hal", memory=Reservoir, summary="task-aware: replay, and a penalty on changes at anchors")
class HAL(Replay, TaskAware):
    """Hindsight anchor learning (task-aware): besides replay, a penalty on output changes at one anchor per task and
    class.

    When a task ends, its anchors are computed by gradient ascent on how much they would be forgotten by training on the
    memory alone, staying near the mean embedding of their class:

        ℓ(e; θ_M) - ℓ(e; θ) - γ |φ(e) - φ_class|².

    During training, θ̃ is the result of a look-ahead step on stream and replay, and λ |f(e; θ̃) - f(e; θ)|², the
    change of the outputs on the anchors, is added to the loss.

    Parameters
    ----------
    model
        As in :class:`~gmed.learners.replay.Replay`. The embedding φ is the input of the model's last linear layer.
    anchor_weight
        λ.
    embedding_weight
        γ.
    embedding_decay
        Weight of the old value in the running mean embedding of a class, at each batch.
    anchor_lr, anchor_steps
        Learning rate and number of steps of the gradient ascent that computes an anchor.
    memory_epochs
        Number of passes over memory, in batches of ``replay_size``, that give θ_M.
    **replay
        All other options of :class:`~gmed.learners.replay.Replay` except ``editing`` and ``retrieval``.

    References
    ----------
    Chaudhry, Gordo, Dokania, Torr, Lopez-Paz, "Using hindsight to anchor past knowledge in continual learning",
    AAAI 2021.
    """

    id = "HAL"

    def __init__(
        self,
        model: nn.Module,
        *,
        anchor_weight: float = 0.1,
        embedding_weight: float = 0.1,
        embedding_decay: float = 0.5,
        anchor_lr: float = 0.001,
        anchor_steps: int = 100,
        memory_epochs: int = 50,
        **replay: Unpack[PlainReplayOptions],
    ) -> None:
        super().__init__(model, **replay)
        self.anchor_weight = check_float("anchor_weight", anchor_weight)
        self.embedding_weight = check_float("embedding_weight", embedding_weight)
        self.embedding_decay = check_float("embedding_decay", embedding_decay)
        self.anchor_lr = check_float("anchor_lr", anchor_lr, greater_than=0)
        self.anchor_steps = check_int("anchor_steps", anchor_steps, minimum=0)
        self.memory_epochs = check_int("memory_epochs", memory_epochs, minimum=0)
        self.task = 0
        self.anchors: list[tuple[Tensor, int]] = []
        self.embeddings: dict[int, Tensor] = {}  # running mean by class, of the current task

    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        anchors, embeddings = self.anchors, self.embeddings
        if task != self.task and embeddings:
            anchors, embeddings = anchors + self.make_anchors(), {}
        drawn = self.sample()
        parameters = self.model_info.parameters
        ahead = self.look_ahead(x, y)
        stream, replay = self._forward_batches(ahead, self.memory.x[drawn], self.memory.y[drawn], drawn)
        loss = self.loss(stream, replay if len(drawn) else None)
        grads = gradient(loss, parameters)
        if anchors:
            e = torch.stack([anchor for anchor, _ in anchors])
            with torch.no_grad():
                theta_tilde = {name: p - self.lr_now * grads[name] for name, p in parameters.items()}
                output_tilde = forward(self.model, theta_tilde, e)
            penalty = self.anchor_weight * ((forward(self.model, parameters, e) - output_tilde) ** 2).sum(1).mean()
            penalty_grads = gradient(penalty, parameters)
            grads = {name: grads[name] + penalty_grads[name] for name in parameters}
        embeddings = self.update_embeddings(embeddings, x, y)
        if not all_finite(embeddings.values()):
            raise DivergedError(
                f"at step {self.steps} the mean embeddings are not finite; the step was not taken. "
                f"Lower lr (now {self.lr:g}), or scale the inputs down."
            )
        self.apply_gradients(grads, loss.detach())
        self.update_memory(x, y)
        self.task, self.anchors, self.embeddings = task, anchors, embeddings

    @torch.no_grad()
    def update_embeddings(self, embeddings: dict[int, Tensor], x: Tensor, y: Tensor) -> dict[int, Tensor]:
        """Return the running mean embedding of each class, updated with this batch."""
        embedding = features(self.model, x, {n: p.detach() for n, p in self.model_info.parameters.items()})
        means = dict(embeddings)
        for label in sorted(set(y.tolist())):
            mean = embedding[y == label].mean(0)
            old = means.get(label, mean)
            means[label] = self.embedding_decay * old + (1 - self.embedding_decay) * mean
        return means

    def make_anchors(self) -> list[tuple[Tensor, int]]:
        """Compute one anchor for each class of the task that has ended."""
        theta = {name: p.detach() for name, p in self.model_info.parameters.items()}
        hindsight = self.finetune_on_memory()
        labels = sorted(self.embeddings)
        y = torch.tensor(labels, device=self.memory.y.device)
        start = self.random("anchors").standard_normal((len(labels), *self.memory.x.shape[1:]))
        e = torch.as_tensor(start).to(self.memory.x)
        target = torch.stack([self.embeddings[label] for label in labels])
        for _ in range(self.anchor_steps):
            e = e.detach().requires_grad_()
            forgetting = cross_entropy(forward(self.model, hindsight, e), y, reduction="sum")
            forgetting = forgetting - cross_entropy(forward(self.model, theta, e), y, reduction="sum")
            distance = ((features(self.model, e, theta) - target) ** 2).sum()
            (grad,) = torch.autograd.grad(forgetting - self.embedding_weight * distance, e)
            e = e.detach() + self.anchor_lr * grad
        return [(anchor, label) for anchor, label in zip(e.detach(), labels, strict=True)]

    def finetune_on_memory(self) -> dict[str, Tensor]:
        """Return θ_M, the parameters after training on the memory."""
        theta = {name: p.detach() for name, p in self.model_info.parameters.items()}
        rng, occupied = self.random("hindsight"), self.memory.occupied()
        for _ in range(self.memory_epochs):
            shuffled = torch.from_numpy(rng.permutation(occupied)).to(self.memory.y.device)
            for start in range(0, len(shuffled), self.replay_size):
                batch = shuffled[start : start + self.replay_size]
                theta = {name: p.requires_grad_() for name, p in theta.items()}
                loss = self.criterion(forward(self.model, theta, self.memory.x[batch]), self.memory.y[batch])
                grads = gradient(loss, theta)
                theta = {name: p.detach() - self.lr_now * grads[name] for name, p in theta.items()}
        return theta

    def get_extra_state(self) -> dict[str, Tensor]:
        state = {"task": torch.tensor(self.task)}
        if self.anchors:
            state["anchors.x"] = torch.stack([anchor for anchor, _ in self.anchors])
            state["anchors.y"] = torch.tensor([label for _, label in self.anchors])
        return state | {f"embedding.{label}": mean for label, mean in self.embeddings.items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.task = int(state["task"])
        labels = state["anchors.y"].tolist() if "anchors.y" in state else []
        self.anchors = list(zip(state["anchors.x"], labels, strict=True)) if labels else []
        self.embeddings = {
            int(name.removeprefix("embedding.")): mean for name, mean in state.items() if name.startswith("embedding.")
        }
