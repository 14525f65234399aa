"""Gradients of linear layers in factors: against autograd, which writes them out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import gmed
from gmed.engine import get_benchmark, resolve
from gmed.errors import DivergedError
from gmed.models import LookAhead, Passes, gradient, trainable
from gmed.models.factored import Chain, FactoredGradient, descend, entries_of, sum_of
from gmed.models.functional import forward

CHAINS = {
    "mlp": lambda: gmed.models.MLP(12, 9, 4),
    "nested, without biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(12, 7, bias=False), nn.Tanh()), nn.Linear(7, 4, bias=False)
    ),
    "one layer": lambda: nn.Linear(12, 4),
    "rows of rows": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Flatten(), nn.Linear(15, 4)),
}
SHAPES = {"rows of rows": (3, 4)}


def made(name, seed=0):
    torch.manual_seed(seed)
    return CHAINS[name]().double()


def batch(name, count, seed):
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(count, *SHAPES.get(name, (12,)), generator=source, dtype=torch.float64)
    return x, torch.randint(4, (count,), generator=source)


def both(name, count, seed):
    """The gradient of one batch in factors, and written out by autograd."""
    model, (x, y) = made(name, seed), batch(name, count, seed)
    loss, slope = Chain.of(model).gradient(x, lambda output: cross_entropy(output, y))
    dense = cross_entropy(model(x), y)
    torch.testing.assert_close(loss, dense.detach())
    return model, slope, gradient(dense, trainable(model))


@given(name=st.sampled_from(list(CHAINS)), count=st.integers(1, 6), seed=st.integers(0, 20))
def test_what_is_multiplied_out_is_what_autograd_finds(name, count, seed):
    model, slope, dense = both(name, count, seed)
    assert list(slope) == list(dense) == list(trainable(model)) and len(slope) == len(dense)
    for parameter in dense:
        torch.testing.assert_close(slope[parameter], dense[parameter])


@given(name=st.sampled_from(list(CHAINS)), count=st.integers(1, 6), seed=st.integers(0, 20))
def test_a_step_is_the_step(name, count, seed):
    model, slope, dense = both(name, count, seed)
    expected = {parameter: p.detach() - 0.3 * dense[parameter] for parameter, p in trainable(model).items()}
    descend(trainable(model), slope, 0.3)
    for parameter, p in trainable(model).items():
        torch.testing.assert_close(p.detach(), expected[parameter])


@given(name=st.sampled_from(list(CHAINS)), count=st.integers(1, 6), seed=st.integers(0, 20), rows=st.integers(1, 5))
def test_outputs_before_and_after_a_step_and_their_slopes(name, count, seed, rows):
    model, slope, dense = both(name, count, seed)
    x, y = batch(name, rows, seed + 100)
    ahead = {parameter: p.detach() - 0.3 * dense[parameter] for parameter, p in trainable(model).items()}

    def direction(outputs):
        return torch.autograd.grad(cross_entropy(outputs[1], y) - 2 * cross_entropy(outputs[0], y), x)[0]

    x.requires_grad_()
    found, expected = slope.outputs_around(x, 0.3), (model(x), forward(model, ahead, x))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(direction(found), direction(expected))


@given(seed=st.integers(0, 20))
def test_a_sum_is_the_gradient_of_the_summed_loss(seed):
    model, first, dense = both("mlp", 4, seed)
    x, y = batch("mlp", 3, seed + 50)
    _, second = Chain.of(model).gradient(x, lambda output: cross_entropy(output, y))
    summed, written_out = sum_of(first, second), sum_of(dense, gradient(cross_entropy(model(x), y), trainable(model)))
    assert isinstance(summed, FactoredGradient)
    for parameter in written_out:
        torch.testing.assert_close(summed[parameter], written_out[parameter])


@given(seed=st.integers(0, 50), scale=st.floats(1e-3, 1e3))
def test_no_entry_exceeds_the_bound(seed, scale):
    _, slope, dense = both("mlp", 4, seed)
    of_weights = [g.abs().max() for name, g in dense.items() if name.endswith("weight")]
    assert all(entry <= bound * (1 + 1e-12) for entry, bound in zip(of_weights, entries_of(slope), strict=True))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        nn.Sequential(*[nn.Linear(4, 4)] * 2),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)),
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
        nn.ReLU(),
        gmed.models.ResNet18(),
    ],
    ids=[
        "batch norm",
        "layer norm",
        "dropout",
        "a layer twice",
        "a frozen layer",
        "convolution",
        "in place",
        "nothing",
        "ResNet",
    ],
)
def test_what_is_no_chain(model):
    assert Chain.of(model) is None


def test_a_layer_that_is_watched_is_not_passed_by():
    model = gmed.models.MLP()
    model[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    assert Chain.of(model) is None


def test_thin_beside_the_layers_of_a_wide_network_alone():
    x, y = torch.rand(10, 784), torch.arange(10)
    assert isinstance(LookAhead(gmed.models.MLP(), x, y, lr=0.1).stream_gradient, FactoredGradient)
    for narrow, rows in ((gmed.models.MLP(hidden=20), x), (gmed.models.MLP(), torch.rand(200, 784))):
        ahead = LookAhead(narrow, rows, torch.arange(len(rows)) % 10, lr=0.1)
        assert isinstance(ahead.stream_gradient, dict)


def test_an_edit_is_the_same_either_way(monkeypatch):
    torch.manual_seed(0)
    model = gmed.models.MLP().double()
    x, y, x_m, y_m = torch.rand(10, 784).double(), torch.arange(10), torch.rand(7, 784).double(), torch.arange(7)
    settings = {"lr": 0.05, "alpha": 5.0, "beta": 0.01, "steps": 2}
    factored = gmed.edit_examples(model, x_m, y_m, x, y, **settings)
    monkeypatch.setattr(Chain, "is_wide", lambda self, examples: False)
    torch.testing.assert_close(gmed.edit_examples(model, x_m, y_m, x, y, **settings), factored)


@pytest.mark.parametrize("method", ["er+gmed", "mir", "mir+gmed", "er-aug+gmed"])
def test_learning_and_its_passes_are_the_same_either_way(method, monkeypatch):
    def learned():
        torch.manual_seed(1)
        learner = resolve(get_benchmark("split-mnist"), method).make_learner(gmed.models.MLP().double(), 0)
        learner.passes = Passes()
        for step in range(12):
            source = torch.Generator().manual_seed(step)
            x = torch.rand(10, 1, 28, 28, generator=source, dtype=torch.float64)
            learner.observe(x, torch.randint(10, (10,), generator=source))
        return learner

    factored = learned()
    monkeypatch.setattr(Chain, "is_wide", lambda self, examples: False)
    written_out = learned()
    assert factored.passes == written_out.passes
    for name, tensor in written_out.state_dict().items():
        torch.testing.assert_close(factored.state_dict()[name], tensor)


def test_a_gradient_too_large_for_its_type_is_refused():
    torch.manual_seed(0)
    editing = gmed.editing.GMED(alpha=1.0, beta=0.0)
    learner = gmed.learners.ER(gmed.models.MLP(), lr=0.1, memory=gmed.memory.Reservoir(50), editing=editing)
    learner.observe(torch.rand(10, 784), torch.arange(10))
    before = learner.state_dict()
    with pytest.raises(DivergedError, match="not finite"):
        learner.observe(torch.full((10, 784), 3e37), torch.arange(10))
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())
