"""Probes of edits: optimal direction and observation of runs."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gmed.editing import GMED, EditContext, History
from gmed.engine import RunSpec
from gmed.errors import UsageError
from gmed.learners import ER
from gmed.memory import Reservoir
from gmed.models import LookAhead
from gmed.paper.probes import InstrumentedGMED, prediction_change
from helpers import random_batch


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch(n, seed):
    return random_batch(n, (4,), 3, seed, torch.float64)


def test_the_optimal_direction_by_finite_differences():
    """Move one pixel of one stored example, make the real update, and see how the loss of earlier examples changes."""
    net, (x, y), (x_m, y_m), earlier = model(), batch(5, 1), batch(3, 2), History(*batch(20, 3))

    def loss_of_the_past(x_m):
        twin = copy.deepcopy(net)
        loss = cross_entropy(twin(x), y) + cross_entropy(twin(x_m), y_m)
        for p, slope in zip(twin.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True):
            p.data -= 0.5 * slope
        return float(cross_entropy(twin(earlier.x), earlier.y).detach())

    optimal, step = torch.zeros_like(x_m), 1e-5
    for place in np.ndindex(*x_m.shape):
        up, down = x_m.clone(), x_m.clone()
        up[place] += step
        down[place] -= step
        optimal[place] = -(loss_of_the_past(up) - loss_of_the_past(down)) / (2 * step)

    watched = InstrumentedGMED(alpha=1.0, beta=0.1)
    context = EditContext(LookAhead(net, x, y, lr=0.5), 10, history=earlier)
    edited = watched.edit(x_m, y_m, torch.zeros(3), context)
    moved = edited - x_m
    expected = [float(moved[i] @ optimal[i] / (moved[i].norm() * optimal[i].norm())) for i in range(3)]
    assert watched.similarities == pytest.approx([np.mean(expected)], abs=1e-6)
    plain = GMED(alpha=1.0, beta=0.1).edit(x_m, y_m, torch.zeros(3), EditContext(LookAhead(net, x, y, lr=0.5), 10))
    assert torch.equal(edited, plain)


def test_observing_does_not_change_the_run():
    states = []
    for edit in (GMED(alpha=1.0, beta=0.1), InstrumentedGMED(alpha=1.0, beta=0.1)):
        learner = ER(model(), lr=0.1, memory=Reservoir(8), editing=edit, seed=3)
        for step in range(12):
            learner.observe(*batch(4, step))
        states.append({k: t for k, t in learner.state_dict().items() if not k.startswith("own.")})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert len(edit.similarities) == 11  # from the second step on


def test_only_gmed_can_be_analyzed():
    with pytest.raises(UsageError, match="only methods that edit with gmed"):
        prediction_change(RunSpec.make("split-mnist", "er", 0))
