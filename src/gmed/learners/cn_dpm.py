"""Continual neural Dirichlet process mixture (Lee et al., 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from gmed.deprecated import old_hyperparameters
from gmed.errors import DivergedError, check_float, check_int
from gmed.kernels.cuda_graphs import replay_steps
from gmed.learners._rollback import Snapshot
from gmed.learners.adam import ADAM_LR, Adam
from gmed.learners.draws import all_finite
from gmed.learners.expandable import ExpandableLearner, num_parameters
from gmed.learners.removal import StoredExamples
from gmed.models import ExpertMixture
from gmed.models.expert_mixture import Expert, ExpertOutputs
from gmed.registry import register
from gmed.rng import seeded_torch

_MANY_CLASSES = {"generator_lr": 1e-4, "wake_lr_scale": 0.2, "log_alpha": -300.0}
_PUBLISHED: dict[str, dict[str, float]] = {
    "images": {"stm_capacity": 1000, "classifier_steps": 1000, "generator_steps": 4000, "min_usage": 0.0},
    "split-cifar10": {**ADAM_LR["split-cifar10"], "generator_lr": 2e-4, "wake_lr_scale": 0.1, "log_alpha": -450.0},
    "split-cifar100": {**ADAM_LR["split-cifar100"], **_MANY_CLASSES},
    "split-mini-imagenet": {**ADAM_LR["split-mini-imagenet"], **_MANY_CLASSES},
}


@register("cn-dpm", summary="adds an expert when the data call for one", on_benchmarks={**ADAM_LR, **_PUBLISHED})
@old_hyperparameters(short_term="stm_capacity", awake="wake_lr_scale", least_usage="min_usage")
class CNDPM(ExpandableLearner):
    """Continual neural Dirichlet process mixture: experts, each a classifier and a generative model, and a new expert
    whenever the data call for it. No task ids.

    An incoming example belongs to expert k with probability proportional to N_k p(x, y | k), and to a new expert with
    probability proportional to α p(x, y | untrained). Examples that most likely belong to a new expert are collected in
    a short-term memory; when it is full the learner sleeps: a new expert is trained on them. Other examples train the
    existing experts, weighted by the probability of belonging to them.

    Predictions are those of the mixture, Σ_k N_k p(x | k) P(y | x, k).

    Parameters
    ----------
    model
        Defines the inputs and classes. The experts are those of the method's authors: linear layers, or for a
        :class:`~gmed.models.ResNet18` convolutions. The trained model is :attr:`model`, a mixture of them.
    log_alpha
        log α, the concentration: the lower, the fewer experts.
    stm_capacity
        Number of examples in the short-term memory from which a new expert is trained.
    adam_lr, generator_lr
        Learning rates of classifiers and generative models.
    wake_lr_scale
        Factor of both learning rates in all updates of an expert after its training during sleep.
    classifier_steps, generator_steps
        Number of updates of a new expert's classifier and generative model during sleep, on batches of ``sleep_batch``.
    temperature
        P(y | x) is raised to the power 1 / temperature where examples are assigned to experts.
    min_usage
        An expert is not updated if the assignment weights of a batch to it sum to no more than this.
    weight_decay
        Weight of the squared parameters in a new expert's loss.
    clip
        Largest absolute value of an entry of a gradient; larger ones are clipped.
    seed
        As in :class:`~gmed.learners.Learner`.

    Examples
    --------
    >>> import torch, gmed
    >>> learner = gmed.learners.CNDPM(gmed.models.MLP(), stm_capacity=20, generator_steps=5, classifier_steps=5)
    >>> for _ in range(2):
    ...     learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10) % 2)
    >>> learner.num_modules, learner.predict(torch.rand(3, 1, 28, 28)).shape
    (1, torch.Size([3]))

    References
    ----------
    Lee, Ha, Zhang, Kim, "A neural Dirichlet process mixture model for task-free continual learning", ICLR 2020.
    """

    id = "CNDPM"
    parameter_ids: ClassVar = {"stm_capacity": "short_term", "wake_lr_scale": "awake", "min_usage": "least_usage"}
    model: ExpertMixture

    def __init__(
        self,
        model: nn.Module,
        *,
        log_alpha: float = -400.0,
        stm_capacity: int = 500,
        adam_lr: float = 1e-4,
        generator_lr: float = 4e-4,
        wake_lr_scale: float = 1.0,
        classifier_steps: int = 2000,
        generator_steps: int = 8000,
        sleep_batch: int = 50,
        temperature: float = 0.01,
        min_usage: float = 0.1,
        weight_decay: float = 1e-5,
        clip: float = 0.5,
        seed: int = 0,
    ) -> None:
        with seeded_torch(seed, "untrained expert"):
            mixture = ExpertMixture.for_model(model)
        super().__init__(mixture, lr=adam_lr, seed=seed)
        self.log_alpha = check_float("log_alpha", log_alpha)
        self.stm_capacity = check_int("stm_capacity", stm_capacity)
        self.generator_lr = check_float("generator_lr", generator_lr, greater_than=0)
        self.wake_lr_scale = check_float("wake_lr_scale", wake_lr_scale, greater_than=0)
        self.classifier_steps = check_int("classifier_steps", classifier_steps, minimum=0)
        self.generator_steps = check_int("generator_steps", generator_steps, minimum=0)
        self.sleep_batch = check_int("sleep_batch", sleep_batch)
        self.temperature = check_float("temperature", temperature, greater_than=0)
        self.min_usage = check_float("min_usage", min_usage)
        self.weight_decay = check_float("weight_decay", weight_decay)
        self.clip = check_float("clip", clip, greater_than=0)
        self.short_term_memory: tuple[Tensor, Tensor] | None = None
        self.optimizers: list[tuple[Adam, Adam]] = []  # for each expert's generator and classifier

    def step(self, x: Tensor, y: Tensor) -> None:
        unassigned = torch.ones_like(y, dtype=torch.bool)
        snapshot = Snapshot(self._mutable()) if self._nearly_full(len(y)) else None
        num_modules, short_term_memory, counts = self.num_modules, self.short_term_memory, self.model.counts.clone()
        try:
            if self.num_modules:
                unassigned = self.assign_and_learn(x, y)
            if unassigned.any():
                self.short_term_memory = self._append(x[unassigned], y[unassigned])
            if self.short_term_memory is not None and len(self.short_term_memory[1]) >= self.stm_capacity:
                self.sleep(*self.short_term_memory)
                self.short_term_memory = None
        except BaseException:
            self.resize(num_modules)
            self.short_term_memory, self.model.counts = short_term_memory, counts
            if snapshot is not None:
                snapshot.restore()
            raise

    def log_joint(self, outputs: ExpertOutputs, y: Tensor) -> Tensor:
        """Return log N_k p(x, y | k) of a new expert, whose N is α, and of each existing one: (batch, 1 + experts)."""
        alpha = self.model.counts.new_tensor([self.log_alpha])
        prior = torch.cat([alpha, torch.log(self.model.counts)])
        log_py = log_softmax(outputs.log_py / self.temperature, 2)
        return prior - outputs.neg_log_px + _select_label(log_py, y)

    def assign_and_learn(self, x: Tensor, y: Tensor) -> Tensor:
        """Train the experts on the examples assigned to them; return a mask of those that belong to a new expert."""
        outputs: ExpertOutputs = self.model(x, return_all=True)
        joint = self.log_joint(outputs, y).detach()
        unassigned = joint.argmax(1) == 0
        weights = torch.softmax(joint[:, 1:], 1) * ~unassigned[:, None]
        usage = weights.sum(0)
        loss = (weights * (outputs.neg_log_px[:, 1:] - _select_label(outputs.log_py, y)[:, 1:])).sum()
        used = [k for k, examples in enumerate(usage.tolist()) if examples > self.min_usage]
        parameters = {k: [list(part.parameters()) for part in self._generator_and_classifier(k)] for k in used}
        flat = [p for parts in parameters.values() for part in parts for p in part]
        grads = torch.autograd.grad(loss, flat) if flat else ()
        self.check_finite(loss.detach() + joint.sum(), {str(i): g for i, g in enumerate(grads)})
        for k, parts in parameters.items():
            for optimizer, part in zip(self.optimizers[k], parts, strict=True):
                optimizer.step(self.clipped(grads[: len(part)]), self.wake_lr_scale)
                grads = grads[len(part) :]
        self.model.counts.add_(usage)
        return unassigned

    def sleep(self, x: Tensor, y: Tensor) -> None:
        """Train a new expert on the examples of the short-term memory."""
        self.resize(self.num_modules + 1)
        self.model.counts[-1] = len(y)
        generator, classifier = self._generator_and_classifier(-1)
        generator_adam, classifier_adam = self.optimizers[-1]

        def part_fn(part: str) -> Callable[[Tensor], Tensor]:
            features = self.model.frozen_features(part, x)
            return lambda rows: self.model(x[rows], part=part, earlier=[stage[rows] for stage in features])

        negative_bound, log_py = part_fn("generator"), part_fn("classifier")

        def generator_loss(rows: Tensor) -> Tensor:
            return negative_bound(rows).mean()

        def classifier_loss(rows: Tensor) -> Tensor:
            return -_select_label(log_py(rows)[:, None], y[rows]).mean()

        self._fit(generator, generator_adam, generator_loss, self._batches("Generator", self.generator_steps, y))
        self._fit(classifier, classifier_adam, classifier_loss, self._batches("Classifier", self.classifier_steps, y))

    def _batches(self, purpose: str, steps: int, y: Tensor) -> Tensor:
        drawn = self.random(purpose).integers(len(y), size=(steps, self.sleep_batch))
        return torch.from_numpy(drawn).to(y.device)

    def _fit(self, part: nn.Module, optimizer: Adam, loss_of: Callable[[Tensor], Tensor], batches: Tensor) -> None:
        parameters: list[Tensor] = list(part.parameters())

        def step(rows: Tensor) -> None:
            penalty = torch.stack(torch._foreach_norm(parameters)).square().sum()
            loss = loss_of(rows) + self.weight_decay * penalty
            optimizer.step(self.clipped(torch.autograd.grad(loss, parameters)))

        replay_steps(step, batches)
        if not all_finite(parameters):
            problem = f"the {type(part).__name__.lower()} of a new expert is not finite after {len(batches)} updates"
            raise DivergedError(
                f"at step {self.steps} {problem}. Lower adam_lr or generator_lr, or scale the inputs down."
            )

    @torch.no_grad()
    def clipped(self, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return gradients with their entries clipped to [-clip, clip]."""
        return torch._foreach_clamp_max(torch._foreach_clamp_min(grads, -self.clip), self.clip)

    def stored_examples(self) -> StoredExamples:
        if self.short_term_memory is None:
            return StoredExamples.none()
        return StoredExamples(*self.short_term_memory, stream_index=None)

    def drop_examples(self, mask: NDArray[np.bool_]) -> None:
        assert self.short_term_memory is not None
        x, y = self.short_term_memory
        keep = torch.from_numpy(~mask).to(y.device)
        self.short_term_memory = (x[keep], y[keep]) if keep.any() else None

    # ------------------------------------------------------------------ experts

    @property
    def num_modules(self) -> int:
        return len(self.model.experts)

    def resize(self, num_modules: int) -> None:
        self._model_info = None  # outdated: the model changes
        if num_modules < self.num_modules:
            self.model.truncate(num_modules)
            del self.optimizers[num_modules:]
        while self.num_modules < num_modules:
            with seeded_torch(self.seed, "expert", self.num_modules):
                self.model.add()
            generator, classifier = self._generator_and_classifier(-1)
            self.optimizers.append(
                (Adam(generator.parameters(), self.generator_lr), Adam(classifier.parameters(), self.lr))
            )

    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        return len(state["model.counts"])

    def memory_size(self) -> int:
        return self.stm_capacity

    def extra_parameters(self) -> int:
        """Return the number of parameters of the generative models: it is compared with the classifiers' network."""
        return sum(num_parameters(self._generator_and_classifier(k)[0]) for k in range(self.num_modules))

    def _generator_and_classifier(self, number: int) -> tuple[nn.Module, nn.Module]:
        expert = self.model.experts[number]
        assert isinstance(expert, Expert)
        return expert.generator, expert.classifier

    # ------------------------------------------------------------------ state

    def _append(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the short-term memory with these examples appended."""
        if self.short_term_memory is None:
            return x, y
        return torch.cat([self.short_term_memory[0], x]), torch.cat([self.short_term_memory[1], y])

    def _nearly_full(self, added: int) -> bool:
        return (0 if self.short_term_memory is None else len(self.short_term_memory[1])) + added >= self.stm_capacity

    def _mutable(self) -> list[Tensor]:
        moments = [t for pair in self.optimizers for optimizer in pair for t in optimizer.state().values()]
        return [*self.model.parameters(), *moments]

    def get_extra_state(self) -> dict[str, Tensor]:
        state = (
            {}
            if self.short_term_memory is None
            else {"waiting.x": self.short_term_memory[0], "waiting.y": self.short_term_memory[1]}
        )
        for number, pair in enumerate(self.optimizers):
            for name, optimizer in zip(("generator", "classifier"), pair, strict=True):
                state |= {f"adam.{number}.{name}.{key}": t for key, t in optimizer.state().items()}
        return state

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.short_term_memory = (state["waiting.x"], state["waiting.y"]) if "waiting.x" in state else None
        for number, pair in enumerate(self.optimizers):
            for name, optimizer in zip(("generator", "classifier"), pair, strict=True):
                prefix = f"adam.{number}.{name}."
                optimizer.load({k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)})


def _select_label(log_p: Tensor, y: Tensor) -> Tensor:
    """Select the entries of the labels: (batch, experts) of (batch, experts, classes)."""
    return log_p.gather(2, y[:, None, None].expand(-1, log_p.shape[1], 1))[:, :, 0]
