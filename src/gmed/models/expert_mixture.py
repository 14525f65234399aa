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
"""Added to the squared error of every pixel."""


class Stages(nn.Module):
    """A sequence of stages: the base class of an expert's parts."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def features(self, x: Tensor, earlier: Sequence[Tensor]) -> list[Tensor]:
        """Return the features of every stage, appended to those of earlier experts; the next stage reads them all."""
        h, features = x, list[Tensor]()
        for index, stage in enumerate(self.stages):
            h = torch.cat([earlier[index], stage(h)], 1) if earlier else stage(h)
            features.append(h)
        return features


class Classifier(Stages):
    """P(y | x) of an expert."""

    def __init__(self, stages: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__(stages)
        self.head = head

    def log_probabilities(self, features: Tensor) -> Tensor:
        """Return log P(y | x) of each class, from the features of the last stage."""
        return log_softmax(self.head(features), 1)


class Generator(Stages):
    """P(x) of an expert: a variational auto-encoder whose pixels have variance 1."""

    def __init__(self, stages: Sequence[nn.Module], mean: nn.Module, log_var: nn.Module, decoder: nn.Module) -> None:
        super().__init__(stages)
        self.mean, self.log_var, self.decoder = mean, log_var, decoder

    def negative_bound(self, x: Tensor, features: Tensor, noise: Tensor) -> Tensor:
        """Return the negative evidence lower bound of each example, from the features of the last stage."""
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
    """Create an expert of linear layers, like that of the method's authors for MNIST."""
    own, total = (added if number else base), base + number * added  # widths: of this expert, with all earlier ones

    def stages() -> list[nn.Module]:
        first = nn.Sequential(nn.Flatten(), nn.Linear(inputs, own), nn.ReLU())
        return [first, nn.Sequential(nn.Linear(total, own), nn.ReLU())]

    decoder = nn.Sequential(
        nn.Linear(codes, base), nn.ReLU(), nn.Linear(base, base), nn.ReLU(), nn.Linear(base, inputs)
    )
    generator = Generator(stages(), nn.Linear(total, codes), nn.Linear(total, codes), decoder)
    return Expert(generator, Classifier(stages(), nn.Linear(total, classes)))


