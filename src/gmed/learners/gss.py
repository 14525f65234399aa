from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, normalize

from gmed.editing import Edit
from gmed.errors import UsageError, whole_number
from gmed.learners.replay import Replay
from gmed.memory import GSSGreedy
from gmed.models import trainable
from gmed.retrieval import uniform


class GSS(Replay):
    """Experience replay from a memory that keeps examples whose gradients differ (GSS-Greedy).

    A full memory considers the incoming batch only if its gradient points against those of random batches of stored
    examples, all of them; then each of its examples competes for a slot with the score it has against the same batches.

    Parameters
    ----------
    model, lr, editing, replay_size, seed
        As in :class:`~gmed.learners.replay.Replay`.
    memory
        A :class:`~gmed.memory.GSSGreedy`.
    compared
        How many random batches of ``replay_size`` stored examples the incoming ones are compared with.

    References
    ----------
    Aljundi, Lin, Goujaud, Bengio, "Gradient based sample selection for online continual learning", NeurIPS 2019.
    """

    memory: GSSGreedy

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: GSSGreedy,
        editing: Edit | None = None,
        replay_size: int = 10,
        compared: int = 10,
        seed: int = 0,
    ) -> None:
        if not isinstance(memory, GSSGreedy):
            raise UsageError(f"GSS needs a GSSGreedy memory, not {memory!r}")
        super().__init__(model, lr=lr, memory=memory, editing=editing, replay_size=replay_size, seed=seed)
        self.compared = whole_number("compared", compared)

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)
        drawn = self.draw()
        edited = self.edit(drawn, ahead)
        directions = self.memory_directions()
        batch = gradients(self.model, x.unsqueeze(0), y.unsqueeze(0))
        conflicts = len(directions) == 0 or bool((batch @ directions.T).max() < 0)
        wanted = conflicts or len(self.memory) < self.memory.capacity
        score = self.scores(x, y, directions) if wanted else None

        self.descend(ahead, edited.x[: len(drawn)], self.memory.y[drawn])
        self.write_back(edited)
        if score is None:
            self.memory.pass_over(len(y))
        else:
            self.remember(x, y, score=score)

    def memory_directions(self) -> Tensor:
        """Gradients of random batches of stored examples, one a row."""
        size = min(self.replay_size, len(self.memory))
        rng = self.random("compared")
        slots = [uniform(self.memory, size, rng) for _ in range(self.compared if size else 0)]
        if not slots:
            return torch.empty(0, 0)
        chosen = torch.stack(slots)
        return gradients(self.model, self.memory.x[chosen], self.memory.y[chosen])

    def scores(self, x: Tensor, y: Tensor, directions: Tensor) -> Tensor:
        """One plus the largest cosine of each example's gradient with those directions."""
        if not len(directions):
            return torch.ones(len(y), dtype=torch.float64, device=x.device)
        each = gradients(self.model, x.unsqueeze(1), y.unsqueeze(1))
        return 1 + (each @ directions.T).amax(1).double()


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean loss of each batch x[i], y[i], scaled to length 1; batch-norm and dropout as in
    evaluation."""
    parameters = {name: p.detach() for name, p in trainable(model).items()}

    def loss(theta: dict[str, Tensor], batch_x: Tensor, batch_y: Tensor) -> Tensor:
        output: Tensor = functional_call(model, theta, (batch_x,))
        return cross_entropy(output, batch_y)

    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    finally:
        for module, training in modes.items():
            module.training = training
    return normalize(torch.cat([g.flatten(1) for g in each.values()], 1), dim=1)
