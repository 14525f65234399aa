"""Experts, each a generative model and a classifier (Lee et al., ICLR 2020).

One that is added later is narrow: at every stage it also reads what the earlier experts have there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from gmed.models.resnet import Block

LEAST_NOISE = 0.001
"""Added to every squared error of a pixel."""


class Staged(nn.Module):
    """Stages in a row: a part of an expert."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def levels(self, x: Tensor, earlier: Sequence[Tensor]) -> list[Tensor]:
        """What every stage gives, beside what the parts before it have there; the next stage reads all of it."""
        h, found = x, list[Tensor]()
        for level, stage in enumerate(self.stages):
            h = torch.cat([earlier[level], stage(h)], 1) if earlier else stage(h)
            found.append(h)
        return found


class Classifier(Staged):
    """P(y | x) of an expert."""

    def __init__(self, stages: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__(stages)
        self.head = head

    def log_probabilities(self, features: Tensor) -> Tensor:
        """Log P(y | x) of each class, from the features of its last stage."""
        return log_softmax(self.head(features), 1)


class Generator(Staged):
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
        error = 0.5 * (squared + pixels * LEAST_NOISE) + 0.5 * pixels * math.log(2 * math.pi)
        divergence = 0.5 * (log_var.exp() + mean.square() - 1 - log_var).sum(1)
        bound: Tensor = error + divergence
        return bound


class Expert(nn.Module):
    """A generative model and a classifier."""

    def __init__(self, generator: Generator, classifier: Classifier) -> None:
        super().__init__()
        self.generator, self.classifier = generator, classifier


def dense(inputs: int, classes: int, number: int, codes: int = 16, base: int = 64, added: int = 16) -> Expert:
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


def convolutional(size: int, classes: int, number: int, codes: int = 64, base: int = 32, added: int = 4) -> Expert:
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
        Corner(size),
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


class Corner(nn.Module):
    """The upper left corner of images, which may be a little larger."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.size, : self.size]
