"""Models with shared layers or tied weights learn like any other and keep their parameters."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils import parametrizations

import gmed
from gmed.editing import GMED, OptimalEdit
from gmed.errors import UsageError
from gmed.learners import BGD, ER, HAL, MIR, FineTune
from gmed.memory import Reservoir
from gmed.models import expand_outputs, forward
from helpers import random_batch

WIDTH, CLASSES = 6, 3


class Net(nn.Module):
    """Two hidden layers, with whatever names, sharing, parametrizations and hooks are asked for."""

    def __init__(self, *quirks):
        super().__init__()
        self.quirks = quirks
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = self.first if "one layer twice" in quirks else nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if "batch-norm" in quirks else nn.Identity()
        self.fc = nn.Linear(WIDTH, CLASSES)
        if "tied weights" in quirks:
            self.second.weight = self.first.weight
        if "spectral norm" in quirks:
            parametrizations.spectral_norm(self.second)
        if "weight norm" in quirks:
            parametrizations.weight_norm(self.fc)
        if "names" in quirks:
            self.head, self.also_first, self.also_norm = self.fc, self.first, self.norm
        if "shared block" in quirks:
            self.block = nn.Sequential(self.first, nn.ReLU(), self.second)
            self.blocks = nn.ModuleList([self.block, self.block])
        if "parameter with two names" in quirks:
            self.scale = self.also_scale = nn.Parameter(torch.ones(WIDTH))
        if "recurrent" in quirks:
            self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        if "hooks" in quirks:
            self.first.register_forward_hook(lambda module, inputs, output: output * 1.5)
            self.fc.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.5,))
            self.fc.weight.register_hook(lambda grad: grad * 0.5)

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
        h = torch.relu(self.second(h))
        if "shared block" in self.quirks:
            h = self.blocks[1](h) + self.blocks[0](h)
        if "parameter with two names" in self.quirks:
            h = h * self.scale
        if "recurrent" in self.quirks:
            h = h + self.recurrent(h[:, None])[0][:, 0]
        if "weights in forward" in self.quirks:
            h = linear(h, self.first.weight)
        return self.fc(h)


QUIRKS = [
    *("one layer twice", "batch-norm", "tied weights", "spectral norm", "weight norm", "names", "shared block"),
    *("parameter with two names", "recurrent", "hooks", "weights in forward"),
]
quirks = st.lists(st.sampled_from(QUIRKS), unique=True).filter(
    lambda chosen: not {"tied weights", "spectral norm"} <= set(chosen)  # torch cannot parametrize a tied weight
)


def batch(seed, classes=CLASSES):
    return random_batch(8, (WIDTH,), classes, seed)


def identities(model):
    """Every place that holds a tensor, and the object it holds."""
    return {
        (name, kind, key): id(tensor)
        for name, module in model.named_modules(remove_duplicate=False)
        for kind, table in (("parameter", module._parameters), ("buffer", module._buffers))
        for key, tensor in table.items()
    }


def learners(model):
    yield ER(model, lr=0.1, memory=Reservoir(20), editing=GMED(alpha=1.0, beta=0.01))
    yield MIR(model, lr=0.1, memory=Reservoir(20), editing=GMED(alpha=1.0, beta=0.01))
    yield ER(model, lr=0.1, memory=Reservoir(20), editing=OptimalEdit(alpha=0.1))
    yield ER(model, lr=0.1, memory=Reservoir(20), editing=GMED(alpha=1.0, beta=0.01), updates_per_batch=2)
    yield BGD(model, eta=1.0, samples=2)
    yield FineTune(model, lr=0.1)


@pytest.mark.slow
@given(quirks)
@settings(max_examples=40)
def test_parameters_keep_their_identity_and_places(chosen):
    torch.manual_seed(0)
    model = Net(*chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = identities(model)
    values = [p.detach().clone() for p in model.parameters()]
    gmed.edit_examples(model, *batch(0), *batch(1), lr=0.1, alpha=1.0, beta=0.01)
    assert identities(model) == before
    assert all(torch.equal(p, value) for p, value in zip(model.parameters(), values, strict=True))
    for learner in learners(model):
        for seed in range(3):
            learner.observe(*batch(seed))
        learner.predict(batch(0)[0])
        assert identities(model) == before, learner
    model(batch(3)[0]).sum().backward()
    fc = model.fc.parametrizations.weight.original0 if "weight norm" in chosen else model.fc.weight
    was = fc.detach().clone()
    optimizer.step()
    assert not torch.equal(fc, was)  # a user's optimizer still has hold of it


def test_hal_anchors_keep_parameters_in_place():
    torch.manual_seed(0)
    model = Net("names", "shared block", "tied weights", "batch-norm")
    before = identities(model)
    learner = HAL(model, lr=0.1, memory=Reservoir(20), anchor_weight=0.1)
    for seed in range(6):
        learner.observe(*batch(seed), task=seed // 2)
    assert identities(model) == before


@given(quirks)
@settings(max_examples=40)
def test_aliases_of_a_layer_do_not_change_learning(chosen):
    outputs = []
    for names in ([], ["names"]):
        torch.manual_seed(0)
        model = Net(*(quirk for quirk in chosen if quirk != "names"), *names)
        learner = ER(model, lr=0.1, memory=Reservoir(20), editing=GMED(alpha=1.0, beta=0.01))
        for seed in range(4):
            learner.observe(*batch(seed))
        outputs.append(learner.logits(batch(9)[0]))
    assert torch.equal(*outputs)


@given(quirks)
@settings(max_examples=40)
def test_functional_forward_equals_model_with_those_parameters(chosen):
    torch.manual_seed(0)
    model = Net(*chosen).eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1)
    x = batch(0)[0]
    assert torch.equal(forward(model, dict(other.named_parameters()), x), other(x))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_edit_with_a_reused_layer_equals_finite_differences(mode):
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(WIDTH, CLASSES)).double()
    getattr(model, mode)()
    (x, y), (x_new, y_new) = batch(0), batch(1)
    x, x_new = x.double(), x_new.double()
    alpha, beta, lr = 1.0, 0.01, 0.1
    edited = gmed.edit_examples(model, x, y, x_new, y_new, lr=lr, alpha=alpha, beta=beta)

    ahead = copy.deepcopy(model)
    nn.functional.cross_entropy(ahead(x_new), y_new).backward()
    torch.optim.SGD(ahead.parameters(), lr=lr).step()

    def objective(points):
        before, after = (nn.functional.cross_entropy(m(points), y) for m in (model, ahead))
        return (after - (1 + beta) * before).item()

    eps = 1e-6
    with torch.no_grad():
        for i, j in ((0, 0), (3, 2), (7, 5)):
            step = torch.zeros_like(x)
            step[i, j] = eps
            slope = (objective(x + step) - objective(x - step)) / (2 * eps)
            assert (edited - x)[i, j].item() == pytest.approx(alpha * slope, rel=1e-5, abs=1e-10)


def test_shared_output_layers_cannot_grow():
    layer = nn.Linear(4, 4)
    for model in (nn.Sequential(layer, nn.ReLU(), layer), nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))):
        with pytest.raises(UsageError, match="shared or parametrized cannot be given more outputs"):
            expand_outputs(model, 6)
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    with pytest.raises(UsageError, match="shared or parametrized"):
        expand_outputs(tied, 6)
    assert tied[2].weight is tied[0].weight
