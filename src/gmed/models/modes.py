"""Ways a model is run in: without learning anything from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from gmed.interrupts import hold_interrupts
from gmed.models.introspection import is_batch_norm


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; outside, every part of it is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    with hold_interrupts() as hold:  # a prediction may be interrupted, the change of modes may not
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
def still_statistics(model: nn.Module) -> Iterator[set[str]]:
    """Inside, batch-norm layers that use the statistics of the batch do not keep them: the names of their buffers."""
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
def same_chance() -> Iterator[None]:
    """Inside, a model that draws random numbers (dropout) draws; outside, nothing was drawn.

    Two passes made so from one state have the same masks, and differ by their parameters and inputs alone.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
