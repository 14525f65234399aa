"""Eager loops of torch alone, as a competent user would write them: ER and MIR with and without GMED.

They are what ``engine.py --peers`` compares learners with. One forward pass over both batches in an update, gradients
by ``torch.autograd.grad``, the look-ahead by ``torch.func.functional_call`` and one fused optimizer step; no checks,
no seeds per purpose, no rollback.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy


class EagerLoop:
    """Experience replay from a reservoir, with uniform or maximally interfered retrieval and with or without GMED."""

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        capacity: int = 500,
        replay: int = 10,
        candidates: int = 0,
        alpha: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        self.model, self.lr, self.capacity, self.replay = model, lr, capacity, replay
        self.candidates, self.alpha, self.beta = candidates, alpha, beta
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.x, self.y = torch.empty(0), torch.empty(0, dtype=torch.int64)
        self.seen = 0

    def step(self, x: Tensor, y: Tensor) -> None:
        """Learn from one batch."""
        if not self.seen:
            self.x = x.new_zeros(self.capacity, *x.shape[1:])
            self.y = y.new_zeros(self.capacity)
        stored = min(self.seen, self.capacity)
        ahead = self.look_ahead(x, y) if stored and (self.candidates or self.alpha) else None
        x_m, y_m = self.x[:0], self.y[:0]
        if stored:
            drawn = torch.randperm(stored)[: self.replay]
            x_m, y_m = self.x[drawn], self.y[drawn]
            if ahead is not None and self.alpha:
                x_m = self.edit(ahead, x_m, y_m)
                self.x[drawn] = x_m
            if ahead is not None and self.candidates:
                x_m, y_m = self.most_interfered(ahead, stored)
        self.update(x, y, x_m, y_m)
        self.remember(x, y)

    def look_ahead(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the parameters after a step on the incoming batch."""
        names, theta = zip(*self.model.named_parameters(), strict=True)
        grads = torch.autograd.grad(cross_entropy(self.model(x), y), theta)
        with torch.no_grad():
            return dict(zip(names, torch._foreach_sub(list(theta), list(grads), alpha=self.lr), strict=True))

    def edit(self, ahead: dict[str, Tensor], x_m: Tensor, y_m: Tensor) -> Tensor:
        """Return the drawn examples, edited."""
        x_m = x_m.requires_grad_()
        before = cross_entropy(self.model(x_m), y_m)
        after = cross_entropy(functional_call(self.model, ahead, (x_m,)), y_m)
        (direction,) = torch.autograd.grad(after - (1 + self.beta) * before, x_m)
        return x_m.detach() + self.alpha * direction

    @torch.no_grad()
    def most_interfered(self, ahead: dict[str, Tensor], stored: int) -> tuple[Tensor, Tensor]:
        """Return the candidates whose loss the incoming batch would increase most."""
        candidates = torch.randperm(stored)[: self.candidates]
        x_c, y_c = self.x[candidates], self.y[candidates]
        before = cross_entropy(self.model(x_c), y_c, reduction="none")
        after = cross_entropy(functional_call(self.model, ahead, (x_c,)), y_c, reduction="none")
        chosen = (after - before).topk(min(self.replay, len(y_c))).indices
        return x_c[chosen], y_c[chosen]

    def update(self, x: Tensor, y: Tensor, x_m: Tensor, y_m: Tensor) -> None:
        """Take a step on both batches."""
        self.optimizer.zero_grad()
        if len(y_m):
            output = self.model(torch.cat([x, x_m]))
            loss = cross_entropy(output[: len(y)], y) + cross_entropy(output[len(y) :], y_m)
        else:
            loss = cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def remember(self, x: Tensor, y: Tensor) -> None:
        """Offer the batch to the reservoir."""
        nth = torch.arange(self.seen, self.seen + len(y))
        slots = torch.where(nth < self.capacity, nth, (torch.rand(len(y)) * (nth + 1)).long())
        kept = slots < self.capacity
        self.x[slots[kept]], self.y[slots[kept]] = x[kept], y[kept]
        self.seen += len(y)
