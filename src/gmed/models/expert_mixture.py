"""A mixture of experts that grows (Lee et al., ICLR 2020): each expert is a generative model and a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from gmed.errors import UsageError, check_int
from gmed.models.introspection import deterministic
from gmed.models.resnet import Block, ResNet18

MIN_SQUARED_ERROR = 0.001
"""Added to every squared error of a pixel."""


class Stages(nn.Module):
    """Stages in a row: a part of an expert."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def features(self, x: Tensor, earlier: Sequence[Tensor]) -> list[Tensor]:
        """What every stage gives, beside what the parts before it have there; the next stage reads all of it."""
        h, found = x, list[Tensor]()
        for level, stage in enumerate(self.stages):
            h = torch.cat([earlier[level], stage(h)], 1) if earlier else stage(h)
            found.append(h)
        return found


class Classifier(Stages):
    """P(y | x) of an expert."""

    def __init__(self, stages: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__(stages)
        self.head = head

    def log_probabilities(self, features: Tensor) -> Tensor:
        """Log P(y | x) of each class, from the features of its last stage."""
        return log_softmax(self.head(features), 1)


class Generator(Stages):
    """P(x) of an expert: a variational auto-encoder whose pixels have variance 1."""

    def __init__(self, stages: Sequence[nn.Module], mean: nn.Module, log_var: nn.Module, decoder: nn.Module) -> None:
        super().__init__(stages)
        self.mean, self.log_var, self.decoder = mean, log_var, decoder

    def negative_bound(self, x: Tensor, features: Tensor, noise: Tensor) -> Tensor:
        """Minus the evidence lower bound of each example, from the features of its last stage."""
        mean, log_var = self.mean(features), self.log_var(features)
        code = mean[:, None] + noise * torch.exp(0.5 * log_var)[:, None]
        decoded = torch.sigmoid(self.decoder(code.flatten(0, 1))).view(*code.shape[:2], -1)
        squared = (decoded - x.flatten(1)[:, None]).square().sum((1, 2)) / code.shape[1]
        pixels = decoded.shape[2]
        error = 0.5 * (squared + pixels * MIN_SQUARED_ERROR) + 0.5 * pixels * math.log(2 * math.pi)
        divergence = 0.5 * (log_var.exp() + mean.square() - 1 - log_var).sum(1)
        bound: Tensor = error + divergence
        return bound


class Expert(nn.Module):
    """A generative model and a classifier."""

    def __init__(self, generator: Generator, classifier: Classifier) -> None:
        super().__init__()
        self.generator, self.classifier = generator, classifier


def dense_expert(inputs: int, classes: int, number: int, codes: int = 16, base: int = 64, added: int = 16) -> Expert:
    """An expert of linear layers, as its authors have it for MNIST."""
    own, together = (added if number else base), base + number * added

    def stages() -> list[nn.Module]:
        first = nn.Sequential(nn.Flatten(), nn.Linear(inputs, own), nn.ReLU())
        return [first, nn.Sequential(nn.Linear(together, own), nn.ReLU())]

    decoder = nn.Sequential(
        nn.Linear(codes, base), nn.ReLU(), nn.Linear(base, base), nn.ReLU(), nn.Linear(base, inputs)
    )
    generator = Generator(stages(), nn.Linear(together, codes), nn.Linear(together, codes), decoder)
    return Expert(generator, Classifier(stages(), nn.Linear(together, classes)))


def conv_expert(size: int, classes: int, number: int, codes: int = 64, base: int = 32, added: int = 4) -> Expert:
    """An expert of convolutions, as its authors have it for CIFAR: a small auto-encoder and a thin ResNet."""
    own, together, quarter = (added if number else base), base + number * added, -(-size // 4)
    encoder = [
        nn.Sequential(nn.Conv2d(3, own, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()),
        nn.Sequential(
            nn.Conv2d(together, 2 * own, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU(), nn.Flatten()
        ),
        nn.Sequential(nn.Linear(2 * together * quarter**2, 4 * own), nn.ReLU()),
    ]
    decoder = nn.Sequential(
        nn.Linear(codes, 4 * base),
        nn.ReLU(),
        nn.Linear(4 * base, 2 * base * quarter**2),
        nn.ReLU(),
        nn.Unflatten(1, (2 * base, quarter, quarter)),
        nn.ConvTranspose2d(2 * base, base, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(base, 3, 4, stride=2, padding=1),
        CropTo(size),
    )
    generator = Generator(encoder, nn.Linear(4 * together, codes), nn.Linear(4 * together, codes), decoder)
    return Expert(generator, thin_resnet(classes, number))


def thin_resnet(classes: int, number: int, base: int = 20, added: int = 4) -> Classifier:
    """A ResNet with one block in each of four stages, and instance normalisation."""
    own, together = (added if number else base), base + number * added

    def block(before: int, after: int, stride: int) -> nn.Module:
        return Block(before * together, after * own, stride, norm=nn.InstanceNorm2d)

    first = nn.Sequential(nn.Conv2d(3, own, 3, padding=1, bias=False), nn.InstanceNorm2d(own), nn.ReLU())
    last = nn.Sequential(block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages = [first, block(1, 1, 1), block(1, 2, 2), block(2, 4, 2), last]
    return Classifier(stages, nn.Linear(8 * together, classes))


class CropTo(nn.Module):
    """The upper left corner of images, which may be a little larger."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.size, : self.size]


CHUNK_SIZE = 100
"""Examples whose earlier levels are computed together."""

MAX_EXPERTS = 1_000
"""Experts that a network can be made of. Each reads what all before it give."""


class ExpertOutputs(NamedTuple):
    """What experts say of examples, the one that is not there yet first.

    Attributes
    ----------
    neg_log_px
        -log p(x) under each expert, (batch, 1 + experts).
    log_py
        log p(y | x) under each expert, (batch, 1 + experts, classes).
    """

    neg_log_px: Tensor
    log_py: Tensor


class ExpertMixture(nn.Module):
    """Experts, and how many examples each has.

    Parameters
    ----------
    make
        Makes the expert of a number: 0, 1, ...
    codes
        How many numbers the code of an example has.
    samples
        Codes that are drawn of every example.

    Attributes
    ----------
    untrained
        Stands for an expert that is not there yet.
    counts
        How many examples each expert has, as far as they were assigned.

    Examples
    --------
    >>> mixture = ExpertMixture.for_model(nn.Linear(4, 3))
    >>> mixture.add()
    >>> densities = mixture(torch.rand(5, 4), return_all=True)
    >>> densities.neg_log_px.shape, densities.log_py.shape, mixture(torch.rand(5, 4)).shape
    (torch.Size([5, 2]), torch.Size([5, 2, 3]), torch.Size([5, 3]))
    """

    counts: Tensor
    noise: Tensor

    def __init__(self, make: Callable[[int], Expert], codes: int, samples: int = 16) -> None:
        super().__init__()
        self.make, self.codes, self.samples = make, codes, samples
        self.untrained = make(0)
        self.experts = nn.ModuleList()
        fixed = torch.Generator().manual_seed(0)
        self.register_buffer("counts", torch.zeros(0))
        self.register_buffer("noise", torch.randn(samples, codes, generator=fixed), persistent=False)

    @classmethod
    def for_model(cls, model: nn.Module, samples: int = 16) -> ExpertMixture:
        """Without experts, for the inputs and classes of a model: convolutions for a ResNet-18, else linear layers."""
        if isinstance(model, ResNet18):
            mixture = cls(partial(conv_expert, model.size, model.classifier.out_features), codes=64, samples=samples)
        else:
            linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
            if not linear:
                raise UsageError("experts are made for a ResNet18 or for a model with linear layers, not for this one")
            make = partial(dense_expert, linear[0].in_features, linear[-1].out_features)
            mixture = cls(make, codes=16, samples=samples)
        return mixture.to(next(model.parameters()))

    def add(self) -> None:
        """One more expert, which has no examples yet."""
        self.experts.append(self.make(len(self.experts)).to(self.noise))
        self.counts = torch.cat([self.counts, self.counts.new_zeros(1)])

    def truncate(self, experts: int) -> None:
        """Only the first so many."""
        del self.experts[experts:]
        self.counts = self.counts[:experts].clone()

    def frozen_features(self, part: str, x: Tensor) -> list[Tensor]:
        """What every stage of a ``part`` gives in all experts but the last; none if there is one expert."""
        experts = self._experts()[:-1]
        parts = [expert.generator if part == "generator" else expert.classifier for expert in experts]
        chunks = [_stage_features(parts, chunk) for chunk in torch.split(x, CHUNK_SIZE)]
        return [torch.cat(level) for level in zip(*chunks, strict=True)]

    def forward(
        self, x: Tensor, return_all: bool = False, part: str = "", earlier: Sequence[Tensor] = ()
    ) -> Tensor | ExpertOutputs:
        """The logits of each class: log Σ_k P(k) p(x | k) P(y | x, k).

        With ``return_all``, return the outputs of every expert. With a ``part``, return that of the last expert's
        ``generator`` or ``classifier``, given its :meth:`frozen_features` of these examples as ``earlier``.
        """
        generators = [expert.generator for expert in self._experts()]
        classifiers = [expert.classifier for expert in self._experts()]
        if part == "generator":
            return generators[-1].negative_bound(x, generators[-1].features(x, earlier)[-1], self._draw(len(x)))
        if part == "classifier":
            return classifiers[-1].log_probabilities(classifiers[-1].features(x, earlier)[-1])
        if return_all:
            new = self.untrained
            bounds = [*self._bounds([new.generator], x), *self._bounds(generators, x)]
            return ExpertOutputs(
                torch.stack(bounds, 1),
                torch.stack([*_class_log_probs([new.classifier], x), *_class_log_probs(classifiers, x)], 1),
            )
        if not generators:
            return next(_class_log_probs([self.untrained.classifier], x))
        weight = torch.log(self.counts / self.counts.sum()) - torch.stack(list(self._bounds(generators, x)), 1)
        return torch.logsumexp(weight[:, :, None] + torch.stack(list(_class_log_probs(classifiers, x)), 1), 1)

    def _experts(self) -> list[Expert]:
        return [expert for expert in self.experts if isinstance(expert, Expert)]

    def _bounds(self, parts: Sequence[Generator], x: Tensor) -> Iterator[Tensor]:
        for part, features in zip(parts, _features(parts, x), strict=True):
            yield part.negative_bound(x, features, self._draw(len(x)))

    def _draw(self, examples: int) -> Tensor:
        """Noise of codes: anew in training, in evaluation the same for every example and every time."""
        if not self.training:
            return self.noise
        return torch.randn(examples, self.samples, self.codes, device=self.noise.device, dtype=self.noise.dtype)


@deterministic
class ExpandedClassifier(nn.Module):
    """The classifiers of a mixture as one network: the last one's output, which reads all, learned as a whole."""

    def __init__(self, classifiers: Sequence[Classifier]) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Stages(list(classifier.stages)) for classifier in classifiers])
        self.head = classifiers[-1].head

    def forward(self, x: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for part in self.parts:
            assert isinstance(part, Stages)
            levels = part.features(x, levels)
        logits: Tensor = self.head(levels[-1])
        return logits


def expanded_classifier(model: nn.Module, tasks: int) -> nn.Module:
    """The network that a mixture for such a model ends with, if it has made an expert of every task.

    >>> expanded(nn.Linear(784, 10), tasks=5)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    mixture = ExpertMixture.for_model(model)
    made = [mixture.make(number).classifier for number in range(check_int("tasks", tasks, maximum=MAX_EXPERTS))]
    return ExpandedClassifier(made).to(next(model.parameters()))


def _class_log_probs(parts: Sequence[Classifier], x: Tensor) -> Iterator[Tensor]:
    for part, features in zip(parts, _features(parts, x), strict=True):
        yield part.log_probabilities(features)


def _features(parts: Sequence[Stages], x: Tensor) -> Iterator[Tensor]:
    """What the last stage of each part gives beside those before it, to which no gradient goes."""
    levels: list[Tensor] = []
    for part in parts:
        levels = part.features(x, [level.detach() for level in levels])
        yield levels[-1]


@torch.no_grad()
def _stage_features(parts: Sequence[Stages], x: Tensor) -> list[Tensor]:
    """What every stage gives in all of the parts."""
    levels: list[Tensor] = []
    for part in parts:
        levels = part.features(x, levels)
    return levels
