"""Models, and how a model is evaluated at parameters that are not its own."""

from gmed.kernels.pass_counter import Passes
from gmed.models.compositional import Compositions
from gmed.models.expert_mixture import Mixture
from gmed.models.functional import (
    evaluating,
    features,
    forward,
    gradient,
    replaced_tensors,
    same_chance,
    unchanged_inputs,
    unwritten,
)
from gmed.models.growth import grow_outputs, output_layer
from gmed.models.introspection import (
    ModelInfo,
    inspect_model,
    is_deterministic,
    keeps_its_inputs,
    trainable,
    treats_examples_independently,
)
from gmed.models.lookahead import LookAhead, Loss
from gmed.models.mlp import MLP
from gmed.models.onnx_export import export_onnx
from gmed.models.progressive import Columns
from gmed.models.resnet import ResNet18

__all__ = [
    "MLP",
    "Columns",
    "Compositions",
    "LookAhead",
    "Loss",
    "Mixture",
    "ModelInfo",
    "Passes",
    "ResNet18",
    "evaluating",
    "export_onnx",
    "features",
    "forward",
    "gradient",
    "grow_outputs",
    "inspect_model",
    "is_deterministic",
    "keeps_its_inputs",
    "output_layer",
    "replaced_tensors",
    "same_chance",
    "trainable",
    "treats_examples_independently",
    "unchanged_inputs",
    "unwritten",
]
