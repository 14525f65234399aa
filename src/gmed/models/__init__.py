"""Models, and functions to evaluate a model at other parameters."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.kernels.pass_counter import PassCounter
from gmed.models.compositional import CompositionalNet
from gmed.models.expert_mixture import ExpertMixture
from gmed.models.functional import (
    eval_mode,
    features,
    forward,
    gradient,
    preserve_rng,
    replaced_tensors,
    unchanged_inputs,
    unwritten,
)
from gmed.models.growth import expand_outputs, output_layer
from gmed.models.introspection import (
    ModelInfo,
    inspect_model,
    is_batch_independent,
    is_deterministic,
    preserves_inputs,
    trainable,
)
from gmed.models.lookahead import LookAhead, Loss
from gmed.models.mlp import MLP
from gmed.models.onnx_export import export_onnx
from gmed.models.progressive import ProgressiveNet
from gmed.models.resnet import ResNet18, to_channels_last

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


__all__ = [
    "MLP",
    "CompositionalNet",
    "ExpertMixture",
    "LookAhead",
    "Loss",
    "ModelInfo",
    "PassCounter",
    "ProgressiveNet",
    "ResNet18",
    "eval_mode",
    "expand_outputs",
    "export_onnx",
    "features",
    "forward",
    "gradient",
    "inspect_model",
    "is_batch_independent",
    "is_deterministic",
    "output_layer",
    "preserve_rng",
    "preserves_inputs",
    "replaced_tensors",
    "to_channels_last",
    "trainable",
    "unchanged_inputs",
    "unwritten",
]
