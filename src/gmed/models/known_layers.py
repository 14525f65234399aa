"""What is known of a model from the layers it is made of. A layer that is not known here may do anything."""

from __future__ import annotations

from torch import nn

from gmed.models.as_built import all_modules, as_built
from gmed.models.batch_norm import BatchNorm
from gmed.models.columns import Columns
from gmed.models.compositions import Compositions
from gmed.models.mixture import Expanded
from gmed.models.resnet import Block, ResNet18

_ONE_BY_ONE = {
    module.forward
    for module in (
        nn.Sequential,
        nn.Identity,
        nn.Flatten,
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.ReLU,
        nn.LeakyReLU,
        nn.ELU,
        nn.GELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Tanh,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d,
    )
}
_WITHOUT_CHANCE = _ONE_BY_ONE | {
    module.forward
    for module in (
        nn.Module,  # what has no forward only holds others
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.InstanceNorm2d,
        BatchNorm,
        ResNet18,
        Block,
        Columns,
        Compositions,
        Expanded,
    )
}


def treats_examples_independently(model: nn.Module) -> bool:
    """Whether the output for one example is known not to depend on the rest of the batch or on chance.

    Then the gradient of a sum of losses is the sum of gradients, whichever batches they were computed in.
    Only models made of known layers qualify; a model with batch-norm, dropout or a forward of its own does not.

    >>> treats_examples_independently(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    True
    >>> treats_examples_independently(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    False
    """
    return in_a_row(model) is not None


def in_a_row(model: nn.Module) -> dict[str, nn.Module] | None:
    """The layers of a model that treats examples independently, by name and in order; ``None`` of any other model.

    >>> list(in_a_row(nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))))
    ['0', '1.0', '1.1']
    >>> in_a_row(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) is None
    True
    """
    if not as_built(model) or _forward(model) not in _ONE_BY_ONE or _mixes_examples(model):
        return None
    if not isinstance(model, nn.Sequential):
        return None if model._modules else {"": model}
    layers: dict[str, nn.Module] = {}
    for name, part in model._modules.items():
        inside = in_a_row(part) if part is not None else None
        if inside is None:
            return None
        layers |= {f"{name}.{inner}" if inner else name: layer for inner, layer in inside.items()}
    return layers


def leaves_nothing_to_chance(model: nn.Module) -> bool:
    """Whether the model is known to draw no random numbers, whatever its mode.

    >>> leaves_nothing_to_chance(ResNet18())
    True
    >>> leaves_nothing_to_chance(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    False
    """
    return all(as_built(m) and _forward(m) in _WITHOUT_CHANCE for m in all_modules(model))


def keeps_its_inputs(model: nn.Module) -> bool:
    """Whether the model is known not to write into the tensor it is given.

    >>> keeps_its_inputs(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    True
    >>> keeps_its_inputs(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)))
    False
    """
    return leaves_nothing_to_chance(model) and not any(getattr(m, "inplace", False) for m in model.modules())


def _forward(module: nn.Module) -> object:
    return type(module).forward


def _mixes_examples(module: nn.Module) -> bool:
    return isinstance(module, nn.Flatten) and module.start_dim < 1