def conv_expert(size: int, classes: int, number: int, codes: int = 64, base: int = 32, added: int = 4) -> Expert:
    """Create a convolutional expert, like that of the method's authors for CIFAR: a small auto-encoder and a thin
    ResNet.
    """
    own, total, quarter = (added if number else base), base + number * added, -(-size // 4)
    encoder = [
        nn.Sequential(nn.Conv2d(3, own, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()),
        nn.Sequential(
            nn.Conv2d(total, 2 * own, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU(), nn.Flatten()
        ),
        nn.Sequential(nn.Linear(2 * total * quarter**2, 4 * own), nn.ReLU()),
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
    generator = Generator(encoder, nn.Linear(4 * total, codes), nn.Linear(4 * total, codes), decoder)
    return Expert(generator, thin_resnet(classes, number))


def thin_resnet(classes: int, number: int, base: int = 20, added: int = 4) -> Classifier:
    """Create a ResNet with one block in each of four stages, and instance normalization."""
    own, total = (added if number else base), base + number * added

    def block(before: int, after: int, stride: int) -> nn.Module:
        return Block(before * total, after * own, stride, norm=nn.InstanceNorm2d)

    first = nn.Sequential(nn.Conv2d(3, own, 3, padding=1, bias=False), nn.InstanceNorm2d(own), nn.ReLU())
    last = nn.Sequential(block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    stages = [first, block(1, 1, 1), block(1, 2, 2), block(2, 4, 2), last]
    return Classifier(stages, nn.Linear(8 * total, classes))


class CropTo(nn.Module):
    """Crop images to a size, from the upper left corner."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.size, : self.size]


CHUNK_SIZE = 100
"""Number of examples whose frozen features are computed at once."""

MAX_EXPERTS = 1_000
"""Maximum number of experts of a network. Each reads the features of all earlier ones."""


class ExpertOutputs(NamedTuple):
    """The outputs of experts for examples, that of the untrained (new) expert first.

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
    """A mixture of experts, weighted by the number of examples of each.

    Parameters
    ----------
    make
        Creates the expert with a number: 0, 1, ...
    codes
        Dimension of an example's code.
    samples
        Number of codes drawn per example.

    Attributes
    ----------
    untrained
        Takes the place of an expert that does not exist yet.
    counts
        Number of examples of each expert: the sum of their assignment weights.

    Examples
    --------
    >>> mixture = ExpertMixture.for_model(nn.Linear(4, 3))
    >>> mixture.add()
    >>> outputs = mixture(torch.rand(5, 4), return_all=True)
    >>> outputs.neg_log_px.shape, outputs.log_py.shape, mixture(torch.rand(5, 4)).shape
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
        """Create a mixture without experts for the inputs and classes of a model.

        Its experts are convolutional for a ResNet-18, otherwise of linear layers.
        """
        if isinstance(model, ResNet18):
            mixture = cls(partial(conv_expert, model.size, model.classifier.out_features), codes=64, samples=samples)
        else:
            linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
            if not linear:
                raise UsageError("cn-dpm needs a ResNet18 or a model with linear layers to define its experts")
            make = partial(dense_expert, linear[0].in_features, linear[-1].out_features)
            mixture = cls(make, codes=16, samples=samples)
        return mixture.to(next(model.parameters()))

    def add(self) -> None:
        """Add an expert without examples."""
        self.experts.append(self.make(len(self.experts)).to(self.noise))
        self.counts = torch.cat([self.counts, self.counts.new_zeros(1)])

    def truncate(self, experts: int) -> None:
        """Remove all but the first experts."""
        del self.experts[experts:]
        self.counts = self.counts[:experts].clone()

    def frozen_features(self, part: str, x: Tensor) -> list[Tensor]:
        """Return the features of every stage of a ``part`` in all experts but the last; none if there is one expert."""
        experts = self._experts()[:-1]
        parts = [expert.generator if part == "generator" else expert.classifier for expert in experts]
        chunks = [_stage_features(parts, chunk) for chunk in torch.split(x, CHUNK_SIZE)]
        return [torch.cat(stage) for stage in zip(*chunks, strict=True)]

    def forward(
        self, x: Tensor, return_all: bool = False, part: str = "", earlier: Sequence[Tensor] = ()
    ) -> Tensor | ExpertOutputs:
        """Return the logits of each class: log Σ_k P(k) p(x | k) P(y | x, k).

        With ``return_all``, return the outputs of every expert. With a ``part``, return that of the last expert's
        ``generator`` or ``classifier``, given its :meth:`frozen_features` for these examples as ``earlier``.
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
        """Return the noise of codes: newly drawn in training, fixed and equal for all examples in evaluation."""
        if not self.training:
            return self.noise
        return torch.randn(examples, self.samples, self.codes, device=self.noise.device, dtype=self.noise.dtype)


@deterministic
class ExpandedClassifier(nn.Module):
    """The classifiers of a mixture as one network, trained as a whole; its output is that of the last classifier."""

    def __init__(self, classifiers: Sequence[Classifier]) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Stages(list(classifier.stages)) for classifier in classifiers])
        self.head = classifiers[-1].head

    def forward(self, x: Tensor) -> Tensor:
        features: list[Tensor] = []
        for part in self.parts:
            assert isinstance(part, Stages)
            features = part.features(x, features)
        logits: Tensor = self.head(features[-1])
        return logits


def expanded_classifier(model: nn.Module, tasks: int) -> nn.Module:
    """Return the network that a mixture for this model ends with if it has one expert per task.

    >>> expanded_classifier(nn.Linear(784, 10), tasks=5)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    mixture = ExpertMixture.for_model(model)
    classifiers = [mixture.make(number).classifier for number in range(check_int("tasks", tasks, maximum=MAX_EXPERTS))]
    return ExpandedClassifier(classifiers).to(next(model.parameters()))


def _class_log_probs(parts: Sequence[Classifier], x: Tensor) -> Iterator[Tensor]:
    for part, features in zip(parts, _features(parts, x), strict=True):
        yield part.log_probabilities(features)


def _features(parts: Sequence[Stages], x: Tensor) -> Iterator[Tensor]:
    """Yield the features of each part's last stage; those of earlier parts in it are detached."""
    features: list[Tensor] = []
    for part in parts:
        features = part.features(x, [stage.detach() for stage in features])
        yield features[-1]


@torch.no_grad()
def _stage_features(parts: Sequence[Stages], x: Tensor) -> list[Tensor]:
    """Return the features of every stage, of all parts together."""
    features: list[Tensor] = []
    for part in parts:
        features = part.features(x, features)
    return features
