"""Models, and how a model is evaluated at parameters that are not its own."""

from gmed.models.functional import evaluating, forward, gradient, trainable, treats_examples_independently
from gmed.models.lookahead import LookAhead, Loss
from gmed.models.mlp import MLP
from gmed.models.resnet import ResNet18

__all__ = [
    "MLP",
    "LookAhead",
    "Loss",
    "ResNet18",
    "evaluating",
    "forward",
    "gradient",
    "trainable",
    "treats_examples_independently",
]
