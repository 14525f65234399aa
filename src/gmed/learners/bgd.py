"""Bayesian gradient descent (Zeno et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.errors import check_float, check_int
from gmed.learners.base import Learner
from gmed.models import Loss, forward, gradient, replaced_tensors, trainable
from gmed.registry import register


@register(
    "bgd",
    summary="Bayesian gradient descent, no memory",
    on_benchmarks={
        "mnist": {"initial_std": 0.017, "eta": 1.0},
        "permuted-mnist": {"initial_std": 0.05},
        "images": {"initial_std": 0.011, "eta": 8.0},
    },
)
class BGD(Learner):
    """Bayesian gradient descent: every parameter has a mean and a standard deviation, and the smaller the latter, the
    less it is updated. No memory.

    With θ = μ + ε σ and expectations over ε (Monte Carlo) of the gradient of the summed loss,

        μ ← μ - η σ² E[∇],    σ ← σ √(1 + (½ σ E[∇ ε])²) - ½ σ² E[∇ ε].

    The model's parameters are the means; predictions use them.

    Parameters
    ----------
    model, criterion, seed
        As in :class:`~gmed.learners.Learner`.
    eta
        η, the learning rate of the means.
    initial_std
        Initial σ.
    samples
        Number of Monte Carlo samples per step.

    References
    ----------
    Zeno, Golan, Hoffer, Soudry, "Task agnostic continual learning using online variational Bayes", 2018.
    """

    id = "BGD"

    def __init__(
        self,
        model: nn.Module,
        *,
        eta: float = 1.0,
        initial_std: float = 0.05,
        samples: int = 10,
        criterion: Loss = cross_entropy,
        seed: int = 0,
    ) -> None:
        super().__init__(model, lr=check_float("eta", eta, greater_than=0), criterion=criterion, seed=seed)
        self.samples = check_int("samples", samples)
        self.initial_std = check_float("initial_std", initial_std, greater_than=0)
        self.std = {name: torch.full_like(p, self.initial_std).detach() for name, p in trainable(model).items()}

    def step(self, x: Tensor, y: Tensor) -> None:
        mean = self.model_info.parameters
        rng = self.torch_random("parameters")
        grads = {name: torch.zeros_like(p) for name, p in mean.items()}
        noisy_grads = {name: torch.zeros_like(p) for name, p in mean.items()}  # E[∇ ε]
        loss = torch.zeros((), dtype=x.dtype, device=x.device)
        for sample in range(self.samples):
            noise = {n: torch.randn(p.shape, generator=rng, device=p.device, dtype=p.dtype) for n, p in mean.items()}
            theta = {n: (p + noise[n] * self.std[n]).detach().requires_grad_() for n, p in mean.items()}
            output = forward(self.model, theta, x) if sample else self._forward_updating_buffers(theta, x)
            sample_loss = self.summed_loss(output, y)
            loss += sample_loss.detach() / self.samples
            for name, g in gradient(sample_loss, theta).items():
                grads[name] += g / self.samples
                noisy_grads[name] += g * noise[name] / self.samples
        with torch.no_grad():
            half = {name: 0.5 * sigma * noisy_grads[name] for name, sigma in self.std.items()}
            std = {name: sigma * (torch.sqrt(1 + half[name] ** 2) - half[name]) for name, sigma in self.std.items()}
            self.check_finite(loss, {**grads, **{f"{name} std": sigma for name, sigma in std.items()}})
            for name, mu in mean.items():
                mu.sub_(self.std[name] ** 2 * grads[name], alpha=self.lr)
            self.std = std

    def add_classes(self, classes: int) -> None:
        super().add_classes(classes)
        for name, p in self.model_info.parameters.items():
            std = self.std[name]
            if std.shape != p.shape:
                self.std[name] = torch.cat([std, torch.full_like(p[len(std) :], self.initial_std).detach()])

    def summed_loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the summed loss of a batch: its negative log-likelihood, unless there is another criterion."""
        if self.criterion is cross_entropy:
            return cross_entropy(output, y, reduction="sum")
        return len(y) * self.criterion(output, y)

    def _forward_updating_buffers(self, theta: dict[str, Tensor], x: Tensor) -> Tensor:
        with replaced_tensors(self.model, theta):
            output: Tensor = self.model(x)
        return output

    def get_extra_state(self) -> dict[str, Tensor]:
        return {f"std.{name}": std for name, std in self.std.items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.std = {name: state[f"std.{name}"].clone() for name in self.std}
