"""A model as a function of its parameters.

Parameters are given as a dictionary of tensors: the model is evaluated at these, and afterwards has its own parameters
again, the same objects under all their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gmed.errors import InputError, UsageError
from gmed.io.signals import hold_interrupts
from gmed.models.introspection import is_batch_norm

Parameters = dict[str, Tensor]

_WRITES = (
    "the model changes its input in place, and with it your data and the examples in memory. Make it work on a copy: "
    "x = x.clone() at the start of forward, or inplace=False in its first layer."
)


def forward(model: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the model's output at ``parameters``. Its buffers (batch-norm statistics) are not changed.

    The model's mode is respected: in training mode batch-norm uses the statistics of this batch.
    """
    buffers = dict(model.named_buffers())
    if not buffers and all(parameters.get(name) is p for name, p in model.named_parameters()):
        result: Tensor = model(x)  # the same result, without replacing every parameter by itself
        return result
    with frozen_bn_stats(model) if buffers else nullcontext(set[str]()) as frozen:
        copies = {name: buffer.clone() for name, buffer in buffers.items() if name not in frozen}
        with replaced_tensors(model, {**parameters, **copies}):
            output: Tensor = model(x)
    return output


@contextmanager
def replaced_tensors(model: nn.Module, replacements: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace parameters and buffers inside the block, in every module that uses them, and restore them afterwards.

    Tensors are matched by identity, not by name: a layer with two names and a weight shared by two layers are
    replaced everywhere and restored exactly. (``torch.func.functional_call`` restores a wrong tensor for a module that
    has two names.)

    >>> model = nn.Linear(1, 1, bias=False)
    >>> original = model.weight
    >>> with replaced_tensors(model, {"weight": torch.tensor([[2.0]])}):
    ...     model(torch.tensor([[3.0]])).item()
    6.0
    >>> model.weight is original
    True
    """
    originals = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    by_id = {id(originals[name]): tensor for name, tensor in replacements.items()}
    tables: list[dict[str, Any]] = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    entries = [(table, name, tensor) for table in tables for name, tensor in table.items() if id(tensor) in by_id]
    with hold_interrupts():
        try:
            for table, name, tensor in entries:
                table[name] = by_id[id(tensor)]
            yield
        finally:
            for table, name, tensor in entries:
                table[name] = tensor


@contextmanager
def unchanged_inputs(*inputs: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield copies of inputs for a computation, and raise an error if the model writes into them.

    >>> with unchanged_inputs(torch.ones(2)) as (x,):
    ...     x.mul_(2)
    Traceback (most recent call last):
    gmed.errors.InputError: the model changes its input in place, ...
    """
    copies = tuple(x.clone() for x in inputs)
    versions = [copy._version for copy in copies]
    yield copies
    same = all(bool(((copy == x) | x.isnan()).all()) for copy, x in zip(copies, inputs, strict=True))
    if not same or [copy._version for copy in copies] != versions:
        raise InputError(_WRITES)


@contextmanager
def unwritten(x: Tensor) -> Iterator[None]:
    """Raise an error if the model writes into a tensor inside the block, as far as torch notices; nothing is copied.

    >>> x = torch.ones(2)
    >>> with unwritten(x):
    ...     x.mul_(2)
    Traceback (most recent call last):
    gmed.errors.InputError: the model changes its input in place, ...
    """
    version = None if x.is_inference() else x._version
    yield
    if version is not None and x._version != version:
        raise InputError(_WRITES)


def gradient(loss: Tensor, parameters: Mapping[str, Tensor]) -> Parameters:
    """Return the gradient of ``loss`` by name; zero for a parameter it does not depend on. ``.grad`` is not changed."""
    if not parameters:
        return {}
    grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), grads, strict=True)
    }


def features(model: nn.Module, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the input of the model's last linear layer, a row for each example; gradients flow through.

    The model is evaluated at ``parameters``, if given.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> x = torch.rand(4, 2)
    >>> torch.equal(features(model, x), model[1](model[0](x)))
    True
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UsageError(f"a {type(model).__name__} has no features, which are the input of the last linear layer")
    captured: list[Tensor] = []
    handle = linear[-1].register_forward_pre_hook(lambda module, inputs: captured.append(inputs[0]))
    try:
        model(x) if parameters is None else forward(model, parameters, x)
    finally:
        handle.remove()
    return captured[-1].flatten(1)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode inside the block, and restore the mode of every module afterwards."""
    modes = {module: module.training for module in model.modules()}
    with hold_interrupts() as hold:  # a prediction may be interrupted, but not the change of modes
        try:
            try:
                model.eval()
                hold.deferring = False
                yield
            finally:
                hold.deferring = True
        finally:
            hold.deferring = True
            for module, training in modes.items():
                module.training = training


@contextmanager
def frozen_bn_stats(model: nn.Module) -> Iterator[set[str]]:
    """Keep batch-norm layers in training mode from updating running statistics; yield the names of these buffers."""
    norms = {
        name: module
        for name, module in model.named_modules()
        if is_batch_norm(module) and module.training and module.track_running_stats
    }
    for norm in norms.values():
        norm.track_running_stats = False
    try:
        yield {f"{name}.{buffer}".lstrip(".") for name, norm in norms.items() for buffer, _ in norm.named_buffers()}
    finally:
        for norm in norms.values():
            norm.track_running_stats = True


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore torch's random state after the block, in which a model may draw random numbers (dropout).

    Two such passes from the same state have the same masks, and differ only by their parameters and inputs.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
