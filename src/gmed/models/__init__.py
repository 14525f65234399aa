"""Models, and how a model is evaluated at parameters that are not its own."""

from gmed.models.functional import forward, gradient, trainable
from gmed.models.growth import grow_outputs, output_layer
from gmed.models.known_layers import leaves_nothing_to_chance, treats_examples_independently
from gmed.models.lookahead import LookAhead, Loss
from gmed.models.mlp import MLP
from gmed.models.modes import evaluating, running_statistics
from gmed.models.passes import Passes
from gmed.models.resnet import ResNet18

__all__ = [
    "MLP",
    "LookAhead",
    "Loss",
    "Passes",
    "ResNet18",
    "evaluating",
    "forward",
    "gradient",
    "grow_outputs",
    "leaves_nothing_to_chance",
    "output_layer",
    "running_statistics",
    "trainable",
    "treats_examples_independently",
]
