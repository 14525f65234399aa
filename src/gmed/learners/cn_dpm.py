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


@register("cn-dpm", summary="a new expert when the data call for one", on_benchmarks={**ADAM_LR, **_PUBLISHED})
@old_hyperparameters(short_term="stm_capacity", awake="wake_lr_scale", least_usage="min_usage")
class CNDPM(ExpandableLearner):
    """Continual neural Dirichlet process mixture: experts, each a classifier and a generative model, and a new one
    whenever the data call for it. No task ids.

    An incoming example belongs to expert k with probability proportional to N_k p(x, y | k), and to one that is not
    there yet with probability proportional to α p(x, y | untrained). Examples that most likely belong to a new one
    wait in a short-term memory; when it is full the learner sleeps: a new expert is trained on what waits. Other
    examples train the experts they belong to, each as far as it does.

    Predictions are those of the mixture, Σ_k N_k p(x | k) P(y | x, k).

    Parameters
    ----------
    model
        Tells the inputs and classes; the experts are those of the method's authors: linear layers, or for a
        :class:`~gmed.models.ResNet18` convolutions. What learns is :attr:`model`, a mixture of them.
    log_alpha
        log α, the concentration: the lower, the fewer experts.
    stm_capacity
        Examples that wait before a new expert is made of them.
    adam_lr, generator_lr
        Learning rates of classifiers and generative models.
    wake_lr_scale
        Both are multiplied by it once an expert has been made.
    classifier_steps, generator_steps
        Updates of a new expert's parts while the learner sleeps, on batches of ``sleep_batch``.
    temperature
        P(y | x) is taken to the power 1 / temperature where examples are assigned.
    min_usage
        An expert that a batch belongs to by less than this is not updated.
    weight_decay
        Weight of the squared parameters in a new expert's loss.
    clip
        The largest entry of a gradient.
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
        self.optimizers: list[tuple[Adam, Adam]] = []  # of each expert's generator and classifier

    def step(self, x: Tensor, y: Tensor) -> None:
        waits = torch.ones_like(y, dtype=torch.bool)
        undo = Snapshot(self._mutable()) if self._nearly_full(len(y)) else None
        parts, waiting, counts = self.num_modules, self.short_term_memory, self.model.counts.clone()
        try:
            if self.num_modules:
                waits = self.assign_and_learn(x, y)
            if waits.any():
                self.short_term_memory = self._append(x[waits], y[waits])
            if self.short_term_memory is not None and len(self.short_term_memory[1]) >= self.stm_capacity:
                self.sleep(*self.short_term_memory)
                self.short_term_memory = None
        except BaseException:
            self.resize(parts)
            self.short_term_memory, self.model.counts = waiting, counts
            if undo is not None:
                undo.restore()
            raise

    def log_joint(self, densities: ExpertOutputs, y: Tensor) -> Tensor:
        """Log N_k p(x, y | k) of a new expert, whose N is α, and of each there is: (batch, 1 + experts)."""
        alpha = self.model.counts.new_tensor([self.log_alpha])
        prior = torch.cat([alpha, torch.log(self.model.counts)])
        labels = log_softmax(densities.log_py / self.temperature, 2)
        return prior - densities.neg_log_px + _of_label(labels, y)

    def assign_and_learn(self, x: Tensor, y: Tensor) -> Tensor:
        """Let experts learn from what belongs to them; which examples wait for a new one."""
        densities: ExpertOutputs = self.model(x, return_all=True)
        joint = self.log_joint(densities, y).detach()
        waits = joint.argmax(1) == 0
        share = torch.softmax(joint[:, 1:], 1) * ~waits[:, None]
        usage = share.sum(0)
        loss = (share * (densities.neg_log_px[:, 1:] - _of_label(densities.log_py, y)[:, 1:])).sum()
        used = [k for k, examples in enumerate(usage.tolist()) if examples > self.min_usage]
        parameters = {k: [list(part.parameters()) for part in self._generator_and_classifier(k)] for k in used}
        flat = [p for halves in parameters.values() for half in halves for p in half]
        grads = torch.autograd.grad(loss, flat) if flat else ()
        self.check_finite(loss.detach() + joint.sum(), {str(i): g for i, g in enumerate(grads)})
        for k, halves in parameters.items():
            for optimizer, half in zip(self.optimizers[k], halves, strict=True):
                optimizer.step(self.clipped(grads[: len(half)]), self.wake_lr_scale)
                grads = grads[len(half) :]
        self.model.counts.add_(usage)
        return waits

    def sleep(self, x: Tensor, y: Tensor) -> None:
        """Make a new expert of the examples that have waited."""
        self.resize(self.num_modules + 1)
        self.model.counts[-1] = len(y)
        generator, classifier = self._generator_and_classifier(-1)
        generator_adam, classifier_adam = self.optimizers[-1]

        def part_fn(part: str) -> Callable[[Tensor], Tensor]:
            levels = self.model.frozen_features(part, x)
            return lambda rows: self.model(x[rows], part=part, earlier=[level[rows] for level in levels])

        bound, log_p = part_fn("generator"), part_fn("classifier")

        def negative_bound(rows: Tensor) -> Tensor:
            return bound(rows).mean()

        def error(rows: Tensor) -> Tensor:
            return -_of_label(log_p(rows)[:, None], y[rows]).mean()

        self._fit(generator, generator_adam, negative_bound, self._batches("Generator", self.generator_steps, y))
        self._fit(classifier, classifier_adam, error, self._batches("Classifier", self.classifier_steps, y))

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
            what = f"the {type(part).__name__.lower()} of a new expert is not finite after {len(batches)} updates"
            raise DivergedError(
                f"at step {self.steps} {what}. Lower adam_lr or generator_lr, or scale the inputs down."
            )

    @torch.no_grad()
    def clipped(self, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """A gradient, with none of its entries too large."""
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

    # ------------------------------------------------------------------ parts

    @property
    def num_modules(self) -> int:
        return len(self.model.experts)

    def resize(self, num_modules: int) -> None:
        self._model_info = None  # the model becomes another one
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
        """Those of the generative models: the classifiers together are the network it is compared with."""
        return sum(num_parameters(self._generator_and_classifier(k)[0]) for k in range(self.num_modules))

    def _generator_and_classifier(self, number: int) -> tuple[nn.Module, nn.Module]:
        expert = self.model.experts[number]
        assert isinstance(expert, Expert)
        return expert.generator, expert.classifier

    # ------------------------------------------------------------------ state

    def _append(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What waits, with these."""
        if self.short_term_memory is None:
            return x, y
        return torch.cat([self.short_term_memory[0], x]), torch.cat([self.short_term_memory[1], y])

    def _nearly_full(self, more: int) -> bool:
        return (0 if self.short_term_memory is None else len(self.short_term_memory[1])) + more >= self.stm_capacity

    def _mutable(self) -> list[Tensor]:
        kept = [t for pair in self.optimizers for half in pair for t in half.state().values()]
        return [*self.model.parameters(), *kept]

    def get_extra_state(self) -> dict[str, Tensor]:
        state = (
            {}
            if self.short_term_memory is None
            else {"waiting.x": self.short_term_memory[0], "waiting.y": self.short_term_memory[1]}
        )
        for number, pair in enumerate(self.optimizers):
            for name, half in zip(("generator", "classifier"), pair, strict=True):
                state |= {f"adam.{number}.{name}.{kept}": t for kept, t in half.state().items()}
        return state

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.short_term_memory = (state["waiting.x"], state["waiting.y"]) if "waiting.x" in state else None
        for number, pair in enumerate(self.optimizers):
            for name, half in zip(("generator", "classifier"), pair, strict=True):
                prefix = f"adam.{number}.{name}."
                half.load({k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)})


def _of_label(log_p: Tensor, y: Tensor) -> Tensor:
    """The entries of the labels, of (batch, experts, classes): (batch, experts)."""
    return log_p.gather(2, y[:, None, None].expand(-1, log_p.shape[1], 1))[:, :, 0]
